"""Files that are downloaded or created once, and kept below the dataset root."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

__all__ = [
    "cache_or_load_file",
    "cached_download",
    "get_dataset_directory",
    "get_dataset_root",
    "set_dataset_root",
]

#: The argument of the last `set_dataset_root`.
_chosen_root: str | None = None


def get_dataset_root() -> str:
    """Get the directory below which downloaded and created files are kept.

    This is the path given to `set_dataset_root`; else the environment variable
    ``CHAINER_DATASET_ROOT``, unless it is empty; else ``$HOME/.chainer/dataset``.
    """
    if _chosen_root is not None:
        return _chosen_root
    root = os.environ.get("CHAINER_DATASET_ROOT")
    return root or os.path.join(os.path.expanduser("~"), ".chainer", "dataset")


def set_dataset_root(path: str | os.PathLike[str]) -> None:
    """Set what `get_dataset_root` returns, in this process and those that it forks afterwards.

    Parameters
    ----------
    path : str or path
        Path, which need not exist. A relative path is resolved whenever the cache is used.
        TypeError if it is neither a string nor a path.
    """
    global _chosen_root
    root = os.fspath(path)
    if not isinstance(root, str):
        raise TypeError(f"the dataset root must be a str or a path, not {type(path).__name__}")
    _chosen_root = root


def get_dataset_directory(dataset_name: str, create_directory: bool = True) -> str:
    """Get the path of one dataset's directory below the root.

    Parameters
    ----------
    dataset_name : str
        Path below the root; may contain slashes.
    create_directory : bool
        Whether to create the directory and its parents if they do not exist; OSError if this is
        impossible.
    """
    path = os.path.join(get_dataset_root(), dataset_name)
    if create_directory:
        _make_directory(path)
    return path


def cached_download(url: str, *, sha256: str | None = None) -> str:
    """Download a file unless it is in the cache.

    If several threads and processes ask for one URL, one of them downloads it and the others wait
    (all download it where file locks have no effect, as on some network file systems). The cache
    never holds an incomplete file.

    Parameters
    ----------
    url : str
        An http, https or file URL. Proxies are read from the environment (``http_proxy``,
        ``https_proxy``, ``no_proxy``). A download fails when no byte has come for
        `socket.getdefaulttimeout` seconds, or 20 if that is None.
    sha256 : str, optional
        Expected SHA-256 of the content, 64 hexadecimal digits. A cached file with another one is
        downloaded again and replaced.

    Returns
    -------
    str
        Path of the file in ``_dl_cache`` below the dataset root. Its name is the MD5 of the URL, as
        in Chainer, so that both libraries find each other's downloads.

    Raises
    ------
    OSError
        If the file cannot be downloaded or written (``TimeoutError`` after a timeout,
        ``ConnectionError`` when the connection fails or breaks), or its SHA-256 differs.
    ValueError
        If an argument is out of range.
    """
    # Imported late, like all that only downloads need, since `import fastiter` should be fast.
    import hashlib
    import re

    _check_url(url)
    if sha256 is not None:
        sha256 = sha256.lower()
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError(f"sha256 must be 64 hexadecimal digits, but is {sha256!r}")
    name = hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()
    path = os.path.join(get_dataset_root(), "_dl_cache", name)
    if _is_cached(path, sha256):
        return path
    from fastiter.dataset._cached_file import locked, new_file
    from fastiter.dataset._transfer import transfer

    _make_directory(os.path.dirname(path))
    with locked(path):
        if not _is_cached(path, sha256):
            with new_file(path, replace=True) as temporary_path:
                transfer(url, temporary_path, sha256)
    return path


def cache_or_load_file(
    path: str | os.PathLike[str],
    creator: Callable[[str], Any],
    loader: Callable[[Any], Any],
) -> Any:
    """Load a file, or create it first if it does not exist.

    If several threads and processes call this for one path, one of them creates the file; the
    others wait and load it (where file locks have no effect, several create it, and the first
    complete file is kept).

    Parameters
    ----------
    path : str or path
        Path of the file. Its directory is created if it does not exist.
    creator : callable
        ``creator(temporary_path)`` writes a file or directory and returns its content. The
        temporary path has the last component of ``path``, and lies in a folder beside it. The
        creator may use the cache for other files.
    loader : callable
        ``loader(path)`` returns the content of the file.

    Returns
    -------
    object
        The result of ``creator`` or ``loader``. Their exceptions pass through.

    Raises
    ------
    OSError
        If the file cannot be written, or the creator has written none.
    RuntimeError
        If the creator calls this for the path that it is creating; or, as in Chainer, if the
        dataset root is a file.
    """
    target = os.path.abspath(os.fsdecode(path))
    if os.path.exists(target):
        return loader(path)
    root = get_dataset_root()
    if os.path.exists(root) and not os.path.isdir(root):
        raise RuntimeError(
            f"the dataset root {root!r} is a file, expected a directory: set_dataset_root() or the "
            "environment variable CHAINER_DATASET_ROOT choose another"
        )
    from fastiter.dataset._cached_file import locked, new_file

    _make_directory(os.path.dirname(target))
    with locked(target):
        if not os.path.exists(target):
            with new_file(target, replace=False) as temporary_path:
                return creator(temporary_path)
    return loader(path)


def _check_url(url: str) -> None:
    import urllib.parse

    if not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}")
    netloc = urllib.parse.urlsplit(url).netloc
    url = url.replace(netloc, netloc.rpartition("@")[2])  # the errors show no password
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{url!r} names the host {parts.netloc!r}: write file:///path")
    elif parts.scheme not in ("http", "https"):
        raise ValueError(f"url must begin with http://, https:// or file://, but is {url!r}")
    elif not parts.hostname or parts.port == 0:  # .port raises ValueError if it is not a number
        raise ValueError(f"{url!r} names no host or port to connect to")


def _is_cached(path: str, sha256: str | None) -> bool:
    if sha256 is None or not os.path.exists(path):
        return os.path.exists(path)
    from fastiter.dataset._transfer import sha256_of

    return sha256_of(path) == sha256


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        advice = (
            f"{error.strerror}. The dataset root is {get_dataset_root()!r}; set_dataset_root() "
            "or the environment variable CHAINER_DATASET_ROOT choose another. No directory"
        )
        raise OSError(error.errno, advice, path) from None

"""Files from the net."""

from __future__ import annotations

import operator
import os

from fastiter.dataset._download.root import get_dataset_root, make_directory


def cached_download(
    url: str,
    *,
    timeout: float | None = None,
    retries: int = 2,
    sha256: str | None = None,
    progress: bool = False,
) -> str:
    """Download a file unless the cache has it.

    However many threads and processes ask for a URL at once, one of them downloads it and the
    others wait. Where locks do nothing, as on some network file systems, several may download it.
    The cache never has a part of a file.

    Parameters
    ----------
    url : str
        Of http, https or file. Redirections lead to http and https only. Proxies are those of the
        environment (``http_proxy``, ``https_proxy``, ``no_proxy``).
    timeout : float, optional
        Seconds without a byte after which to give up, when connecting and at any time later. By
        default `socket.getdefaulttimeout`, or 20 if that is None; ``float("inf")`` waits for ever.
    retries : int
        How often to try again after a connection failed or broke before all had arrived; never
        after a timeout or an HTTP status of failure. Goes on from where it was, if the server can
        tell that the file is still the same. All waits together take at most 2 seconds.
    sha256 : str, optional
        Of the content, 64 hexadecimal digits. Also checked if the cache has the file: another one
        is downloaded anew, and replaced.
    progress : bool
        Whether to show a bar, by tqdm.

    Returns
    -------
    str
        Path of the file, in ``_dl_cache`` below the dataset root. Its name is the MD5 of the URL,
        as Chainer's, so that both find what the other has downloaded.

    Raises
    ------
    OSError
        If the file could not be downloaded or written, with the reason: ``TimeoutError`` after a
        timeout, ``ConnectionError`` after the last retry; or if its content has another SHA-256.
        Nothing new is left then but a lock file.
    ValueError
        If an argument is out of range, or the URL has another scheme.
    """
    # Here, so that importing fastiter does not wait for them.
    import hashlib
    import re

    from fastiter.dataset._download.body import has_sha256
    from fastiter.dataset._download.lock import locked
    from fastiter.dataset._download.place import temporary_place
    from fastiter.dataset._download.transfer import checked_timeout, checked_url, fetch

    checked_url(url)
    seconds = checked_timeout(timeout)
    if operator.index(retries) < 0:
        raise ValueError(f"retries must be 0 or more, but is {retries}")
    if sha256 is not None:
        sha256 = sha256.lower()
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError(f"sha256 must be 64 hexadecimal digits, but is {sha256!r}")
    directory = os.path.join(get_dataset_root(), "_dl_cache")
    name = hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()
    path = os.path.join(directory, name)
    if has_sha256(path, sha256):
        return path
    make_directory(directory)
    with locked(path):
        if not has_sha256(path, sha256):
            with temporary_place(path) as place:
                fetch(
                    url,
                    place.path,
                    timeout=seconds,
                    retries=retries,
                    sha256=sha256,
                    progress=progress,
                )
                place.keep()
    return path

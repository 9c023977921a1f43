"""Where the cache is."""

from __future__ import annotations

import os

#: What `set_dataset_root` was given.
_chosen: str | None = None


def get_dataset_root() -> str:
    """Give the directory below which downloaded and created files are kept.

    Returns
    -------
    str
        What `set_dataset_root` was given; else the value of the environment's
        ``CHAINER_DATASET_ROOT``, unless that is empty; else ``$HOME/.chainer/dataset``.
    """
    if _chosen is not None:
        return _chosen
    root = os.environ.get("CHAINER_DATASET_ROOT")
    return root or os.path.join(os.path.expanduser("~"), ".chainer", "dataset")


def set_dataset_root(path: str | os.PathLike[str]) -> None:
    """Set the directory below which downloaded and created files are kept.

    Holds for this process and those that it forks from then on. Spawned processes look into the
    environment.

    Parameters
    ----------
    path : str or path
        Taken as it is: it need not exist, and a relative one belongs to whatever the working
        directory is when the cache is used.

    Raises
    ------
    TypeError
        If ``path`` is neither a string nor a path.
    """
    global _chosen
    root = os.fspath(path)
    if not isinstance(root, str):
        raise TypeError(f"the dataset root must be a str or a path, not {type(path).__name__}")
    _chosen = root


def get_dataset_directory(dataset_name: str, create_directory: bool = True) -> str:
    """Give the directory of one dataset below the root.

    Parameters
    ----------
    dataset_name : str
        Joined with the root; it may contain slashes.
    create_directory : bool
        Whether to make the directory, with those above it, unless it exists.

    Returns
    -------
    str
        The directory's path.

    Raises
    ------
    OSError
        If the directory cannot be made.
    """
    path = os.path.join(get_dataset_root(), dataset_name)
    if create_directory:
        make_directory(path)
    return path


def make_directory(path: str) -> None:
    """Makes a directory, with those above it, unless it exists."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        advice = (
            f"{error.strerror}. The dataset root is {get_dataset_root()!r}; set_dataset_root() "
            "or the environment's CHAINER_DATASET_ROOT choose another. No directory"
        )
        raise OSError(error.errno, advice, path) from None

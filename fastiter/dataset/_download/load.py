"""Files that a function of the user's makes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fastiter.dataset._download.root import get_dataset_root, make_directory


def cache_or_load_file(
    path: str | os.PathLike[str],
    creator: Callable[[str], Any],
    loader: Callable[[Any], Any],
) -> Any:
    """Load a file, or create it first if it is not there.

    However many threads and processes call this at once, one of them creates the file, and the
    others wait for it and load it. Where locks do nothing, as on some network file systems, several
    may create it; what lies at ``path`` is a whole file all the same, that of the first.

    Parameters
    ----------
    path : str or path
        The file's place. Its directory is made if it is not there.
    creator : callable
        ``creator(temporary_path)`` writes the file and returns its content. The temporary path has
        the same last part as ``path``, and lies in a folder beside it that is removed afterwards.
        The creator may use the cache itself, for other files. What it leaves may also be a
        directory.
    loader : callable
        ``loader(path)`` returns the content of the file.

    Returns
    -------
    object
        What ``creator`` or ``loader`` returned.

    Raises
    ------
    OSError
        If the file cannot be written, the directory cannot be made, or the creator left no file.
    RuntimeError
        If the creator calls this for the path that it is creating; or if the dataset root is a
        file, as in Chainer.

    Notes
    -----
    Exceptions of the two callables pass through. After an error nothing new is left but a
    lock file.
    """
    target = os.path.abspath(os.fsdecode(path))
    if os.path.exists(target):
        return loader(path)
    root = get_dataset_root()
    if os.path.exists(root) and not os.path.isdir(root):
        raise RuntimeError(
            f"the dataset root {root!r} is a file, expected a directory: set_dataset_root() or the "
            "environment's CHAINER_DATASET_ROOT choose another"
        )
    # Here, so that importing fastiter does not wait for them.
    from fastiter.dataset._download.lock import locked
    from fastiter.dataset._download.place import temporary_place

    make_directory(os.path.dirname(target))
    with locked(target):
        if not os.path.exists(target):
            with temporary_place(target) as place:
                content = creator(place.path)
                if not os.path.exists(target):  # else a lock did nothing, and another was first
                    place.keep()
                return content
    return loader(path)

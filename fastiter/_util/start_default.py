"""The default start method of multiprocessing, which only the program may set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def default_method_kept() -> Iterator[None]:
    """Keep the default start method unset within the block, where multiprocessing would set it by
    reading it."""
    import multiprocessing  # which few users of progress bars have imported

    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        default = multiprocessing.get_all_start_methods()[0]
        if before is None and multiprocessing.get_start_method(allow_none=True) == default:
            multiprocessing.set_start_method(None, force=True)

"""Whether the interpreter exits."""

from __future__ import annotations

import threading

_begun = False


def begin() -> None:
    """Called by the exit handlers of whatever has workers or threads."""
    global _begun
    _begun = True


def stay_away() -> None:
    """Stops a daemon thread that calls `next()` while the interpreter exits: whatever it was given
    or told now would end in a traceback on stderr.

    Raises
    ------
    RuntimeError
        In the main thread, which runs the exit handlers.
    """
    if not _begun:
        return
    if threading.current_thread() is threading.main_thread():
        raise RuntimeError("next() is possible no more while the interpreter exits")
    threading.Event().wait()

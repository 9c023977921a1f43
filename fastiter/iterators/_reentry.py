"""Calls that come while their own thread is in ``next()`` of the same iterator, below it."""

from __future__ import annotations

import sys
from types import CodeType


def is_amid(code: CodeType, iterator: object) -> bool:
    """Whether this thread is in a method of that code of the iterator, below whoever asks for the
    property that calls this.

    A held lock does not tell: Ctrl-C may have come between a with block's end and the release.
    """
    frame = sys._getframe(2).f_back
    while frame is not None and not (frame.f_code is code and frame.f_locals["self"] is iterator):
        frame = frame.f_back
    return frame is not None


def refusal(action: str, iterator: object) -> RuntimeError:
    """Whoever is called in the middle of ``next()`` may read, save and finalize, but what moves the
    iterator would change what that call goes by."""
    return RuntimeError(
        f"{action} is called while this thread is amid another call of the same "
        f"{type(iterator).__name__}: by its dataset, converter, order sampler or on_error, or by a "
        "signal handler. Do it when that call has returned; state_dict(), stats() and "
        "finalize() are possible at any moment"
    )

"""The outcome of making one batch: the batch, or the error that belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fastiter._util.failures import NothingLeft, stopped_text


class Outcome(NamedTuple):
    """What became of one batch: the batch, or the error that belongs to it."""

    batch: Any
    error: Exception | None = None


def capture(function: Callable[..., Any], *args: Any) -> Outcome:
    """Call ``function`` and keep its result or its exception.

    StopIteration is kept as a RuntimeError, since raised by ``next()`` it would end the
    caller's loop in silence. What is no ``Exception``, like KeyboardInterrupt, passes through.
    """
    try:
        return Outcome(function(*args))
    except NothingLeft as error:
        error.__traceback__ = None  # never shown; or its frames and this outcome keep each other
        return Outcome(None, error)
    except StopIteration as error:
        wrapped = RuntimeError(stopped_text(error))
        wrapped.__cause__ = error
        return Outcome(None, wrapped)
    except Exception as error:
        return Outcome(None, error)

"""Fetching the examples of a batch from a dataset, and keeping what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What became of one batch: the batch, or the error that belongs to it."""

    batch: Any
    error: Exception | None = None


def fetch_examples(dataset: Any, indices: list[int]) -> list[Any]:
    """Get the examples at ``indices``, by ``dataset.__getitems__(indices)`` where it exists.

    Raises
    ------
    ValueError
        If ``__getitems__`` gives another number of examples. What the dataset raises passes.
    """
    getitems = getattr(dataset, "__getitems__", None)
    if getitems is None:
        return [dataset[index] for index in indices]
    examples = list(getitems(indices))
    if len(examples) != len(indices):
        raise ValueError(
            f"dataset.__getitems__ returned {len(examples)} examples for {len(indices)} indices"
        )
    return examples


def capture(function: Callable[..., Any], *args: Any) -> Outcome:
    """Call ``function`` and keep its result or its exception.

    StopIteration is kept as a RuntimeError, since raised by ``next()`` it would end the
    caller's loop in silence. What is no ``Exception``, like KeyboardInterrupt, passes through.
    """
    try:
        return Outcome(function(*args))
    except StopIteration as error:
        wrapped = RuntimeError(f"StopIteration was raised while a batch was made: {error!r}")
        wrapped.__cause__ = error
        return Outcome(None, wrapped)
    except Exception as error:
        return Outcome(None, error)

"""Batched access through datasets that wrap others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastiter.dataset.mixin import DatasetMixin

Getitems = Callable[[list[int]], list[Any]]


def offered(wrapper: DatasetMixin, cls: type[DatasetMixin], bases: Iterable[Any]) -> bool:
    """Whether ``wrapper`` may be asked for several examples at once.

    All of its ``bases`` can be, and its examples are still those that ``cls`` gives: a subclass
    with a ``get_example`` or ``__getitem__`` of its own must be asked through these.
    """
    return (
        getattr(wrapper.get_example, "__func__", None) is cls.get_example
        and type(wrapper).__getitem__ is DatasetMixin.__getitem__
        and all(hasattr(base, "__getitems__") for base in bases)
    )


def refused(wrapper: object) -> AttributeError:
    """The error by which ``hasattr`` and ``getattr`` see that there is no ``__getitems__``."""
    return AttributeError(
        f"this {type(wrapper).__name__} has no __getitems__, since what it wraps has none"
    )


def fetch(base: Any, indices: list[int]) -> list[Any]:
    """``base.__getitems__(indices)``, checked to give as many examples as were asked for."""
    examples = list(base.__getitems__(indices))
    if len(examples) != len(indices):
        raise ValueError(
            f"{type(base).__qualname__}.__getitems__ returned {len(examples)} examples for "
            f"{len(indices)} indices"
        )
    return examples

"""What datasets are made of: others, and lists. How long they are, and what if they are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def length_of(name: Any, dataset: Any) -> int:
    """Length of one of several datasets.

    Raises
    ------
    TypeError
        If it has none.
    """
    if not hasattr(type(dataset), "__len__"):
        raise TypeError(
            f"dataset {name!r} must be a sequence with a length, not {type(dataset).__qualname__}"
        )
    return len(dataset)


def common_length(datasets: Mapping[Any, Any]) -> int:
    """Length of all of the datasets, which have names or numbers.

    Raises
    ------
    TypeError
        If one of them has none.
    ValueError
        If there are no datasets, or one of them is longer or shorter than the first.
    """
    if not datasets:
        raise ValueError("no datasets are given: pass at least one")
    lengths = {name: length_of(name, dataset) for name, dataset in datasets.items()}
    first, length = next(iter(lengths.items()))
    for name, other in lengths.items():
        if other != length:
            raise ValueError(
                f"dataset {name!r} has {other} examples where {first!r} has {length}: all datasets "
                "must be equally long"
            )
    return length


def iterated(name: str, expected: str, value: Any) -> Iterator[Any]:
    """An iterator over ``value``, an argument of that name.

    Raises
    ------
    TypeError
        If nothing iterates over it.
    """
    try:
        return iter(value)
    except TypeError:
        raise TypeError(
            f"{name} must be {expected}, not {value!r} of type {type(value).__qualname__}"
        ) from None

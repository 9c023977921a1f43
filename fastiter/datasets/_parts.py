"""Checks of indices and arguments that several datasets share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastiter._fetch.dataset_access import Columns, columns_of, epochs_of, is_arrow
from fastiter._plan.epochs import dataset_length


def length_of(name: Any, dataset: Any) -> int:
    """Return the length of one of several datasets; TypeError if it has none."""
    if not hasattr(type(dataset), "__len__"):
        raise TypeError(
            f"dataset {name!r} must be a sequence with a length, not {type(dataset).__qualname__}"
        )
    return fixed_length(dataset)


def fixed_length(dataset: Any) -> int:
    """Return the length of a dataset; ValueError if it differs from epoch to epoch."""
    if epochs_of(dataset) is not None:
        raise ValueError(
            f"a seed gives this {type(dataset).__qualname__} other rows, and another number of "
            "them, in each epoch, and a dataset over it would keep those of one: make it of parts "
            "of its source, or of several sources, or without seed="
        )
    return dataset_length(dataset)


def common_columns(datasets: Sequence[Any]) -> Columns | None:
    """Return the facts about fields that datasets of Arrow columns or of tokens have in common, for
    batches made of examples; None for others. ValueError if two pad a field in different ways."""
    parts = [columns for each in datasets if is_arrow(each) and (columns := columns_of(each))]
    if not parts or len(parts) < len(datasets) or len({part.mode for part in parts}) > 1:
        return None
    mode, keys, *_ = parts[0]
    names = [None] if mode is None else keys
    fills: dict[Any, Any] = {}
    for part in parts:
        given = part.fills if isinstance(part.fills, dict) else dict.fromkeys(names, part.fills)
        for name, fill in given.items():
            known = fills.setdefault(name, fill) if fill is not None else None
            if known != fill and repr(known) != repr(fill):  # NaN differs from itself
                raise ValueError(
                    f"the datasets pad {'examples' if name is None else repr(name)} by {known} and "
                    f"by {fill}: give them one padding, on one side"
                )
    nested = [part.nested or {} for part in parts]
    inner = {name: nested[0][name] for name in set(nested[0]).intersection(*nested)}
    lists: frozenset[Any] = frozenset().union(*(part.lists for part in parts))
    padding = fills.get(None) if mode is None else fills or None
    return Columns(mode, keys, (), False, (), padding, lists, inner, True)


def common_length(lengths: Iterable[tuple[Any, int]], what: str) -> int:
    """Return the length of several named parts; ValueError if they differ."""
    lengths = list(lengths)
    if len({length for _, length in lengths}) > 1:
        each = ", ".join(f"{name!r}: {length}" for name, length in lengths)
        raise ValueError(f"{what} must have the same length, but their lengths are {each}")
    return lengths[0][1]


def columns_length(datasets: Mapping[Any, Any]) -> int:
    """Return the length of datasets that stand side by side; ValueError if there is none."""
    if not datasets:
        raise ValueError("no datasets are given: pass at least one")
    lengths = [(name, length_of(name, dataset)) for name, dataset in datasets.items()]
    return common_length(lengths, "all datasets")

"""The epochs of samplers, drawn and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastiter._plan.epoch_sampler import (
    Epoch,
    EpochSampler,
    gives_batches,
    is_of_users,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter._plan.epoch_sampler import Cutting


def gives_fresh_orders(sampler: Any) -> bool:
    """Whether a sampler permutes, only measures the order that it is called with, and keeps none
    that it returns. What a subclass of it does is not known."""
    return bool(vars(type(sampler)).get("_gives_fresh_orders"))


def gives_permutations(sampler: Any) -> bool:
    """Whether the orders of such a sampler are known to be permutations of 0 .. n - 1. A generator
    that is not NumPy's may give what it likes."""
    if not gives_fresh_orders(sampler):
        return False
    state = sampler._random_state
    return state is None or isinstance(state, (np.random.RandomState, np.random.Generator))


def examples_of(sampler: EpochSampler, dataset_size: int, size: int | None) -> int:
    """The number of examples in an epoch: those of the dataset or, where each comes once, as many
    as the epoch before had, whose ``size`` is given."""
    return size if sampler.permutes and size is not None else dataset_size


def draw_epoch(
    sampler: EpochSampler,
    number: int,
    dataset_size: int,
    size: int | None,
    cuttings: Sequence[Cutting],
) -> Epoch:
    """Draw the epoch of that number, and check it.

    ``size`` is the length of the orders before, which an order must have, too; None if they vary.
    ``cuttings`` are those of the epoch, of which one is usual; none of an order sampler's.
    """
    try:
        epoch = sampler.epoch(number, examples_of(sampler, dataset_size, size), cuttings)
    except StopIteration as error:  # which would end a loop
        raise RuntimeError(f"{sampler.label(number)} raised StopIteration") from error
    source, copy = sampler.label(number), is_of_users(sampler)
    if not isinstance(epoch, Epoch):
        raise TypeError(
            f"{source} must return fastiter.iterators.Epoch(order), or Epoch(order, cuts), not "
            f"{epoch!r:.80} of type {type(epoch).__qualname__}"
        )
    order, cuts = epoch
    if cuts is not None and not cuttings:
        raise TypeError(gives_batches(sampler))
    if cuts is None and cuttings:
        raise TypeError(
            f"{source} gave no cuts: return Epoch(order, cuts), or pass a sampler of orders with "
            "batch_size=, not as batch_sampler="
        )
    order = checked_order(order, dataset_size, size=size, copy=copy, source=source)
    if copy and len(order) == 0:
        raise ValueError(f"{source} gave an empty order (dataset length {dataset_size})")
    cuts = _checked_cuts(cuts, len(order), source, copy=copy) if cuttings else None
    if copy and len(cuttings) < 2:
        _check_counts(sampler, number, dataset_size, Epoch(order, cuts), cuttings)
    return Epoch(order, cuts)


def _check_counts(
    sampler: EpochSampler, number: int, n: int, epoch: Epoch, cuttings: Sequence[Cutting]
) -> None:
    """Check what a sampler tells of an epoch, by which far steps are found."""
    name, found, count = "size", len(epoch.order), None
    if cuttings:
        name, found = "n_batches", len(epoch.cuts) - 1
        count = sampler.n_batches(number, n, cuttings[0].num_ranks)
    elif sampler.varies and type(sampler).size is not EpochSampler.size:
        count = sampler.size(number, n, found)
    if count not in (None, found):
        raise ValueError(
            f"{sampler.label(number)} gave {found} {'batches' if cuttings else 'examples'}, but "
            f"its {name}() tells of {count}"
        )


def _checked_cuts(values: Any, size: int, source: str, *, copy: bool) -> npt.NDArray[np.int64]:
    cuts = np.asarray(values)
    if cuts.ndim != 1 or cuts.dtype.kind not in "iu":
        raise ValueError(
            f"the cuts of {source} must be a one-dimensional array of integers, not of shape "
            f"{cuts.shape} and dtype {cuts.dtype}"
        )
    cuts = np.array(cuts, np.int64) if copy else np.ascontiguousarray(cuts, np.int64)
    if cuts.size < 2 or cuts[0] != 0 or cuts[-1] != size or not (cuts[1:] > cuts[:-1]).all():
        raise ValueError(
            f"the cuts of {source} must ascend from 0 to the length of the order, {size}, without "
            f"empty batches, but are {values!r:.80}"
        )
    cuts.flags.writeable = False
    return cuts


def checked_order(
    order: Any,
    dataset_size: int,
    *,
    size: int | None = None,
    copy: bool = True,
    source: str = "order_sampler",
) -> Any:
    """Check that ``source`` gave an order of a dataset, of ``size`` if that is given, and return it
    as a read-only int64 array; without ``copy`` one that is not used elsewhere may be kept.

    A virtual order is returned itself, and its slices are checked when they are taken. If it has an
    ``index_bound``, its indices are below that and its slices int64 arrays of their own, which need
    no check.
    """
    if is_virtual(order):
        checked = order
        if (bound := getattr(order, "index_bound", 0)) > dataset_size:
            raise ValueError(
                f"{source} gave an order of {bound} examples, but the dataset has {dataset_size}"
            )
    else:
        checked = checked_indices(order, dataset_size, source, copy=copy)
        checked.flags.writeable = False
    if size is not None and len(checked) != size:
        raise ValueError(
            f"{source} gave an order of {len(checked)} indices where {size} were expected: "
            "the size of the order must stay the same, but for an EpochSampler with varies = True"
        )
    return checked


def is_virtual(order: Any) -> bool:
    """Whether ``order`` computes its slices, rather than being an array or array-like."""
    return (
        hasattr(order, "__len__")
        and hasattr(order, "__getitem__")
        and not hasattr(order, "__array__")
        and not isinstance(order, (list, tuple, range, str, bytes, bytearray, memoryview, Mapping))
    )


def checked_indices(
    values: Any, dataset_size: int, source: str, *, copy: bool = True
) -> npt.NDArray[np.int64]:
    expected = f"{source} must give a one-dimensional array of integers"
    try:
        array = np.asarray(values)
    except Exception as error:
        raise ValueError(f"{expected}, not {type(values).__qualname__}: {error}") from error
    if array.ndim != 1:
        raise ValueError(f"{expected}, not {type(values).__qualname__} of shape {array.shape}")
    if array.size == 0 and isinstance(values, (list, tuple)):
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{expected}, not of dtype {array.dtype}")
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= dataset_size:
            if array.size > dataset_size and low == 0 and high == array.size - 1:
                # As the orders of this package, which begin anew only after an epoch.
                raise ValueError(
                    f"{source} gave the {array.size} indices 0 .. {high}, and the dataset has "
                    f"{dataset_size} examples now: it has become shorter since the epoch before. "
                    "Call reset(), or make the iterator again"
                )
            raise ValueError(
                f"{source} gave the index {low if low < 0 else high}, outside 0 .. "
                f"{dataset_size - 1} (dataset length {dataset_size})"
            )
    return np.array(array, dtype=np.int64) if copy else array.astype(np.int64, copy=False)

"""How often an index was drawn before, in its epoch: what tells its draws apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastiter.iterators.samplers._batches import CallableBatches
from fastiter.iterators.samplers._seeded import is_seeded
from fastiter.iterators.samplers.shuffle import ShuffleOrderSampler

if TYPE_CHECKING:
    import numpy.typing as npt


def repeats_of(sampler: Any, order: Any) -> Any:
    """For each position of an order how often its index stands before it, to be sliced; None if no
    index comes twice. A computed order tells by ``repeats()``."""
    if hasattr(order, "repeats"):
        return order.repeats()
    if not isinstance(order, np.ndarray) or not _may_repeat(sampler):
        return None
    repeats = repeats_in(order)
    return repeats if repeats.any() else None


def _may_repeat(sampler: Any) -> bool:
    if is_seeded(sampler) and not isinstance(sampler, CallableBatches):
        return sampler._repeats
    return type(sampler) is not ShuffleOrderSampler


def repeats_in(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """For each place of an array how often its value stands before it."""
    n = len(values)
    places = np.argsort(values, kind="stable")
    ordered = values[places]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    repeats = np.empty(n, dtype=np.int32)
    repeats[places] = np.arange(n) - np.repeat(starts, np.diff(starts, append=n))
    return repeats

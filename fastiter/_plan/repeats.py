"""Counts of the earlier draws of an index in its epoch, which tell its draws apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastiter._plan.drawing import gives_fresh_orders
from fastiter._plan.epoch_sampler import is_epoch_sampler

if TYPE_CHECKING:
    import numpy.typing as npt


def repeats_of(sampler: Any, order: Any) -> Any:
    """For each position of an order how often its index stands before it, to be sliced; None if no
    index comes twice. A computed order tells by ``repeats()``."""
    if hasattr(order, "repeats"):
        return order.repeats()
    permutes = is_epoch_sampler(sampler) and sampler.permutes
    if permutes or gives_fresh_orders(sampler) or not isinstance(order, np.ndarray):
        return None
    ordered = np.sort(order)  # faster than `repeats_in`
    return repeats_in(order) if (ordered[1:] == ordered[:-1]).any() else None


def repeats_in(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """For each place of an array how often its value stands before it."""
    n = len(values)
    places = np.argsort(values, kind="stable")
    ordered = values[places]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    repeats = np.empty(n, dtype=np.int32)
    repeats[places] = np.arange(n) - np.repeat(starts, np.diff(starts, append=n))
    return repeats

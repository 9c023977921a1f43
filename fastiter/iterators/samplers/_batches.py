"""Batch samplers: they give an epoch its order and its cuts.

An epoch is an order of n rows and cuts, int64[m + 1]: batch k is ``order[cuts[k]:cuts[k + 1]]``,
that of one rank. With ``num_ranks`` ranks a step takes the next ``num_ranks`` batches, one for each
rank in turn; what the last step has too few batches for, is shared out evenly by ``tail``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastiter._plan.epoch_sampler import Cutting, Epoch, EpochSampler
from fastiter.iterators.samplers._orders import CompactOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def epoch_by_cuttings(
    sampler: Any, number: int, n_examples: int, cuttings: Sequence[Cutting]
) -> Epoch:
    """The epoch of a batch sampler under successive cuttings, the first of which starts at 0.

    Up to where the next cutting starts the epoch is that of the one before; what is left then is
    planned anew, by ``sampler._plan_batches(rows, n_examples, number, cutting)``: the order and the
    cuts of ``rows``, dataset indices that ascend, or of all examples if that is None. Cuts ascend
    strictly from 0. The number of batches is a multiple of ``cutting.num_ranks``, if all limits
    have to be kept: else the rows of the last step are shared out evenly.
    """
    first, *others = cuttings or (Cutting(0, 1, sampler.limits()),)
    order, cuts = sampler._plan_batches(None, n_examples, number, first)
    for cutting in others:
        start = cutting.start
        n_before = int(np.searchsorted(cuts, start))
        rest = np.sort(order[start:])
        order_rest, cuts_rest = sampler._plan_batches(rest, n_examples, number, cutting)
        joined = np.concatenate([order[:start], order_rest[:]])
        is_right = isinstance(order, CompactOrder)
        order = CompactOrder(joined, order.index_bound) if is_right else joined
        cuts = np.concatenate([cuts[:n_before], cuts_rest + start])
    return Epoch(order, cuts)


class CallableBatches(EpochSampler):
    """The batches of a function of the user's, ``function(epoch)``, which is pure."""

    kind: ClassVar[int] = 9

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Cutting] = ()) -> Epoch:
        expected = f"{self.label(number)} must give a list of one-dimensional arrays of integers"
        try:
            batches = [np.asarray(batch) for batch in self.function(number)]
        except TypeError as error:
            raise TypeError(f"{expected}: {error}") from error
        for place, batch in enumerate(batches):
            if batch.ndim != 1 or batch.dtype.kind not in "iu" or batch.size == 0:
                raise ValueError(
                    f"{expected}, none of them empty, but batch {place} is of shape {batch.shape} "
                    f"and dtype {batch.dtype}"
                )
        if not batches:
            raise ValueError(f"{expected}, but gave no batch")
        cuts = np.zeros(len(batches) + 1, dtype=np.int64)
        np.cumsum([batch.size for batch in batches], out=cuts[1:])
        return Epoch(np.concatenate(batches).astype(np.int64, copy=False), cuts)

    def label(self, number: int) -> str:
        return f"batch_sampler({number})"

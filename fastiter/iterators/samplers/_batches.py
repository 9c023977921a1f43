"""Batch samplers: they give an epoch its order and its cuts.

An epoch is an order of n rows and cuts, int64[m + 1]: batch k is ``order[cuts[k]:cuts[k + 1]]``,
that of one rank. With ``num_ranks`` ranks a step takes the next ``num_ranks`` batches, one for each
rank in turn; what the last step has too few batches for, is shared out evenly by ``tail``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastiter.iterators.samplers._seeded import Record, SeededSampler, digest_words

Indices: TypeAlias = "npt.NDArray[np.int64]"
#: A scalar argument of a batch sampler that decides about cuts.
Limit = int | float | None


class CompactOrder:
    """An order of 4 bytes an example, whose slices are int64 arrays. An epoch's plan is large."""

    def __init__(self, rows: npt.NDArray[np.uint32], index_bound: int) -> None:
        self._rows = rows
        self.index_bound = index_bound  #: all indices are below it

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice) -> Indices:
        return self._rows[part].astype(np.int64)


class Cutting(NamedTuple):
    """How rows of an epoch are cut into batches, from a position on."""

    start: int  #: position in the epoch, 0 for its beginning
    num_ranks: int
    limits: tuple[Limit, ...]  #: `SeededBatchSampler._limits`


class SeededBatchSampler(SeededSampler):
    """Base of the batch samplers whose epochs are derived from a seed and a number.

    A subclass defines ``_KIND``, `_plan_batches`, and as it needs `_limits`, `_count` and
    ``_arguments``. The latter are what must be the same for a state to load (by their digest), of
    a fixed ``repr``; `_limits` are what may change in mid-epoch. Neither contains the other.

    All of it is pure: equal arguments give equal results, in every process and release.
    """

    def _plan_batches(
        self, rows: Indices | None, n_examples: int, number: int, cutting: Cutting
    ) -> tuple[Indices | CompactOrder, Indices]:
        """Give the order and the cuts of rows of the epoch of that number.

        Parameters
        ----------
        rows : int64[k], or None
            Dataset indices that are to be in the order. None for all, 0 .. n_examples - 1, which
            is an epoch whose cutting never changed. Else those that are left of an epoch that was
            begun under another cutting, ascending. Not to be changed.
        n_examples : int
            Length of the dataset. If a sampler knows of another one, it raises a ValueError.
        number : int
            That of the epoch, from 0.
        cutting : Cutting
            ``num_ranks`` and ``limits`` to plan by, which need not be this object's own: of a state
            they may be those of the run that saved it. ``start`` is of no concern.

        Returns
        -------
        order : int64[n], contiguous, its own memory; or a `CompactOrder`
        cuts : int64[m + 1], contiguous, its own memory
            Ascending strictly, from 0 to n, with n > 0 where ``rows`` is None. A sampler that
            leaves rows out (a last batch that is not full) leaves them out of ``order``.

            Batches 0 .. num_ranks - 1 are the first step's, one for each rank, and so on. If m is
            no multiple of num_ranks, all rows of the last step are shared out evenly, whatever
            their cuts: a sampler with limits to keep gives a multiple.

        Notes
        -----
        The iterator keeps both arrays, read-only, until the epoch ends. They are not checked.
        """
        raise NotImplementedError

    def _limits(self) -> tuple[Limit, ...]:
        """The scalar arguments that decide about cuts and may be others when a state is loaded,
        such as batch size and token budget. They stand in the state as they are."""
        return ()

    def _count(self, n_examples: int, num_ranks: int) -> int | None:
        """Batches in an epoch, if all epochs have as many; None if an epoch has to be planned to
        know. With a number here the address of a far step is found without planning those
        before it."""
        return None

    def _known_count(self, number: int, num_ranks: int) -> int | None:
        """Batches in the epoch of that number, if it was planned before, or all have as many."""
        return None

    def _n_ahead(self) -> int:
        """Length of the dataset, if epochs are to be planned ahead in a thread; else 0. That is for
        those that take long, release the GIL, lock nothing and call nothing of the user's."""
        return 0

    # What follows is for the iterators.

    def _population(self, order_size: int, dataset_size: int) -> int:
        return dataset_size  # epochs may have any number of rows

    def _draw_batches(
        self, n_examples: int, number: int, cuttings: Sequence[Cutting]
    ) -> tuple[Indices | CompactOrder, Indices]:
        """The epoch of that number under successive cuttings, the first of which starts at 0.

        Up to where the next cutting starts the epoch is that of the one before; what is left then
        is planned anew.
        """
        order, cuts = self._plan_batches(None, n_examples, number, cuttings[0])
        for cutting in cuttings[1:]:
            start = cutting.start
            n_before = int(np.searchsorted(cuts, start))
            rest = np.sort(order[start:])
            order_rest, cuts_rest = self._plan_batches(rest, n_examples, number, cutting)
            order = np.concatenate([order[:start], order_rest[:]])
            cuts = np.concatenate([cuts[:n_before], cuts_rest + start])
        return order, cuts

    def _draw(self, n_examples: int, number: int) -> Any:
        raise TypeError(
            f"{type(self).__qualname__} gives batches: use batch_sampler=, not order_sampler="
        )


class CallableBatches(SeededBatchSampler):
    """The batches of a function of the user's, ``function(epoch)``, which is pure.

    Its digests of epochs stand in the place of a seed: a state tells that of the epoch in which it
    was saved.
    """

    _KIND: ClassVar[int] = 9
    _MOST_DIGESTS = 4  # of epochs around the current one

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function
        self._words = (0, 0)
        self._next_number = 0
        self._digests: dict[int, tuple[int, int]] = {}

    def _draw_batches(
        self, n_examples: int, number: int, cuttings: Sequence[Cutting]
    ) -> tuple[Indices, Indices]:
        source = f"batch_sampler({number})"
        expected = f"{source} must give a list of one-dimensional arrays of integers"
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
        order = np.concatenate(batches).astype(np.int64, copy=False)
        low, high = int(order.min()), int(order.max())
        if low < 0 or high >= n_examples:
            raise ValueError(
                f"{source} gave the index {low if low < 0 else high}, outside 0 .. "
                f"{n_examples - 1} (dataset length {n_examples})"
            )
        cuts = np.zeros(len(batches) + 1, dtype=np.int64)
        np.cumsum([batch.size for batch in batches], out=cuts[1:])
        arrays = (array.astype("<i8", copy=False).tobytes() for array in (cuts, order))
        self._digests[number] = digest_words(*arrays)
        if len(self._digests) > self._MOST_DIGESTS:
            del self._digests[next(iter(self._digests))]
        return order, cuts

    def _record(self, n_drawn: int, n_examples: int, position: int | None = None) -> Record:
        if n_drawn - 1 not in self._digests:
            self._draw_batches(n_examples, n_drawn - 1, ())
        return Record(self._KIND, self._digests[n_drawn - 1], n_drawn, n_examples)

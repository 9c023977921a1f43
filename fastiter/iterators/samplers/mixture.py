"""Orders that mix several sources in given shares."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import isfinite, lcm
from numbers import Rational
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fastiter._plan.epoch_sampler import Epoch, EpochSampler, Seed, key_of, words_of
from fastiter._plan.repeats import repeats_in
from fastiter._util.arguments import checked_int, iterated
from fastiter.iterators.samplers._orders import ComputedOrder, joined
from fastiter.iterators.samplers.shuffle import OrderSampler

if TYPE_CHECKING:
    from fractions import Fraction

    import numpy.typing as npt

    from fastiter._order.permutation import VirtualOrder
    from fastiter._order.sampling import Interleaving

    Counts = npt.NDArray[np.int64]

__all__ = ["MixtureOrderSampler"]

_DEFICIT_BITS = 40  # of the fraction of a draw, where sources are compared


class MixtureOrderSampler(EpochSampler, OrderSampler):
    """Mixes the examples of several sources in given shares.

    For a `~fastiter.datasets.ConcatenatedDataset` of the sources. At every position of an epoch the
    number of examples of each source so far differs by less than 1 from its share. All examples of
    a source come in a random order, then again in another one, and so on; an epoch goes on where
    the one before has left each source.

    The order is computed as it is read. Per source it takes 8 bytes for 4096 examples of an epoch,
    and 8 for each example of sources of up to 65,536. To find a position in an epoch for the first
    time takes 10 to 60 ns for each example before it.

    Parameters
    ----------
    sizes : sequence of int
        Number of examples of each source, in the order in which they are concatenated: 1 to 65535
        sources of at least 1 example.
    weights : sequence of float
        A weight for each source, of any sum, zero or positive and finite. A float counts as the
        decimal number that it is printed as: shares of 0.1 and 0.9 are exact.
    seed : int, sequence of int, or numpy.random.SeedSequence
        Ints of any size, none negative. Each pass through a source has another order of the seed.
    stop : 'first', 'all' or int
        End of an epoch. 'first': before the share of any source exceeds its size, so that no
        example repeats within the first epoch. 'all': when the share of each source is at least its
        size. An int: after as many examples. All epochs have that length, which follows from
        ``weights`` whatever the ``schedule``.
    schedule : sequence of (int, weights), optional
        Other weights from an example on, counted over all epochs since the start, in ascending
        order. Points behind the position of a state may be added, changed and taken away before it
        is loaded.

    Notes
    -----
    By earliest deadlines within the windows of proportionate fairness (Baruah, Cohen, Plaxton and
    Varvel, Algorithmica 15, 1996). Where an epoch's shares are not whole, the sources that were
    drawn too little in the epochs before are preferred. After a point of the schedule a count may
    be further from its share, if there are more than 3 sources or a weight becomes zero: by less
    than 2 in all that was tried. Sources of more than 65,536 examples have the pseudo-random orders
    of `VirtualShuffleOrderSampler`.
    """

    kind: ClassVar[int] = 5

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        seed: Seed,
        *,
        stop: str | int = "first",
        schedule: Iterable[tuple[int, Sequence[float]]] | None = None,
    ) -> None:
        from fastiter._order import sampling

        numbers = iterated("sizes", "a sequence of integers", sizes)
        self._source_sizes = tuple(checked_int("sizes", size) for size in numbers)
        n_sources = len(self._source_sizes)
        if not 1 <= n_sources <= sampling.SOURCES_MAX:
            raise ValueError(
                f"sizes must be of 1 to {sampling.SOURCES_MAX} sources, not {n_sources}"
            )
        shares = _checked_shares("weights", weights, n_sources)
        self._epoch_size = _checked_stop(stop, self._source_sizes, shares)
        if self._epoch_size > sampling.SLOTS_MAX:
            raise ValueError(
                f"an epoch would have {self._epoch_size} examples, but {sampling.SLOTS_MAX} is the "
                "most: set stop to a number of examples"
            )
        points = _checked_schedule(schedule, n_sources)
        if not points or points[0][0] > 0:
            points = [(0, shares), *points]
        self.seed = words_of(seed)
        self._mixture = Mixture(
            self._source_sizes,
            self.seed,
            self._epoch_size,
            tuple((example, _whole_weights(shares)) for example, shares in points),
        )

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Any] = ()) -> Epoch:
        n_here = sum(self._source_sizes)
        if n_examples != n_here:
            raise ValueError(
                f"the sources have {n_here} examples, but the dataset has {n_examples}"
            )
        return Epoch(MixtureOrder(self._mixture, number))

    def arguments(self) -> tuple[Any, ...]:
        return self._source_sizes, self._epoch_size, self._mixture.points

    def record(self, n_drawn: int, n_examples: int, position: int | None, *digest: Any) -> Any:
        # Without the points of the schedule behind the position, which may change.
        n = self._epoch_size
        drawn = max(0, n_drawn - 1) * n + (n if position is None else position)
        points = tuple(point for point in self._mixture.points if point[0] < drawn)
        record = super().record(n_drawn, n_examples, position, *digest)
        return record._replace(key=key_of(self.seed, (self._source_sizes, n, points)))


# -- arguments -------------------------------------------------------------------------------------


def _checked_shares(name: str, weights: Any, n_sources: int) -> list[Fraction]:
    """The weights, divided by their sum."""
    try:
        shares = [_exact(weight) for weight in weights]
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be a sequence of numbers: {error}") from error
    if len(shares) != n_sources:
        raise ValueError(f"there are {n_sources} sizes, but {len(shares)} {name}")
    if None in shares or min(shares) < 0 or not any(shares):
        raise ValueError(
            f"{name} must be finite, not negative, and not all zero, but are {list(weights)}"
        )
    total = sum(shares)
    return [share / total for share in shares]


def _exact(weight: Any) -> Any:
    from fractions import Fraction  # here, since it imports decimal, which takes a while

    if isinstance(weight, Rational):
        return Fraction(weight)
    number = float(weight)
    return Fraction(repr(number)) if isfinite(number) else None


def _checked_stop(stop: Any, sizes: tuple[int, ...], shares: list[Fraction]) -> int:
    name = stop if isinstance(stop, str) else None
    if name == "first":
        return min(size // share for size, share in zip(sizes, shares, strict=True) if share)
    if name == "all":
        if not all(shares):
            raise ValueError(
                "stop='all' needs positive weights, since a source of weight 0 is never gone "
                "through: give stop a number of examples, or 'first'"
            )
        return max(-(-size // share) for size, share in zip(sizes, shares, strict=True))
    if name is not None or not hasattr(stop, "__index__"):
        raise ValueError(f"stop must be 'first', 'all' or a number of examples, not {stop!r}")
    return checked_int("stop", stop)


def _checked_schedule(schedule: Any, n_sources: int) -> list[tuple[int, list[Fraction]]]:
    points: list[tuple[int, list[Fraction]]] = []
    schedule = () if schedule is None else schedule
    for k, point in enumerate(iterated("schedule", "a sequence of (example, weights)", schedule)):
        try:
            example, weights = point
            example = operator.index(example)
        except (TypeError, ValueError):
            raise TypeError(
                f"schedule must be a sequence of (example, weights), but schedule[{k}] is {point!r}"
            ) from None
        if example < (points[-1][0] + 1 if points else 0):
            raise ValueError(
                f"the examples of schedule must ascend from 0 or more, but schedule[{k}] is at "
                f"{example}" + (f", after {points[-1][0]}" if points else "")
            )
        points.append((example, _checked_shares(f"weights of schedule[{k}]", weights, n_sources)))
    return points


class Weights(NamedTuple):
    """Shares as whole numbers."""

    total: int
    each: tuple[int, ...]


def _whole_weights(shares: list[Fraction]) -> Weights:
    """Exactly, where the total stays small enough; else as good as 2**-56 of the total allows."""
    from fastiter._order import sampling

    total = lcm(*(share.denominator for share in shares))
    if total > sampling.TOTAL_MAX:
        total = sampling.TOTAL_MAX
        each = [max(int(share * total), int(share > 0)) for share in shares]
        each[each.index(max(each))] += total - sum(each)
        return Weights(total, tuple(each))
    return Weights(total, tuple(int(share * total) for share in shares))


# -- what is drawn ---------------------------------------------------------------------------------


class Mixture:
    """The rule of a mixture's orders; finds where each epoch begins in its sources."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        words: tuple[int, int],
        epoch_size: int,
        points: tuple[tuple[int, Weights], ...],
    ) -> None:
        self.sizes = sizes
        self.words = words
        self.epoch_size = epoch_size
        self.points = points
        self.offsets: list[int] = [0, *np.cumsum(sizes).tolist()]
        self._whole: dict[Weights, Interleaving] = {}
        none = np.zeros(len(sizes), dtype=np.int64)
        self._standing = 0, none, none.tolist()  # of the epoch asked for last

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.sizes, self.words, self.epoch_size, self.points

    def __reduce__(self) -> tuple[type[Mixture], tuple[Any, ...]]:
        return Mixture, self.arguments

    def stretches(self, number: int) -> list[Stretch]:
        """The stretches of an epoch; between them the weights change."""
        known, counts, deficits = self._standing
        if number < known:
            known, counts = 0, np.zeros_like(counts)
            deficits = [0] * len(deficits)
        while True:
            stretches = self._stretches(known, counts, deficits)
            if known == number:
                self._standing = known, counts, deficits
                return stretches
            after, lags = stretches[-1].after()
            if len(stretches) == 1 and not any(lags):
                # All epochs are alike until the weights change.
                changes = [at // self.epoch_size for at, _ in self.points]
                stop = min(number, *(epoch for epoch in [*changes, number] if epoch > known))
                after = counts + (after - counts) * (stop - known)
                known = stop - 1
            counts = after
            total = stretches[-1].weights.total
            deficits = [
                deficit + (lag << _DEFICIT_BITS) // total
                for deficit, lag in zip(deficits, lags, strict=True)
            ]
            known += 1

    def _stretches(self, number: int, counts: Counts, deficits: list[int]) -> list[Stretch]:
        start, end = number * self.epoch_size, (number + 1) * self.epoch_size
        examples = [example for example, _ in self.points]
        inside = examples[bisect_right(examples, start) : bisect_left(examples, end)]
        stretches: list[Stretch] = []
        lags = [0] * len(self.sizes)
        for first, stop in zip([start, *inside], [*inside, end], strict=True):
            weights = self.points[bisect_right(examples, first) - 1][1]
            if stretches:
                counts, lags = stretches[-1].after()
                lags = _carried(lags, stretches[-1].weights.total, weights)
            plan = self._interleaving(weights, lags, stop - first, end - first)
            stretches.append(
                Stretch(plan, weights, lags, (first - start, end - first), counts, deficits)
            )
        return stretches

    def _interleaving(
        self, weights: Weights, lags: list[int], size: int, last: int
    ) -> Interleaving:
        from fastiter._order.sampling import Interleaving

        if size < self.epoch_size:
            return Interleaving(list(weights.each), weights.total, lags, size, last)
        plan = self._whole.get(weights)
        if plan is None:
            if len(self._whole) > 1:
                self._whole.clear()
            plan = Interleaving(list(weights.each), weights.total, lags, size, last)
            self._whole[weights] = plan
        return plan


def _carried(lags: list[int], total: int, weights: Weights) -> list[int]:
    """The deficits of sources, in parts of other weights' total. Those of sources of weight 0 are
    shared out, since these are not drawn any more."""
    each = weights.each
    carried = [lag * weights.total // total if w else 0 for lag, w in zip(lags, each, strict=True)]
    rest = -sum(carried)
    carried = [lag + rest * w // weights.total for lag, w in zip(carried, each, strict=True)]
    carried[each.index(max(each))] -= sum(carried)
    return carried


class Stretch:
    """Slots of an epoch at constant weights, and what fills those that are left open."""

    def __init__(
        self,
        plan: Interleaving,
        weights: Weights,
        lags: list[int],
        place: tuple[int, int],
        counts: Counts,
        deficits: list[int],
    ) -> None:
        self.weights = weights
        self.start, last = place
        self._plan = plan
        self._lags = lags
        self._counts = counts  # draws of each source since the first epoch
        # Draws that need not happen: those that come due behind the last slot of the epoch.
        spare = []
        total = weights.total
        for i, weight in enumerate(weights.each):
            draws, part = divmod(lags[i] + last * weight, total)
            if weight and part:
                release = (draws * total - lags[i]) // weight
                spare.append((release, -deficits[i] - (part << _DEFICIT_BITS) // total, i))
        self._spare = sorted(spare, reverse=True)
        self._picks: list[int] = []

    def _fill(self) -> list[int]:
        """The sources of the open slots that the plan knows."""
        open_slots, picks = list(self._plan.open_slots), self._picks
        if len(open_slots) > len(picks):
            picks = []  # all anew, and put in place at the end: threads may share an order
            waiting = self._spare.copy()
            released: list[tuple[int, int]] = []  # a heap: the source most in deficit on top
            for slot in open_slots:
                while waiting and waiting[-1][0] <= slot:
                    heappush(released, waiting.pop()[1:])
                picks.append(heappop(released)[1])
            self._picks = picks
        return picks

    def block(self, number: int) -> tuple[npt.NDArray[np.uint16], Counts]:
        """The sources of a block, and the draws of each one before."""
        from fastiter._order.sampling import BLOCK, OPEN

        sources, drawn = self._plan.block(number)
        picks = self._fill()
        n_before = number * BLOCK - int(drawn.sum())
        drawn += self._counts
        for source in picks[:n_before]:
            drawn[source] += 1
        open_slots = np.flatnonzero(sources == OPEN)
        sources[open_slots] = picks[n_before : n_before + len(open_slots)]
        return sources, drawn

    def after(self) -> tuple[Counts, list[int]]:
        """Draws of each source behind the stretch, and what each lags behind then, times total."""
        drawn = self._plan.drawn()
        for source in self._fill():
            drawn[source] += 1
        size, total = int(drawn.sum()), self.weights.total
        lags = [
            lag + size * weight - total * count
            for lag, weight, count in zip(
                self._lags, self.weights.each, drawn.tolist(), strict=True
            )
        ]
        return self._counts + drawn, lags


class MixturePasses(ComputedOrder):
    """The pass through its source that each position of a `MixtureOrder` belongs to."""

    def __init__(self, order: MixtureOrder) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def _piece(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        from fastiter._order.sampling import BLOCK

        sizes = np.array(self._order._mixture.sizes, dtype=np.int64)
        stretch = self._order._stretch_of(start)
        number, place = divmod(start - stretch.start, BLOCK)
        sources, counts = stretch.block(number)
        passes: npt.NDArray[np.int64]
        passes = (counts[sources] + repeats_in(sources)) // sizes[sources]
        return passes[place : place + stop - start]


class MixtureOrder(ComputedOrder):
    """One epoch's order."""

    def __init__(self, mixture: Mixture, number: int) -> None:
        self._mixture = mixture
        self._number = number
        self.index_bound = mixture.offsets[-1]  #: all indices are below it
        self._stretches = mixture.stretches(number)
        self._passes: dict[int, tuple[int, VirtualOrder]] = {}
        #: a block of indices, and where it begins
        self._kept: tuple[int, npt.NDArray[np.int64]] = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._mixture.epoch_size

    def _piece(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        from fastiter._order import sampling

        stretch = self._stretch_of(start)
        number = (start - stretch.start) // sampling.BLOCK
        first = stretch.start + number * sampling.BLOCK
        kept = self._kept  # threads may share an order
        if kept[0] != first:
            sources, counts = stretch.block(number)
            kept = self._kept = first, sampling.place(sources, counts, self._draws)
        return kept[1][start - first : stop - first]

    def __reduce__(self) -> tuple[type[MixtureOrder], tuple[Any, ...]]:
        return MixtureOrder, (self._mixture, self._number)

    def _key(self) -> Any:
        return self._number, self._mixture.arguments

    def repeats(self) -> MixturePasses:
        """The pass through its source that each position belongs to, to be sliced."""
        return MixturePasses(self)

    def _stretch_of(self, position: int) -> Stretch:
        starts = [stretch.start for stretch in self._stretches]
        return self._stretches[bisect_right(starts, position) - 1]

    def _draws(self, source: int, start: int, count: int) -> npt.NDArray[np.int64]:
        """Indices of the draws of a source, of which ``start`` were before."""
        size = self._mixture.sizes[source]

        def of_pass(start: int, stop: int) -> npt.NDArray[np.int64]:
            number, place = divmod(start, size)
            return self._pass(source, number)[place : place + stop - start]

        draws = joined(start, start + count, of_pass)
        draws += self._mixture.offsets[source]
        return draws

    def _pass(self, source: int, number: int) -> VirtualOrder:
        from fastiter._order.permutation import VirtualOrder, seed_words

        kept = self._passes.get(source)
        if kept is None or kept[0] != number:
            words = seed_words([*self._mixture.words, source])
            kept = number, VirtualOrder(self._mixture.sizes[source], words, number)
            self._passes[source] = kept
        return kept[1]

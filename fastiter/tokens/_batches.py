"""Batches of rows of tokens, as samplers and converters make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastiter._fetch.dataset_access import epochs_of
from fastiter._plan.epoch_sampler import Cutting, Epoch, EpochSampler, Key, Limit, SamplerRecord
from fastiter._util.arguments import checked_flag, checked_int, checked_optional_int
from fastiter.iterators.samplers._batches import epoch_by_cuttings
from fastiter.iterators.samplers._orders import CompactOrder
from fastiter.tokens._dataset import TokenDataset

Indices = npt.NDArray[np.int64]


class TokenBatchSampler(EpochSampler):
    """Batches of rows of a `TokenDataset`: of limited size, and of similar costs on all ranks.

    For ``batch_sampler=``. With several ranks all of them plan the same epoch, and have equally
    many batches. Takes 8 bytes for each row of the dataset, and 24 more while it plans.

    Parameters
    ----------
    dataset : TokenDataset
    batch_size : int, optional
        Rows of a batch; with ``max_tokens``, most rows of a batch. At least one of the two has to
        be given.
    max_tokens : int, optional
        Greatest size of a batch: rows times tokens of the longest row. Rows of similar lengths
        come together.
    balance : {None, "tokens", "attention"}
        Quantity that is about equal in the batches of a step on all ranks: tokens, or the sum of
        squared segment lengths, to which the time of attention is proportional. Needs
        ``batch_size`` alone.
    seed : int, sequence of int, or numpy.random.SeedSequence, optional
        Seed that shuffles rows. By default the dataset's own seed, and its order.
    window : int
        Steps whose rows are dealt, or with ``max_tokens`` sorted, together.
    drop_last : bool
        Whether to leave out the last rows, too few to fill a step.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or a row longer than ``max_tokens``.

    Notes
    -----
    With ``balance``, the rows of ``window`` steps are sorted by cost, and cut into groups of one
    row for each rank, neighbours in the sorted list. Groups of least like costs, of up to as many
    steps, wait for the rows of the next window. Each step takes ``batch_size`` random groups, and
    the rank with the least cost so far gets the costliest row of the next group.
    """

    kind: ClassVar[int] = 8

    tells_epochs = True  # by its indices, where the dataset has other rows in each epoch

    def __init__(
        self,
        dataset: TokenDataset,
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        balance: str | None = None,
        seed: Any = None,
        window: int = 64,
        drop_last: bool = False,
    ) -> None:
        if not isinstance(dataset, TokenDataset):
            raise TypeError(f"dataset must be a TokenDataset, not {type(dataset).__qualname__}")
        self._dataset = dataset
        self._batch_size = checked_optional_int("batch_size", batch_size)
        self._max_tokens = checked_optional_int("max_tokens", max_tokens)
        if self._batch_size is None and self._max_tokens is None:
            raise ValueError("give batch_size, max_tokens, or both: nothing limits a batch")
        if balance not in (None, "tokens", "attention"):
            raise ValueError(f"balance must be 'tokens', 'attention' or None, not {balance!r}")
        if balance is not None and (self._batch_size is None or self._max_tokens is not None):
            raise ValueError("balance= deals batches of one size: give batch_size= alone")
        self._balance = balance
        self._window = checked_int("window", window)
        self._drop_last = checked_flag("drop_last", drop_last)
        self._shuffles = seed is not None
        epochs = epochs_of(dataset)
        super().__init__(0 if seed is None else seed)
        if seed is None and epochs is not None:
            self.seed = epochs.words

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Cutting] = ()) -> Epoch:
        planned = epoch_by_cuttings(self, number, n_examples, cuttings)
        if self._drop_last and not len(planned.order):
            raise ValueError(
                f"the rows of epoch {number} do not fill a batch for each of "
                f"{cuttings[0].num_ranks if cuttings else 1} ranks, and drop_last=True leaves out "
                "what is not full"
            )
        return planned

    def _plan_batches(
        self, rows: Indices | None, n_examples: int, number: int, cutting: Cutting
    ) -> tuple[CompactOrder, Indices]:
        from fastiter._order import permutation, sampling

        epochs = epochs_of(self._dataset)
        known = None if epochs is None else epochs.rows_of(number)
        size, budget = (None if limit is None else int(limit) for limit in cutting.limits)
        lengths, costs = self._dataset._sums(None if known is None else number)
        numbers = rows if rows is None or known is None else known.numbers(rows)
        given = np.arange(len(lengths)) if numbers is None else numbers
        if not len(lengths):
            raise ValueError(f"epoch {number} of the TokenDataset has no rows")
        assert self.seed is not None
        words = permutation.seed_words([*self.seed, number])
        if budget is not None:
            if lengths.max() > budget:
                raise ValueError(
                    f"row {int(lengths.argmax())} has {lengths.max()} tokens, more than max_tokens="
                    f"{budget}"
                )
            likely = max(1, budget // max(1, int(lengths.mean())))
            order, cuts = sampling.plan_buckets(
                lengths,
                given,
                words,
                most_rows=size,
                most_tokens=budget,
                num_ranks=cutting.num_ranks,
                window=self._window * cutting.num_ranks * likely,
                drop_last=self._drop_last,
            )
            chosen = order.astype(np.int64)
            return CompactOrder(chosen if known is None else known.named(chosen), 0), cuts
        assert size is not None
        if self._shuffles:
            given = given[permutation.fast_permutation(len(given), words)]
        whole = size * cutting.num_ranks
        if self._drop_last:
            given = given[: len(given) // whole * whole]
        n_dealt = len(given) // whole * whole
        if self._balance is not None:
            weights = lengths.astype(np.float64) if self._balance == "tokens" else costs
            steps = n_dealt // whole
            windows = max(1, steps // self._window)  # of window steps or a few more
            dealt_rows, pool = [], given[:0]
            for k in range(windows):
                start, stop = steps * k // windows * whole, steps * (k + 1) // windows * whole
                pool = np.concatenate([pool, given[start:stop]])
                groups = grouped(weights[pool], cutting.num_ranks)
                n_kept = 0 if k == windows - 1 else min(self._window * size, len(groups))
                now, later = np.split(groups, [len(groups) - n_kept])
                now = now[permutation.fast_permutation(len(now), words, 1 + k)]
                dealt_rows.append(pool[dealt(weights[pool], now, size)])
                pool = pool[later.ravel()]
            given = np.concatenate([*dealt_rows, given[n_dealt:]])
        cuts = np.arange(0, n_dealt + 1, size)
        if n_dealt < len(given):  # shared out evenly by the iterator
            cuts = np.append(cuts, len(given))
        return CompactOrder(given if known is None else known.named(given), 0), cuts

    def record(
        self, n_drawn: int, n_examples: int, position: int | None, digest: Callable[[], Key]
    ) -> SamplerRecord:
        # Of the documents, since epochs may differ in their rows.
        return super().record(n_drawn, self._dataset.n_documents, position, digest)

    def limits(self) -> tuple[Limit, ...]:
        return self._batch_size, self._max_tokens

    def arguments(self) -> tuple[Any, ...]:
        epochs = epochs_of(self._dataset)
        of_rows = self._dataset._decides() if epochs is None else (epochs.words, *epochs.arguments)
        return self._balance, self._window, self._drop_last, self._shuffles, of_rows


def grouped(costs: npt.NDArray[np.float64], num_ranks: int) -> npt.NDArray[np.int64]:
    """Group rows of similar costs, one for each rank: their places, (n, num_ranks), in each group
    the costliest first. Groups whose largest cost is most above their mean come last."""
    groups = np.argsort(-costs, kind="stable").reshape(-1, num_ranks)
    found = costs[groups]
    excess = found[:, 0] / np.maximum(found.sum(axis=1), 1)
    return groups[np.argsort(excess, kind="stable")]


def dealt(
    costs: npt.NDArray[np.float64], groups: npt.NDArray[np.int64], size: int
) -> npt.NDArray[np.int64]:
    """Deal groups of rows to batches of `size` in steps: their places, batch after batch."""
    num_ranks = groups.shape[1]
    steps = groups.reshape(-1, size, num_ranks)
    given = np.empty((len(steps), num_ranks, size), np.int64)
    sums = np.zeros((len(steps), num_ranks))
    # Groups whose costs differ most first: those that follow even out what is left.
    spread = costs[steps[:, :, 0]] - costs[steps[:, :, -1]]
    order = np.argsort(-spread, axis=1, kind="stable")
    every = np.arange(len(steps))[:, None]
    for place in range(size):
        rows = steps[every[:, 0], order[:, place]]
        ranks = np.argsort(sums, axis=1, kind="stable")
        given[every, ranks, place] = rows
        sums[every, ranks] += costs[rows]
    return given.ravel()


def flat_batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Put rows of tokens behind each other, without their padding: a converter.

    Parameters
    ----------
    rows : list of dict
        Rows of a `TokenDataset` whose fields include ``segment_ids``.

    Returns
    -------
    dict
        Each field of arrays, (N,), for N tokens in all; ``cu_seqlens``, int32 (k + 1,), the starts
        of the k segments, and N; ``max_seqlen``, int, the length of the longest segment: the
        arguments of attention over sequences of varying lengths.
    """
    if not rows or "segment_ids" not in rows[0]:
        raise ValueError(
            "flat_batch needs rows with segment_ids: name it in fields= of the TokenDataset"
        )
    kept = [row["segment_ids"] > 0 for row in rows]
    batch: dict[str, Any] = {
        name: np.concatenate([row[name][keep] for row, keep in zip(rows, kept, strict=True)])
        for name, value in rows[0].items()
        if np.ndim(value) == 1 and name != "cu_seqlens"
    }
    starts, place = [], 0
    for row, keep in zip(rows, kept, strict=True):
        numbers = row["segment_ids"][keep]
        starts.append(place + np.flatnonzero(np.diff(numbers, prepend=0)))
        place += len(numbers)
    batch["cu_seqlens"] = np.concatenate([*starts, [place]]).astype(np.int32)
    batch["max_seqlen"] = int(np.diff(batch["cu_seqlens"]).max(initial=0))
    return batch

"""Examples of a batch: those that can be fetched, and random numbers that belong to each."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fastiter._fetch.dataset_access import is_fetched_one_by_one, offered
from fastiter._fetch.seeded import SeededExamples
from fastiter._order.example_context import ExampleContext, Seed, each
from fastiter._order.plan import Plan
from fastiter._plan.state import SkipState
from fastiter._util.failures import Failure, is_skippable, merged
from fastiter.iterators._skips import SkipPolicy
from fastiter.torch._keys import SoleKey, keys_of


class KeyPolicy(SkipPolicy):
    """Decides about keys of the sampler that fail: ``on_error`` and ``skip_limit``.

    ``epoch`` is the number of the iteration, ``size`` the keys of its sampler; ``is_batch`` says
    whether a batch has several keys, ``rows`` are those of the dataset's epoch, or None.
    """

    _NUMBER, _OWNER = "key", "loader"
    epoch = size = 0
    is_batch = True
    rows: Any = None

    @property
    def mode(self) -> str:
        """Treatment of the rest of a batch by a worker; see `LoaderJob`."""
        return "ask" if callable(self._on_error) else "skip"

    def resolve(self, plan: Plan, failures: Sequence[Failure]) -> dict[int, Any] | Failure:
        """As `decide`, for batches whose rows the workers share; what was to be made as a whole,
        and has failed as a whole, is not skipped."""
        return failures[0] if plan.request is not None else self.decide(plan, failures)

    def decide(self, plan: Plan, failures: Sequence[Failure]) -> dict[int, Any] | Failure:
        """Decide about the failed rows of a batch; see `SkipPolicy.resolve`."""
        rows = [failure.row for failure in failures]
        decided = super().resolve(plan, failures)
        replaced = () if isinstance(decided, Failure) else decided
        dropped = tuple(row for row in rows if row not in replaced)
        plan.progress = plan.progress._replace(dropped=dropped)
        return decided

    def _size(self, plan: Plan) -> int:
        return self.size

    def _place(self, plan: Plan, row: int) -> tuple[Any, int]:
        keys = keys_of(plan, self.is_batch, self.rows)
        return keys[row] if self.is_batch else keys, self.epoch

    def _before(self, plan: Plan) -> SkipState:
        return plan.progress.skips or SkipState()

    def _put(self, plan: Plan, skips: SkipState) -> None:
        plan.progress = plan.progress._replace(skips=skips)


class Numbered:
    """A batch's keys, or one of them, unless ``is_batch``; and the numbers of the examples that are
    fetched by them. As these keys are iterated over, the example of each is the current one in its
    turn. ``origin``: the seed of the examples' random numbers, the number of the first example, and
    the step from each example's number to the next."""

    def __init__(self, keys: Any, is_batch: bool, origin: tuple[Seed, int, int]) -> None:
        self.keys = keys if is_batch else [keys]
        self._is_batch = is_batch
        #: the keys that are no container; else None
        self._sole = keys if is_batch and type(keys) is SoleKey else None
        self._seed, self._first, self._step = origin

    def key_of(self, row: int) -> tuple[int, int]:
        """Key of a row's random numbers."""
        key = self.keys[row]
        index = int(key) if isinstance(key, (int, np.integer)) else 0
        return self._first + row * self._step, index

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Any]:
        return each(self.keys)

    def _run(self, function: Callable[[Any], Any], argument: Any) -> Any:
        return ExampleContext(self._seed, self, None, range(len(self))).run(function, argument)

    def fetch(self, fetcher: Any) -> Any:
        """The examples, or the one example, as torch's fetcher fetches them."""
        return self._run(self._fetched, fetcher)

    def draw(self, consume: Callable[[Any], Any]) -> Any:
        """Have ``consume`` take examples of a stream, whose iterator is the key of each."""
        return self._run(consume, map(next, self))

    def _fetched(self, fetcher: Any) -> Any:
        if not self._is_batch:
            return next(map(fetcher.fetch, self))
        if self._sole is not None:
            return fetcher.fetch(self._sole[0])
        if is_fetched_one_by_one(fetcher.dataset):
            return list(map(fetcher.dataset.__getitem__, self))
        has_many = offered(fetcher.dataset, "__getitems__")  # a stream is not asked for it
        return fetcher.fetch(self.keys if has_many else self)

    def tolerant(self, dataset: Any) -> tuple[list[Any], list[tuple[int, Exception]]]:
        """Fetch examples as torch's fetcher does, one by one where the call for all fails.

        Returns the examples of the keys that have not failed, and place and exception of each
        other.
        """
        examples = map(functools.partial(operator.getitem, dataset), self)
        many = getattr(dataset, "__getitems__", None) if self._is_batch else None
        if callable(many) and not is_fetched_one_by_one(dataset):
            is_list = type(self.keys) is list
            keys = [*self.keys] if is_list else self.keys if self._sole is None else self._sole[0]
            try:
                return self._run(many, keys), []
            except Exception as error:
                if len(self) == 1 or not is_skippable(error):
                    return [], [(0, error)]
            if is_list:  # as batches of one, as rows in columns are asked for
                examples = map(operator.itemgetter(0), map(many, ([key] for key in keys)))
        return self._run(self._tried, examples)  # type: ignore[no-any-return]

    def _tried(self, examples: Iterator[Any]) -> tuple[list[Any], list[tuple[int, Exception]]]:
        found: list[Any] = []
        failed: list[tuple[int, Exception]] = []
        for row in range(len(self)):
            try:
                found.append(next(examples))
            except Exception as error:
                failed.append((row, error))
        return found, failed


def decided(
    policy: KeyPolicy, plan: Plan, failures: Sequence[Failure], examples: Sequence[Any]
) -> list[Any] | Failure:
    """The examples that are left of a batch, or its failure."""
    replaced = policy.decide(plan, failures)
    return replaced if isinstance(replaced, Failure) else merged(examples, failures, replaced)


class Seeded(SeededExamples):
    """A dataset that is asked for one example at a time, with generators seeded by the place of
    the example."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, next_seed=lambda: next(self._seeds))
        self._seeds: Iterator[int] = iter(())

    def begin(self, seeds: bytes) -> None:
        """Go to the first example of a batch."""
        self._seeds = iter(memoryview(seeds).cast("Q"))

"""Examples with random numbers of their own: the global generators, seeded for each example."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from fastiter._fetch.dataset_access import Columns, asks_many, columns_of
from fastiter._order import example_context

#: `seed_generators`, perhaps with its second argument
Seeding = Callable[[int], Any]


def seed_generators(seed: int, also: Callable[[int], Any] | None = None) -> None:
    """Seed the global generators of `random`, NumPy and, if it is loaded, torch by 64 bits; and
    call a function with the seed, if there is one."""
    random.seed(seed)
    # By one number, which takes an eighth of the time that a list of them does.
    np.random.seed(seed & 0xFFFFFFFF)
    torch = getattr(sys.modules.get("torch"), "default_generator", None)
    if torch is not None:
        torch.manual_seed(seed >> 1)  # not the 32 bits of NumPy's, which is the same algorithm
    if also is not None:
        also(seed)


class SingleExamples:
    """A dataset whose examples are each fetched by itself, also where it has ``__getitems__``. One
    that consists of columns is read as columns."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._asks_many = asks_many(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        self._prepare()
        if self._asks_many:
            return self.dataset.__getitems__([index])[0]
        return self.dataset[index]

    def __fastiter_columns__(self) -> Columns | None:
        return columns_of(self.dataset)

    def __fastiter_view__(self) -> tuple[Any, None]:
        return self.dataset, None

    def _prepare(self) -> None:  # a `__getitem__` of a subclass would take precedence over the view
        """Called before each example."""


class SeededExamples(SingleExamples):
    """The same after ``seeding(next_seed())``; columns draw no numbers."""

    def __init__(
        self,
        dataset: Any,
        seeding: Seeding = seed_generators,
        next_seed: Callable[[], int] = example_context.own_seed,
    ) -> None:
        super().__init__(dataset)
        self.next_seed = next_seed
        self._seeding = seeding

    def _prepare(self) -> None:
        self._seeding(self.next_seed())


class SeededCall:
    """A converter that is called after ``seeding`` with the seed of its batch."""

    def __init__(self, converter: Callable[..., Any], seeding: Seeding) -> None:
        self._converter = converter
        self._seeding = seeding

    def __call__(self, *arguments: Any) -> Any:
        self._seeding(example_context.own_seed())
        return self._converter(*arguments)

"""Random numbers that belong to an example: the global generators, seeded for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._fetch.seeded import SeededExamples
from fastiter._order.permutation import example_seeds


def seeds_of(
    example_seed: tuple[int, int], places: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
) -> bytes:
    """The seeds of a batch's examples, by seed and number of the epoch, and their places."""
    return example_seeds(example_seed, *places).tobytes()


class Seeded(SeededExamples):
    """A dataset that is called with generators seeded by the place of the example.

    A dataset with ``__getitems__``, which fetches a batch in one call, is called with generators
    seeded by the batch.
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, next_seed=self._next_of_batch)
        self._seeds: Iterator[int] = iter(())
        if callable(getattr(dataset, "__getitems__", None)):
            self.__getitems__ = self._getitems

    def begin(self, seeds: bytes) -> None:
        """Go to the first example of a batch."""
        self._seeds = iter(memoryview(seeds).cast("Q"))

    def _next_of_batch(self) -> int:
        return next(self._seeds)

    def _getitems(self, keys: list[Any]) -> Any:
        self._seeding(self.next_seed())
        return self.dataset.__getitems__(keys)

"""Random numbers that belong to an example: the global generators, seeded for each of them."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

#: Seed of the iteration, number of the epoch, and of the batch in it, from 1.
BatchKey = tuple[int, int, int]


_PLACE, _SEEDS = struct.Struct("<4Q"), struct.Struct("<QIQ")


def _seed_generators(*place: int) -> None:
    """Seed `random`, NumPy's and torch's global generators by four numbers of 64 bits."""
    digest = hashlib.blake2b(_PLACE.pack(*place), digest_size=_SEEDS.size).digest()
    for_python, for_numpy, for_torch = _SEEDS.unpack(digest)
    random.seed(for_python)
    # By one number, which takes an eighth of the time that a list of them does.
    np.random.seed(for_numpy)
    torch.default_generator.manual_seed(for_torch >> 1)


class Seeded:
    """A dataset that is called with generators seeded by the place of the example.

    A dataset with ``__getitems__``, which fetches a batch in one call, is called with generators
    seeded by the batch.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._key: BatchKey = (0, 0, 0)
        self._row = -1
        #: gives the key of the batch, and the number of the example in it
        self.place: Callable[[], tuple[int, int, int, int]] = self._next_place
        if callable(getattr(dataset, "__getitems__", None)):
            self.__getitems__ = self._getitems

    def begin(self, key: BatchKey) -> None:
        """Go to the first example of a batch."""
        self._key, self._row = key, -1

    def _next_place(self) -> tuple[int, int, int, int]:
        self._row += 1
        return *self._key, self._row

    def __getitem__(self, key: Any) -> Any:
        _seed_generators(*self.place())
        return self.dataset[key]

    def _getitems(self, keys: list[Any]) -> Any:
        _seed_generators(*self.place())
        return self.dataset.__getitems__(keys)


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the global generators of this process as they are now."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])

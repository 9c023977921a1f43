"""Random numbers that belong to an example: the global generators, seeded for each of them."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

#: Seed of the iteration, number of the epoch and of the batch in it.
BatchKey = tuple[int, int, int]


class Seeded:
    """A dataset that is called with generators seeded by the place of the example.

    A dataset with ``__getitems__``, which fetches a batch in one call, is called with generators
    seeded by the batch.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._key: BatchKey = (0, 0, 0)
        self._row = 0
        if callable(getattr(dataset, "__getitems__", None)):
            self.__getitems__ = self._getitems

    def begin(self, key: BatchKey) -> None:
        """Go to the first example of a batch."""
        self._key, self._row = key, 0

    def __getitem__(self, key: Any) -> Any:
        seed_all(self._key, self._row)
        self._row += 1
        return self.dataset[key]

    def _getitems(self, keys: list[Any]) -> Any:
        seed_all(self._key, 0)
        return self.dataset.__getitems__(keys)


def seed_all(key: BatchKey, row: int) -> None:
    """Seed `random`, NumPy's and torch's global generators for one example."""
    packed = struct.pack("<QQQQ", key[0] & ((1 << 64) - 1), *key[1:], row)
    seed = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed >> 1)


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

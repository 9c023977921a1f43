"""The seed of an iteration's examples: where it comes from, and how a snapshot keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fastiter._order.example_context import Seed
from fastiter.iterators._seeded_sampler import is_seeded

KEY = "example_seed"


def seed_of(order_sampler: Any) -> Seed:
    """The seed of the sampler; else one that follows from the state of its generator, or of
    NumPy's global one, which does not move by it."""
    if is_seeded(order_sampler):
        assert order_sampler._words is not None
        return order_sampler._words
    generator = getattr(order_sampler, "_random_state", None)
    if isinstance(generator, np.random.Generator):
        return _digest("generator", generator.bit_generator.state)
    if not isinstance(generator, np.random.RandomState):
        generator = np.random
    return _digest("generator", generator.get_state(legacy=False))


def seed_after_reset(seed: Seed) -> Seed:
    """Another one, so that what starts over is not what was."""
    return _digest("reset", {"seed": list(seed)})


def _digest(purpose: str, state: Mapping[str, Any]) -> Seed:
    from hashlib import blake2b

    digest = blake2b(digest_size=16, person=purpose.encode())

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for name in sorted(value):
                digest.update(name.encode())
                add(value[name])
        elif isinstance(value, np.ndarray):
            digest.update(np.ascontiguousarray(value).tobytes())
        else:
            digest.update(repr(value).encode())

    add(state)
    words = np.frombuffer(digest.digest(), "<u8")
    return int(words[0]), int(words[1])


def saved(seed: Seed) -> list[int]:
    """As two signed words of 64 bits."""
    return np.array(seed, dtype=np.uint64).view(np.int64).tolist()  # type: ignore[no-any-return]


def exchange(serializer: Callable[[str, Any], Any], seed: Seed, is_saving: bool) -> Seed:
    """Save a seed to a serializer, or load one; of a snapshot that has none, ``seed`` stays."""
    if is_saving:
        serializer(KEY, np.array(saved(seed)))
        return seed
    try:
        stored = serializer(KEY, None)
    except KeyError:
        return seed
    return seed if stored is None else loaded(stored)


def loaded(stored: Any) -> Seed:
    """The seed that a snapshot has.

    Raises
    ------
    ValueError
        If that is none.
    """
    words = np.asarray(stored)
    if words.shape != (2,) or words.dtype != np.int64:
        raise ValueError(f"the snapshot's {KEY} is {stored!r}, not two integers of 64 bits")
    first, second = words.view(np.uint64).tolist()
    return first, second

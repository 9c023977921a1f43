"""The seed of an iteration's examples, from which `fastiter.random.example_rng` derives numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fastiter._order.example_context import Seed
from fastiter._plan.epoch_sampler import is_epoch_sampler, words_of_digest


def seed_of(order_sampler: Any, num_ranks: int) -> Seed:
    """The seed of the sampler; else one that follows from the state of its generator, or of
    NumPy's global one, which does not move by it. On several ranks, whose global generators may
    differ, a fixed one."""
    if is_epoch_sampler(order_sampler) and (seed := order_sampler.seed) is not None:
        if type(seed) is not tuple or len(seed) != 2:
            name = type(order_sampler).__qualname__
            raise TypeError(
                f"the seed of {name} is {seed!r:.80}, not two integers: let its constructor call "
                "super().__init__(seed), which makes these of a seed"
            )
        return seed
    generator = getattr(order_sampler, "_random_state", None)
    if isinstance(generator, np.random.Generator):
        return derived_seed("generator", generator.bit_generator.state)
    if not isinstance(generator, np.random.RandomState):
        if num_ranks > 1:
            return 0, 0
        generator = np.random
    return derived_seed("generator", generator.get_state(legacy=False))


def derived_seed(purpose: str, state: Mapping[str, Any]) -> Seed:
    """A seed that follows from plain values and arrays, another one for each purpose."""
    return words_of_digest(*_parts(state), person=purpose.encode())


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name in sorted(value):
            yield name.encode()
            yield from _parts(value[name])
    else:
        is_array = isinstance(value, np.ndarray)
        yield np.ascontiguousarray(value) if is_array else repr(value).encode()

"""Orders that are computed where they are read, and draws by weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.harness.micro import AtMost, Case, Goal, Prepared, WrongResult

NAME = "sampling"
TITLE = "parts of virtual orders, and weighted draws with and without replacement"

# -- parts of a virtual order ----------------------------------------------------------------------


def _fastiter_part(n: int, count: int) -> Callable[[Any], Any]:
    from fastiter import VirtualShuffleOrderSampler

    order = VirtualShuffleOrderSampler(0)(range(n), 0)
    return lambda start: order[start : start + count]


def _fastiter_call(n: int, count: int) -> Callable[[Any], Any]:
    from fastiter.random import virtual_permutation

    return lambda start: virtual_permutation(n, 0, start, count)


def _grain_part(n: int, count: int) -> Callable[[Any], Any]:
    from grain._src.python.experimental.index_shuffle.python import index_shuffle_module

    shuffled = index_shuffle_module.index_shuffle
    return lambda start: [shuffled(i, n - 1, 0, 4) for i in range(start, start + count)]


def _part(n: int, count: int) -> Case:
    def check(result: Any, start: int) -> None:
        part = np.asarray(result)
        if part.shape != (count,) or part.min() < 0 or part.max() >= n:
            raise WrongResult(f"not {count} indices below {n}")
        if len(np.unique(part)) != count:
            raise WrongResult("an index comes twice")

    return Case(
        name=f"virtual, {count:,} of n = {n:,}",
        sources=lambda: [n // 8 * k for k in range(8)],
        candidates={
            "fastiter": lambda: _fastiter_part(n, count),
            "fastiter.call": lambda: _fastiter_call(n, count),
            "grain": lambda: _grain_part(n, count),
        },
        check=check,
        items=count,
        item="index",
        nbytes=8 * count,
        goals=[AtMost("seconds", 1e-6 + 1.8e-9 * count)],
        share=0.5,
    )


# -- weighted draws --------------------------------------------------------------------------------


def _weights(n: int) -> np.ndarray:
    return np.random.default_rng(0).gamma(1.0, size=n) + 1e-3


def _fastiter_draw(n: int, count: int, replacement: bool) -> Callable[[Any], Any]:
    from fastiter import WeightedOrderSampler

    sampler = WeightedOrderSampler(_weights(n), 0, n_samples=count, replacement=replacement)
    indices = range(n)
    sampler(indices, 0)  # makes the table, which serves all epochs
    return lambda seed: sampler(indices, 0)


def _fastiter_first_draw(n: int, count: int, replacement: bool) -> Prepared:
    from fastiter import WeightedOrderSampler

    weights = _weights(n)

    def draw(seed: int) -> Any:
        sampler = WeightedOrderSampler(weights, seed, n_samples=count, replacement=replacement)
        return sampler(range(n), 0)

    return Prepared(lambda seed: seed, draw)


def _numpy_draw(n: int, count: int, replacement: bool) -> Callable[[Any], Any]:
    generator = np.random.default_rng(0)
    weights = _weights(n)
    shares = weights / weights.sum()
    return lambda seed: generator.choice(n, count, replace=replacement, p=shares)


def _torch_draw(n: int, count: int, replacement: bool) -> Callable[[Any], Any]:
    import torch

    torch.set_num_threads(1)
    weights = torch.from_numpy(_weights(n))
    return lambda seed: torch.multinomial(weights, count, replacement=replacement)


def _draw(n: int, count: int, replacement: bool, goals: Sequence[Goal]) -> Case:
    def check(result: Any, source: Any) -> None:
        draws = np.asarray(result)
        if draws.shape != (count,) or draws.min() < 0 or draws.max() >= n:
            raise WrongResult(f"not {count} items below {n}")
        if not replacement and len(np.unique(draws)) != count:
            raise WrongResult("an item is drawn twice")
        weights = _weights(n)
        if replacement and count >= 10_000:
            # The mean weight of what is drawn is known, up to its spread.
            share = weights / weights.sum()
            mean, square = (share * weights).sum(), (share * weights**2).sum()
            if abs(weights[draws].mean() - mean) > 6 * ((square - mean**2) / count) ** 0.5:
                raise WrongResult("the draws do not follow the weights")

    def candidate(function: Any) -> Any:
        return lambda: function(n, count, replacement)

    candidates = {"fastiter": candidate(_fastiter_draw), "torch": candidate(_torch_draw)}
    if replacement:
        candidates["fastiter.with-table"] = candidate(_fastiter_first_draw)
    if replacement or count < n // 2:  # beyond, NumPy takes minutes
        candidates["numpy"] = candidate(_numpy_draw)
    kind = "with" if replacement else "without"
    return Case(
        name=f"{kind} replacement, {count:,} of n = {n:,}",
        sources=lambda: list(range(4)),
        candidates=candidates,
        check=check,
        items=count if replacement else n,
        item="draw" if replacement else "item",
        nbytes=8 * count,
        goals=goals,
    )


def cases(quick: bool) -> Iterator[Case]:
    yield _part(10**7, 256)
    yield _draw(60_000, 60_000, True, [Goal("numpy", 15)])
    yield _draw(60_000, 6_000, False, [Goal("numpy", 4)])
    if quick:
        return
    yield _part(10**7, 32)
    yield _part(10**7, 4096)
    yield _part(10**12, 256)
    yield _draw(1_281_167, 1_281_167, True, [Goal("numpy", 15)])
    yield _draw(1_281_167, 256, False, [Goal("numpy", 4)])
    yield _draw(1_281_167, 128_116, False, [Goal("numpy", 4)])
    yield _draw(1_281_167, 1_281_167, False, [Goal("torch", 4)])

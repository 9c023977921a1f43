"""Orders computed where they are read, draws by weights, mixtures, batches of like lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.harness.micro import AtMost, Case, Goal, Prepared, WrongResult

NAME = "sampling"
TITLE = "parts of virtual orders, weighted draws, mixtures of sources, batches of like lengths"

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


# -- mixtures --------------------------------------------------------------------------------------

_SHARES = [0.5, 0.3, 0.2]


def _fastiter_mixture(count: int) -> Callable[[Any], Any]:
    from fastiter import MixtureOrderSampler

    sizes = [count] * len(_SHARES)
    return lambda seed: MixtureOrderSampler(sizes, _SHARES, seed, stop=count)(range(sum(sizes)), 0)[
        :
    ]


def _numpy_mixture(count: int) -> Callable[[Any], Any]:
    def draw(seed: int) -> Any:
        generator = np.random.default_rng(seed)
        sources = generator.choice(len(_SHARES), count, p=_SHARES)
        indices = np.empty(count, dtype=np.int64)
        for source in range(len(_SHARES)):
            places = np.flatnonzero(sources == source)
            indices[places] = generator.permutation(count)[: len(places)] + source * count
        return indices

    return draw


def _mixture(count: int) -> Case:
    def check(result: Any, seed: int) -> None:
        if len(np.unique(result)) != count:
            raise WrongResult("an index comes twice")
        counts = np.bincount(result // count, minlength=len(_SHARES))
        if abs(counts - count * np.array(_SHARES)).max() > 4 * count**0.5:
            raise WrongResult("the sources do not have their shares")

    return Case(
        name=f"mixture of 3 sources, {count:,} draws",
        sources=lambda: list(range(4)),
        candidates={
            "fastiter": lambda: _fastiter_mixture(count),
            "numpy": lambda: _numpy_mixture(count),
        },
        check=check,
        items=count,
        item="draw",
        nbytes=8 * count,
        goals=[Goal("numpy", 1)],
    )


# -- batches of like lengths -----------------------------------------------------------------------

_BATCH, _WINDOW = 32, 1 << 14


def _lengths(n: int) -> np.ndarray:
    return np.random.default_rng(0).lognormal(5, 1, n).clip(1, 8192).astype(np.int32)


def _fastiter_buckets(n: int) -> Callable[[Any], Any]:
    from fastiter import LengthBucketBatchSampler
    from fastiter._plan.epoch_sampler import Cutting

    sampler = LengthBucketBatchSampler(_lengths(n), batch_size=_BATCH, seed=0, window=_WINDOW)
    cutting = Cutting(0, 1, sampler.limits())
    return lambda number: sampler._plan_batches(None, n, number, cutting)[0][:]


def _numpy_buckets(n: int) -> Callable[[Any], Any]:
    lengths = _lengths(n)

    def plan(number: int) -> Any:
        order = np.random.default_rng(number).permutation(n)
        windows = [
            window[lengths[window].argsort(kind="stable")]
            for window in np.split(order, range(_WINDOW, n, _WINDOW))
        ]
        batches = np.concatenate(windows)[: n // _BATCH * _BATCH].reshape(-1, _BATCH)
        np.random.default_rng(number).shuffle(batches)
        return np.concatenate([batches.ravel(), windows[-1][len(windows[-1]) - n % _BATCH :]])

    return plan


def _buckets(n: int) -> Case:
    def check(result: Any, number: int) -> None:
        if not np.array_equal(np.sort(result), np.arange(n)):
            raise WrongResult("not every row comes once")
        whole = _lengths(n)[result[: n // _BATCH * _BATCH]].reshape(-1, _BATCH).astype(np.int64)
        if _BATCH * whole.max(1).sum() > 1.2 * whole.sum():
            raise WrongResult("the batches are a fifth padding")

    return Case(
        name=f"batches of like lengths, n = {n:,}",
        sources=lambda: list(range(4)),
        candidates={
            "fastiter": lambda: _fastiter_buckets(n),
            "numpy": lambda: _numpy_buckets(n),
        },
        check=check,
        items=n,
        item="row",
        nbytes=8 * n,
        goals=[Goal("numpy", 3)],
    )


def cases(quick: bool) -> Iterator[Case]:
    yield _part(10**7, 256)
    yield _draw(60_000, 60_000, True, [Goal("numpy", 15)])
    yield _draw(60_000, 6_000, False, [Goal("numpy", 4)])
    yield _mixture(100_000)
    yield _buckets(100_000)
    if quick:
        return
    yield _mixture(10**6)
    yield _buckets(10**6)
    yield _part(10**7, 32)
    yield _part(10**7, 4096)
    yield _part(10**12, 256)
    yield _draw(1_281_167, 1_281_167, True, [Goal("numpy", 15)])
    yield _draw(1_281_167, 256, False, [Goal("numpy", 4)])
    yield _draw(1_281_167, 128_116, False, [Goal("numpy", 4)])
    yield _draw(1_281_167, 1_281_167, False, [Goal("torch", 4)])

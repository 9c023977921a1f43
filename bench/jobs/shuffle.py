"""Random orders: from a seed, and exactly NumPy's, into memory that is in use already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, WrongResult

NAME = "shuffle"
TITLE = "a random order of n indices"


def _fastiter(n: int, threads: int | None) -> Callable[[Any], Any]:
    from fastiter.random import permutation

    out = np.zeros(n, np.int64)
    return lambda seed: permutation(n, seed, threads=threads, out=out)


def _fastiter_exact(n: int) -> Callable[[Any], Any]:
    from fastiter._order.permutation import permutation

    state = np.random.RandomState(0)
    return lambda seed: permutation(state, n)


def _numpy_pcg64(n: int) -> Callable[[Any], Any]:
    generator = np.random.Generator(np.random.PCG64(0))
    return lambda seed: generator.permutation(n)


def _numpy_exact(n: int) -> Callable[[Any], Any]:
    state = np.random.RandomState(0)
    return lambda seed: state.permutation(n)


def _torch(n: int) -> Callable[[Any], Any]:
    import torch

    torch.set_num_threads(1)
    out = torch.zeros(n, dtype=torch.int64)
    return lambda seed: torch.randperm(n, out=out)


def _check(n: int) -> Callable[[Any, Any], None]:
    def check(result: Any, source: Any) -> None:
        order = np.asarray(result)
        seen = np.zeros(n, bool)
        if order.shape != (n,) or order.min() < 0 or order.max() >= n:
            raise WrongResult("not n indices below n")
        seen[order] = True
        if not seen.all():
            raise WrongResult("an index is missing")

    return check


def _case(n: int, name: str, candidates: dict[str, Any], goals: Sequence[Goal]) -> Case:
    return Case(
        name=f"{name}, n = {n:,}",
        sources=lambda: list(range(8)),
        candidates=candidates,
        check=_check(n),
        items=n,
        item="index",
        nbytes=8 * n,
        goals=goals,
    )


def _seeded(n: int, goals: Sequence[Goal] = ()) -> Case:
    candidates = {
        "fastiter": lambda: _fastiter(n, 1),
        "fastiter.threads": lambda: _fastiter(n, None),
        "numpy": lambda: _numpy_pcg64(n),
        "torch": lambda: _torch(n),
    }
    return _case(n, "seeded", candidates, goals)


def _exact(n: int, goals: Sequence[Goal] = ()) -> Case:
    candidates = {"fastiter": lambda: _fastiter_exact(n), "numpy": lambda: _numpy_exact(n)}
    return _case(n, "RandomState's", candidates, goals)


def cases(quick: bool) -> Iterator[Case]:
    yield _seeded(1_000)
    yield _exact(1_000, [Goal("numpy", 1)])
    if quick:
        return
    yield _seeded(60_000, [Goal("numpy", 10), Goal("torch", 4)])
    yield _exact(60_000, [Goal("numpy", 1)])
    yield _seeded(1_280_000, [Goal("numpy", 7), Goal("torch", 3)])
    yield _exact(1_280_000, [Goal("numpy", 1.5)])
    yield _seeded(10_000_000, [Goal("numpy", 14), Goal("torch", 12)])
    yield _exact(10_000_000, [Goal("numpy", 3)])
    yield _seeded(100_000_000, [Goal("numpy", 15), Goal("torch", 12)])

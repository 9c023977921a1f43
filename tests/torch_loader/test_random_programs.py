"""Programs drawn at random see the same with torch's `DataLoader` and with fastiter's.

A program is a dataset, a sampler, arguments, and a few loops, some of which are left early. What it
sees: batches with their types, errors by class, and the random numbers of its own generators after
each loop. Left out is what [the list of differences](../../docs/guide/torch_differences.md) names.
"""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:worker processes are forked:RuntimeWarning",
    "ignore:This DataLoader will create",
    "ignore:Length of IterableDataset",
    # The end of an iterator of torch's whose constructor has failed, up to 2.5.
    "ignore:.*_MultiProcessingDataLoaderIter.__del__:pytest.PytestUnraisableExceptionWarning",
)

PROGRAMS = 60
DTYPES = (np.float32, np.float64, np.int64, np.int32, np.uint8, np.bool_, np.complex64, np.uint16)

Make = Callable[[int], Any]


class Point(NamedTuple):
    x: Any
    y: Any


# ---- datasets


def leaf(draw: random.Random) -> Make:
    shape = tuple(draw.randrange(1, 4) for _ in range(draw.randrange(3)))
    dtype: Any = draw.choice(DTYPES)
    return draw.choice(
        [
            lambda i: 3 * i - 7,
            lambda i: i / 3,
            lambda i: f"text {i}",
            lambda i: b"bytes %d" % i,
            lambda i: i % 3 == 0,
            lambda i: np.full(shape, i % 120).astype(dtype),
            lambda i: (np.arange(12).reshape(3, 4) + i).astype(dtype).T,
            lambda i: dtype(i % 100),
            lambda i: torch.full(shape, i % 120, dtype=torch.bfloat16),
            lambda i: torch.arange(24.0).reshape(2, 3, 4).add(i).permute(2, 0, 1),
            lambda i: torch.tensor([i]).expand(3),
            lambda i: np.zeros((0, 3), dtype),
            lambda i: torch.tensor(i),
            lambda i: i if i % 2 else float(i),
            lambda i: torch.arange(i % 5),  # shapes that do not fit together
            lambda i: None,  # which `default_collate` refuses
        ]
    )


def example(draw: random.Random, depth: int = 0) -> Make:
    kind = draw.choice(["leaf"] * 3 + ["tuple", "list", "dict", "named"] * (depth < 2))
    if kind == "leaf":
        return leaf(draw)
    parts = [example(draw, depth + 1) for _ in range(draw.randrange(1, 4))]
    if kind == "tuple":
        return lambda i: tuple(part(i) for part in parts)
    if kind == "list":
        return lambda i: [part(i) for part in parts]
    if kind == "dict":
        return lambda i: {f"key {n}": part(i) for n, part in enumerate(parts)}
    return lambda i: Point(parts[0](i), parts[-1](i))


def drawn(make: Make, i: int) -> Any:
    """An example with numbers of the generators of the process that makes it."""
    return make(i), random.random(), np.random.rand(), torch.rand(())


class Examples:
    def __init__(self, make: Make, n: int, fails_at: set[int]) -> None:
        self.make, self.n, self.fails_at = make, n, fails_at

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: Any) -> Any:
        i = int(i)
        if i in self.fails_at:
            raise LookupError(f"no example {i}")
        return self.make(i)


class Batched(Examples):
    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


class Stream(torch_data.IterableDataset):
    def __init__(self, make: Make, n: int, fails_at: set[int]) -> None:
        self.examples = Examples(make, n, fails_at)

    def __iter__(self) -> Any:
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.examples[i] for i in range(first, self.examples.n, step))


class CountedStream(Stream):
    def __len__(self) -> int:
        return self.examples.n


DATASETS: dict[str, Callable[..., Any]] = {
    "map": Examples,
    "map of batches": Batched,
    "stream": Stream,
    "counted stream": CountedStream,
    "list": lambda make, n, fails_at: [make(i) for i in range(n)],
    "dict": lambda make, n, fails_at: {i: make(i) for i in range(n)},
    "subset": lambda *given: torch_data.Subset(Batched(*given), list(range(given[1]))[::-1]),
    "joined": lambda *given: torch_data.ConcatDataset([Examples(*given), Examples(*given)]),
}


# ---- samplers


class RandomBatches:
    """Batches of other sizes in each iteration."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Any:
        keys = iter(torch.randperm(self.n).tolist())
        while batch := list(itertools.islice(keys, random.randrange(1, 4))):
            yield batch


def sampler(name: str, dataset: Any, seed: int | None) -> dict[str, Any]:
    n = len(dataset)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    if name == "batches":
        return {"batch_sampler": RandomBatches(n)}
    if name == "shuffle":
        return {"shuffle": True, "generator": generator}
    samplers: dict[str, Any] = {
        "random": lambda: torch_data.RandomSampler(dataset, generator=generator),
        "more": lambda: torch_data.RandomSampler(dataset, num_samples=n + 3, generator=generator),
        "again": lambda: torch_data.RandomSampler(dataset, True, n, generator),
        "weighted": lambda: torch_data.WeightedRandomSampler(range(1, n + 1), n, True, generator),
        "subset": lambda: torch_data.SubsetRandomSampler(range(n // 2), generator),
        "distributed": lambda: torch_data.DistributedSampler(dataset, 2, 1, seed=seed or 0),
        "list": lambda: list(range(0, n, 2)),
        "numpy": lambda: list(np.arange(n)),
        "texts": lambda: [str(key) for key in range(n)],
    }
    return {"sampler": samplers[name]()}


# ---- programs


def seen_error(error: Exception) -> Any:
    return "error", type(error)


def seen(value: Any) -> Any:
    """A value with all types in it, as something that can be compared."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        order = sorted(range(value.ndim), key=lambda axis: -value.stride(axis))
        plain = value.to(torch.complex128) if value.is_complex() else value.to(torch.float64)
        return kind, value.dtype, tuple(value.shape), order * (value.numel() > 0), plain.tolist()
    if isinstance(value, (np.ndarray, np.generic)):
        return kind, value.dtype, value.shape, value.tolist()
    if isinstance(value, dict):
        return kind, [(key, seen(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return kind, [seen(part) for part in value]
    return kind, value


def loop(loader: Any, stop: int | None) -> list[Any]:
    """Batches and errors of one loop, which goes on after an error, and may be left early."""
    found: list[Any] = []
    try:
        iterator = iter(loader)
        while stop is None or len(found) < stop:
            try:
                found.append(seen(next(iterator)))
            except LookupError as error:
                found.append(seen_error(error))
    except StopIteration:
        pass
    except Exception as error:
        found.append(seen_error(error))
    return found


COLLATE = [None, None, None, list, tuple, len, lambda batch: (torch_data.default_collate(batch), 1)]


def program(number: int) -> Callable[[Any], Any]:
    draw = random.Random(number)
    make, n = example(draw), draw.choice([1, 2, 3, 8, 17, 40])
    if draw.random() < 0.3:
        make = (lambda plain: lambda i: drawn(plain, i))(make)
    fails_at = {draw.randrange(n)} if draw.random() < 0.15 else set()
    kind = draw.choice(list(DATASETS))
    name, seed = "none", draw.choice([None, 3])
    if "stream" not in kind and draw.random() < 0.7:
        names = ("shuffle", "random", "more", "again", "weighted", "subset", "distributed", "list")
        name = draw.choice([*names, "batches"] + ["numpy", "texts"] * (kind in ("map", "subset")))
    if kind == "subset" and name == "texts":
        name = "numpy"
    arguments: dict[str, Any] = {"num_workers": draw.choice([0, 1, 2, 2, 3])}
    if name != "batches":
        arguments["batch_size"] = draw.choice([None, 1, 2, 3, 7])
        if arguments["batch_size"] is not None:
            arguments["drop_last"] = draw.random() < 0.3
    if arguments["num_workers"]:
        arguments["prefetch_factor"] = draw.choice([1, 2, 4])
        arguments["persistent_workers"] = draw.random() < 0.5
    if draw.random() < 0.4 and arguments.get("batch_size", 1) is not None:
        arguments["collate_fn"] = draw.choice(COLLATE)
    stops = [draw.choice([None, None, 0, 1, 3]) for _ in range(draw.randrange(1, 4))]

    def run(loader_class: Any) -> Any:
        torch.manual_seed(number)
        np.random.seed(number)
        random.seed(number)
        dataset = DATASETS[kind](make, n, fails_at)
        order = {} if name == "none" else sampler(name, dataset, seed)
        loader = loader_class(dataset, **arguments, **order)
        found = []
        for epoch, stop in enumerate(stops):
            if name == "distributed":
                order["sampler"].set_epoch(epoch)
            found.append((loop(loader, stop), torch.rand(()).item(), random.random()))
        return found

    return run


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_a_program_sees_the_same(number: int) -> None:
    run = program(number)
    assert run(DataLoader) == run(torch_data.DataLoader)


def test_programs_differ() -> None:
    """Most programs deliver batches; some fail."""
    found = [program(number)(torch_data.DataLoader) for number in range(20)]
    kinds = collections.Counter(
        part[0] == "error" for loops in found for parts, *_ in loops for part in parts
    )
    assert kinds[False] > 50 and kinds[True] > 5

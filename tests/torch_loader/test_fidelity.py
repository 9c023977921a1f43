"""The same program with torch's `DataLoader` and with `fastiter.torch.DataLoader`: what it sees."""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import context, get_context, popen_fork, process
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from torch.utils.data._utils import collate as torch_collate  # noqa: E402

from fastiter import ShuffleOrderSampler  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:worker processes are forked:RuntimeWarning", "ignore:This DataLoader will create"
)

LOADERS = {"torch": torch_data.DataLoader, "fastiter": DataLoader}
WORKERS = {"no workers": {}, "workers": {"num_workers": 2}}
WORKERS["persistent"] = {"num_workers": 2, "persistent_workers": True}


@pytest.fixture(params=WORKERS)
def workers(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WORKERS[request.param]


here = os.getpid()


class Dataset(torch_data.Dataset):
    def __init__(self, function: Callable[[int], Any], n: int = 12) -> None:
        self.function, self.n = function, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def same(index: int) -> int:
    return index


# ---- objects of the program ----------------------------------------------------------------------


class OfNoTruth:
    """Whatever is asked whether it is true, or how long, fails."""

    def __init__(self, function: Any = None) -> None:
        self.function = function

    def __bool__(self) -> bool:
        raise AssertionError("the truth value was asked for")

    def __call__(self, argument: Any) -> Any:
        return self.function(argument)

    def __iter__(self) -> Any:
        return iter(self.function)


def nothing(number: int) -> None:
    """A worker_init_fn."""


def tens(batch: list[int]) -> list[int]:
    return [10 * x for x in batch]


def test_arguments_are_compared_with_none_alone(loader_class: Any, workers: Any) -> None:
    loader = loader_class(range(4), 2, collate_fn=OfNoTruth(tens), **workers)
    assert list(loader) == [[0, 10], [20, 30]]
    loader = loader_class(range(4), 2, sampler=OfNoTruth([3, 1]), **workers)
    assert [x.tolist() for x in loader] == [[3, 1]]
    batches = OfNoTruth([[3, 1], [2]])
    init = OfNoTruth(nothing) if workers else None
    loader = loader_class(range(4), batch_sampler=batches, worker_init_fn=init, **workers)
    assert [x.tolist() for x in loader] == [[3, 1], [2]]


def test_a_loader_that_is_its_own_collate_function(loader_class: Any, workers: Any) -> None:
    class Own(loader_class):
        def __init__(self) -> None:
            self.factor = 10  # before torch's constructor
            super().__init__(range(4), 2, collate_fn=self, **workers)

        def __call__(self, batch: list[int]) -> list[int]:
            return [self.factor * x for x in batch]

    assert list(Own()) == [[0, 10], [20, 30]]


def test_a_loader_made_again_from_its_attributes(loader_class: Any, workers: Any) -> None:
    """As by ignite's deterministic engine, which passes all that have no underscore."""
    loader = loader_class(range(6), 2, shuffle=True, **workers)
    known = {name: value for name, value in vars(loader).items() if name[0] != "_"}
    for name in ("batch_size", "sampler", "drop_last", "batch_sampler"):
        del known[name]
    again = type(loader)(**known, batch_sampler=[[5], [0, 1]])
    assert [x.tolist() for x in again] == [[5], [0, 1]]
    assert again.num_workers == loader.num_workers


class Wrapped:
    """As torch_geometric's: no other attributes of the iterator are there, nor weak references."""

    __slots__ = ("iterator",)

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> Wrapped:
        return self

    def __next__(self) -> Any:
        return next(self.iterator) + 1

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.iterator._reset(loader, first_iter)


def test_iterators_that_a_subclass_wraps(loader_class: Any, workers: Any) -> None:
    class Wrapping(loader_class):
        def _get_iterator(self) -> Wrapped:
            return Wrapped(super()._get_iterator())

    loader = Wrapping(range(6), 3, **workers)
    for _ in range(2):
        assert [x.tolist() for x in loader] == [[1, 2, 3], [4, 5, 6]]
    if loader_class is DataLoader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [1, 2, 3]
        state = loader.state_dict()
        resumed = Wrapping(range(6), 3, **workers)
        resumed.load_state_dict(state)
        assert [x.tolist() for x in resumed] == [[4, 5, 6]]
        assert [x.tolist() for x in resumed] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("name", ["device", "return_indices", "on_error", "hedge", "n_retries"])
@pytest.mark.parametrize("when", ["before", "after", "property"])
def test_attributes_of_a_subclass_with_names_of_arguments(
    loader_class: Any, workers: Any, name: str, when: str
) -> None:
    """As DGL's loader has a ``device``. They stay, and change no batch."""

    class Named(loader_class):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            if when == "before":
                setattr(self, name, "meta")
            super().__init__(*arguments, **keywords)
            if when == "after":
                setattr(self, name, "meta")

    if when == "property":
        setattr(Named, name, property(lambda self: "meta"))
    loader = Named(range(6), 3, **workers)
    assert getattr(loader, name) == "meta"
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("change", [-12, -7, -4, 5, 30])
@pytest.mark.parametrize("batch_size", [4, 5, None])
@pytest.mark.parametrize("number", [None, 12])
def test_a_dataset_whose_length_changes_in_a_shuffled_epoch(
    seed: int | None, change: int, batch_size: int | None, number: int | None
) -> None:
    """torch's iterator looks again at its end, and repeats some keys."""

    def seen(loader_class: Any) -> list[Any]:
        dataset = Dataset(lambda i: i)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        torch.manual_seed(5)
        sampler = torch_data.RandomSampler(dataset, num_samples=number, generator=generator)
        loader = loader_class(dataset, batch_size, sampler=sampler)
        found = []
        for epoch in range(3):
            dataset.n = 12
            try:
                iterator = iter(loader)
                if epoch == 1:  # before the first key is drawn
                    dataset.n = max(0, 12 + change)
                for batch in iterator:
                    found.append(np.asarray(batch).tolist())
                    dataset.n = max(0, 12 + change)
            except ZeroDivisionError:
                found.append("no examples")
        return found

    assert seen(DataLoader) == seen(torch_data.DataLoader)


class Cut(torch_data.Sampler):
    def __iter__(self) -> Any:
        return iter([[None] * size for size in (2, 3, 1, 2)])


@pytest.mark.parametrize("name", ["batch_sampler", "sampler"])
def test_samplers_of_an_iterable_dataset(loader_class: Any, workers: Any, name: str) -> None:
    class Cutting(loader_class):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            object.__setattr__(self, name, Cut())

    class Counting(torch_data.IterableDataset):
        def __iter__(self) -> Any:
            info = torch_data.get_worker_info()
            return itertools.count(0 if info is None else 100 * info.id)

    size = 4 if name == "batch_sampler" else None
    loader = Cutting(Counting(), size, **workers)
    if name == "sampler":
        expected: Any = [0, 100, 1, 101] if workers else [0, 1, 2, 3]
    elif workers:
        expected = [[0, 1], [100, 101, 102], [2], [103, 104]]
    else:
        expected = [[0, 1], [2, 3, 4], [5], [6, 7]]
    for _ in range(2):
        assert [np.asarray(batch).tolist() for batch in loader] == expected
    if loader_class is DataLoader:
        with pytest.raises(RuntimeError, match="Cutting has no state: torch's own iterator"):
            loader.state_dict()


def _moving(construct: Any) -> Any:
    """A constructor of torch's iterators that draws two batches."""

    def moves(self: Any, loader: Any) -> None:
        construct(self, loader)
        for self._num_yielded in (1, 2):
            next(self._sampler_iter)

    return moves


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 2},
        {"batch_size": 2, "shuffle": True},
        {"batch_size": 2, "shuffle": True, "drop_last": True},
        {"batch_size": None, "shuffle": True},
        {"batch_sampler": [[3, 1], [2], [10, 0, 4], [5]]},
    ],
    ids=["in order", "shuffled", "drops", "no batches", "own batches"],
)
def test_iterators_that_a_library_has_moved_on(
    options: dict[str, Any], workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SpeechBrain does after a checkpoint."""
    base = torch_data.dataloader._BaseDataLoaderIter
    reset, moves = base._reset, _moving(base.__init__)

    def keeps_place(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            reset(self, loader, first_iter)

    def as_list(batch: Any) -> Any:
        return batch.tolist() if isinstance(batch, torch.Tensor) else batch

    found, states = [], []
    for loader_class in LOADERS.values():
        loader = loader_class(Dataset(same, 11), **options, **workers)
        torch.manual_seed(4)
        whole = [as_list(batch) for batch in loader]
        monkeypatch.setattr(base, "__init__", moves)
        monkeypatch.setattr(base, "_reset", keeps_place)
        loader = loader_class(Dataset(same, 11), **options, **workers)
        torch.manual_seed(4)
        seen: list[Any] = []
        for _ in range(2):
            iterator = iter(loader)
            for batch in iterator:
                seen.append((as_list(batch), iterator._num_yielded))
                if loader_class is DataLoader:
                    states.append((whole[len(seen) + 2 :], loader.state_dict()))
        monkeypatch.undo()
        assert [batch for batch, _ in seen[: len(whole) - 2]] == whole[2:]
        found.append((seen, torch.get_rng_state().tolist()))
    assert found[0] == found[1]
    for rest, state in states[: len(whole) - 2]:
        loader = DataLoader(Dataset(same, 11), **options, **workers)
        torch.manual_seed(5)
        loader.load_state_dict(state)
        assert [as_list(batch) for batch in loader] == rest


class Drawing:
    """Draws the keys of an epoch as it is opened, or counts how often it was; batches, or keys."""

    def __init__(self, counts: bool, size: int) -> None:
        self.counts, self.size, self.n_opened = counts, size, 0

    def __iter__(self) -> Any:
        self.n_opened += 1
        keys = (torch.arange(8) + self.n_opened) % 8 if self.counts else torch.randperm(8)
        return iter(keys.view(-1, self.size).tolist() if self.size else keys.tolist())


def shuffled_pipe() -> Any:
    return torch_data.datapipes.iter.IterableWrapper(range(12)).shuffle().sharding_filter()


OPENED: dict[str, Callable[[], dict[str, Any]]] = {
    "keys drawn": lambda: {"sampler": Drawing(False, 0), "batch_size": None},
    "keys counted": lambda: {"sampler": Drawing(True, 0), "batch_size": None},
    "batches drawn": lambda: {"batch_sampler": Drawing(False, 2)},
    "batches counted": lambda: {"batch_sampler": Drawing(True, 2)},
    "datapipe": lambda: {"dataset": shuffled_pipe(), "batch_size": 2},
}


@pytest.mark.parametrize("make", OPENED.values(), ids=OPENED)
@pytest.mark.parametrize("n_more", [0, 1])
def test_samplers_that_draw_as_they_are_opened(make: Any, n_more: int, workers: Any) -> None:
    """torch opens them once, or twice where it has started workers."""

    def all_of(loader: Any) -> list[Any]:
        return [torch.as_tensor(batch).tolist() for batch in loader]

    found, states = [], []
    for loader_class in LOADERS.values():
        torch.manual_seed(3)
        loader = loader_class(**{"dataset": Dataset(same), **make(), **workers})
        epochs = [all_of(loader) for _ in range(1 + n_more)]
        batches = iter(loader)
        next(batches)
        if loader_class is DataLoader:
            states.append(loader.state_dict())
        epochs += [all_of(batches), all_of(loader)]
        found.append((epochs, torch.get_rng_state().tolist()))
    assert found[0] == found[1]
    options = {"dataset": Dataset(same), **make()}
    if getattr(options.get("batch_sampler", options.get("sampler")), "counts", False):
        return  # a count of a sampler's own is in no state
    resumed = DataLoader(**options, **workers)
    resumed.load_state_dict(states[0])
    assert [all_of(resumed), all_of(resumed)] == found[0][0][1 + n_more :]


def test_orders_of_fastiter_are_not_moved_on(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch_data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(base, "__init__", _moving(base.__init__))
    loader = DataLoader(range(8), 2, sampler=ShuffleOrderSampler(0), **workers)
    with pytest.raises(RuntimeError, match=r"2 batches were drawn .* load a state_dict"):
        iter(loader)


class NotedProcess(process.BaseProcess):
    """A process of a context that multiprocessing does not know."""

    _start_method = None
    started: list[str] = []  # noqa: RUF012

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        NotedProcess.started.append(process_obj.name)
        return popen_fork.Popen(process_obj)


class NotedContext(context.ForkContext):
    _name = "noted"
    Process = NotedProcess


@pytest.mark.parametrize("persistent", [False, True])
def test_a_context_of_another_class_starts_torchs_workers(
    loader_class: Any, persistent: bool
) -> None:
    NotedProcess.started.clear()
    loader = loader_class(
        Dataset(same, 6),
        3,
        num_workers=2,
        multiprocessing_context=NotedContext(),
        persistent_workers=persistent,
    )
    for _ in range(2):
        assert [x.tolist() for x in loader] == [[0, 1, 2], [3, 4, 5]]
    assert len(NotedProcess.started) == (2 if persistent else 4)
    if loader_class is DataLoader:
        for call in (loader.state_dict, lambda: loader.load_state_dict({})):
            with pytest.raises(RuntimeError, match=r"has no state: torch's own .*NotedContext"):
                call()


def test_contexts_of_multiprocessing_start_fastiters_workers() -> None:
    loader = DataLoader(
        Dataset(same, 6), 3, num_workers=1, multiprocessing_context=get_context("fork")
    )
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2]
    assert loader.state_dict()["_snapshot"]["_snapshot_step"] == 1


class Itself:
    def __init__(self) -> None:
        self._dataset = self

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Watched(Itself):
    """Notes which attributes the class does not have are asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @property
    def _dataset(self) -> Any:  # type: ignore[override]
        self.asked.append("_dataset")
        return None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and "asked" in self.__dict__:
            self.asked.append(name)
        raise AttributeError(name)


def test_attributes_of_foreign_datasets_are_not_followed(loader_class: Any) -> None:
    loader_class(Mock(), 2)
    assert [x.tolist() for x in loader_class(Itself(), 2)] == [[0, 1], [2, 3]]
    watched = Watched()
    loader = loader_class(watched, 2)
    assert loader.dataset is watched
    assert watched.asked == []
    assert [x.tolist() for x in loader] == [[0, 1], [2, 3]]
    assert "_dataset" not in watched.asked


# ---- streams -------------------------------------------------------------------------------------


class BeginsAnew(torch_data.IterableDataset):
    """Is its own iterator, and begins again after its end."""

    def __init__(self, n: int) -> None:
        self.n, self.i = n, 0

    def __iter__(self) -> BeginsAnew:
        return self

    def __next__(self) -> int:
        self.i += 1
        if self.i > self.n:
            self.i = 0
            raise StopIteration
        return self.i - 1


@pytest.mark.parametrize("batch_size", [None, 1, 2, 3])
@pytest.mark.parametrize("n", [4, 0])
def test_a_stream_is_not_asked_after_its_end(
    loader_class: Any, workers: Any, batch_size: int | None, n: int
) -> None:
    n_workers = workers.get("num_workers", 1)
    loader = loader_class(BeginsAnew(n), batch_size, **workers)
    for _ in range(3):
        found = torch.cat([torch.as_tensor(x).reshape(-1) for x in [*loader, torch.empty(0)]])
        assert sorted(found.tolist()) == sorted(list(range(n)) * n_workers)


class Noting(torch_data.IterableDataset):
    """Writes lines into a file: when it is left, and whether the worker is known there."""

    def __init__(self, path: Path, n: int) -> None:
        self.path, self.n = path, n

    def note(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def __iter__(self) -> Any:
        try:
            for i in range(self.n):
                self.note("row")
                yield i
        finally:
            self.note(f"end {torch_data.get_worker_info() is not None}")


@pytest.mark.parametrize("n", [6, 10**6])
def test_a_stream_that_is_left_early_reaches_its_finally(
    loader_class: Any, workers: Any, n: int, tmp_path: Path
) -> None:
    stream = Noting(tmp_path / "lines", n)
    loader = loader_class(stream, 2, **{**workers, **({"num_workers": 1} if workers else {})})
    gc.disable()  # nothing waits for a collection
    try:
        for number, _ in enumerate(loader):
            if number == 2:
                break
        if workers.get("persistent_workers"):
            del loader
        lines = stream.path.read_text().splitlines()
    finally:
        gc.enable()
    assert lines.count("row") >= 6
    known = {bool(workers)}
    if loader_class is torch_data.DataLoader and torch.__version__ >= (2, 14):
        known.add(False)  # torch's worker may have forgotten its number by then
    assert [line for line in lines if line != "row"] in [[f"end {one}"] for one in known]


class Slow(Noting):
    """Waits for longer than a worker is given that does not end."""

    def __iter__(self) -> Any:
        try:
            for i in range(self.n):
                self.note("waits" if i > 1 else "gives")
                if i > 1:
                    time.sleep(1)
                yield i
        finally:
            self.note("end")


def test_a_worker_ends_the_example_that_it_fetches(loader_class: Any, tmp_path: Path) -> None:
    stream = Slow(tmp_path / "lines", 10**6)
    iterator = iter(loader_class(stream, 1, num_workers=1, prefetch_factor=1))
    next(iterator)
    next(iterator)
    while "waits" not in stream.path.read_text().split():
        pass
    iterator._shutdown_workers()
    assert stream.path.read_text().splitlines()[-1] == "end"


class Drawn(torch_data.Dataset):
    """Examples hold numbers of the generators of whoever fetches them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), torch.rand(())


class DrawnStream(torch_data.IterableDataset):
    """Continues in the next epoch where the worker has stopped in the last one."""

    place = 0

    def __iter__(self) -> Any:
        for _ in range(20):
            self.place += 1
            yield self.place, random.random(), torch.rand(())


@pytest.mark.parametrize("of", [Drawn, DrawnStream], ids=["map", "stream"])
@pytest.mark.parametrize("collate_fn", [None, list], ids=["columns", "lists"])
@pytest.mark.parametrize(
    ("stops", "num_workers", "prefetch_factor"),
    [((4, 99), 2, 4), ((0, 6, 99), 1, 2), ((1, 1, 99), 3, 1), ((99, 3, 99), 2, 2)],
)
def test_random_numbers_after_loops_that_were_left(
    stops: tuple[int, ...], num_workers: int, prefetch_factor: int, collate_fn: Any, of: Any
) -> None:
    """In persistent workers: what was fetched ahead has drawn its numbers, in each run."""

    def batches(loader_class: Any) -> Any:
        torch.manual_seed(3)
        arguments = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
        loader = loader_class(of(), 2, persistent_workers=True, collate_fn=collate_fn, **arguments)
        return [
            [list(map(float, row)) for row in (batch if collate_fn else zip(*batch, strict=True))]
            for stop in stops
            for batch in itertools.islice(loader, stop)
        ]

    assert batches(DataLoader) == batches(torch_data.DataLoader)


class Closed(Dataset):
    """Says when it is gone, in a process that is not the program's."""

    def __init__(self, path: Path) -> None:
        super().__init__(same, 4)
        self.path, self.pid = path, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.pid:
            self.path.write_text("gone")


def test_a_dataset_that_was_loaded_in_a_worker_goes_with_it(tmp_path: Path) -> None:
    loader = DataLoader(Closed(tmp_path / "end"), 2, num_workers=1, multiprocessing_context="spawn")
    assert [x.tolist() for x in loader] == [[0, 1], [2, 3]]
    assert (tmp_path / "end").read_text() == "gone"


KEEPS_FRAMES = """
import os

try:
    import a_module_that_is_not_there
except ImportError as error:
    kept = error  # with the frames of all that import this module


class Closed:
    def __init__(self, path):
        self.path, self.pid = path, os.getpid()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def __del__(self):
        if os.getpid() != self.pid:
            self.path.write_text("gone")
"""


def test_so_does_one_whose_module_keeps_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keeps_frames.py").write_text(KEEPS_FRAMES)
    monkeypatch.syspath_prepend(tmp_path)
    dataset = importlib.import_module("keeps_frames").Closed(tmp_path / "end")
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn")
    assert [x.tolist() for x in loader] == [[0, 1], [2, 3]]
    assert (tmp_path / "end").read_text() == "gone"


# ---- batches -------------------------------------------------------------------------------------


def of_two(first: Any, second: Any) -> Callable[[int], Any]:
    """Examples of which the first five are like `first`, so that a batch of two has both."""
    return lambda i: first if i < 5 else second


class Sub(torch.Tensor):
    pass


F32, I64 = torch.full((2,), 0.1), torch.ones(2, dtype=torch.int64)
F64 = torch.full((2,), 0.1, dtype=torch.float64)
MIXED = {
    "float32, float64": of_two(F32, F64),
    "float64, float32": of_two(F64, F32),
    "float32, int64": of_two(F32, I64),
    "int64, float32": of_two(I64, F32),
    "bool, int64": of_two(I64.bool(), I64),
    "int64, bool": of_two(I64, I64.bool()),
    "float16, float32": of_two(torch.full((2,), 7e4).half(), torch.full((2,), 7e4)),
    "bfloat16, float32": of_two(F32.bfloat16(), F32),
    "complex64, float32": of_two(F32.to(torch.complex64), F32),
    "arrays": of_two(F32.numpy(), F64.numpy()),
    "numpy scalars": of_two(np.float32(0.1), np.float64(0.1)),
    "numpy integers": of_two(np.int32(1), np.int64(2**40)),
    "int, float": of_two(1, 0.1),
    "float, int": of_two(0.1, 1),
    "bool, int": of_two(True, 2),
    "nested": of_two({"a": [F32], "b": "x"}, {"a": [F64], "b": "y"}),
    "empty": of_two(torch.empty(0), torch.empty(0).double()),
    "subclass, plain": of_two(F32.as_subclass(Sub), F32),
    "plain, subclass": of_two(F32, F32.as_subclass(Sub)),
    "subclass": of_two(F32.as_subclass(Sub), F64.as_subclass(Sub)),
}


def facts(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return type(batch), batch.dtype, batch.shape, batch.tolist()
    if isinstance(batch, dict):
        return {key: facts(value) for key, value in batch.items()}
    return [*map(facts, batch)] if isinstance(batch, list) else batch


@pytest.mark.parametrize("kind", MIXED)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_of_mixed_dtypes(kind: str, num_workers: int) -> None:
    found = []
    for loader_class in LOADERS.values():
        try:
            loader = loader_class(Dataset(MIXED[kind], 8), 2, num_workers=num_workers)
            found.append([facts(batch) for batch in loader])
        except Exception as error:
            found.append(type(error))
    assert found[1] == found[0]


class Meta(torch.Tensor):
    """As MONAI's: attributes go from tensor to tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(found, Meta) and isinstance(args[0], Meta):
            found.__dict__.update(args[0].__dict__)
        return found


def parts(batch: list[int]) -> list[Any]:
    whole = torch.arange(100_000.0)
    meta = whole[2:4].as_subclass(Meta)
    meta.meta = {"name": "m"}
    halves = torch.ones(3, dtype=torch.bfloat16).as_subclass(Sub)
    parameter = torch.nn.Parameter(torch.ones(2))
    return [whole[:2].as_subclass(Sub), meta, halves, parameter, whole[4:6]]


def test_tensors_of_subclasses_take_their_own_bytes(loader_class: Any) -> None:
    (batch,) = loader_class(range(2), 2, num_workers=1, collate_fn=parts)
    assert [type(x) for x in batch] == [Sub, Meta, Sub, torch.nn.Parameter, torch.Tensor]
    assert facts(batch) == facts(parts([]))
    assert batch[1].meta == {"name": "m"} and batch[3].requires_grad
    if loader_class is DataLoader:
        assert [x.untyped_storage().nbytes() for x in batch] == [8, 8, 6, 8, 8]


class Pairs(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("kind", [dict, list, bool, Pairs])
def test_functions_that_a_program_registers_for_containers(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    def count(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return f"{len(batch)} of {type(batch[0]).__name__}"

    examples = {dict: {"a": 1}, list: [1, 2], bool: True, Pairs: Pairs(a=1)}
    monkeypatch.setitem(torch_collate.default_collate_fn_map, kind, count)
    dataset = Dataset(of_two(examples[kind], examples[kind]), 120)
    for number in (0, 1):
        expected, found = (
            list(loader_class(dataset, 4, num_workers=number)) for loader_class in LOADERS.values()
        )
        assert found == expected == [f"4 of {kind.__name__}"] * 30


def counted(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return f"{len(batch)} of {type(batch[0]).__name__}"


@pytest.mark.parametrize("name", ["default_collate", "collate"])
def test_functions_of_torch_that_a_program_replaces(
    monkeypatch: pytest.MonkeyPatch, name: str, workers: Any
) -> None:
    monkeypatch.setattr(torch_collate, name, counted)
    for loader_class in LOADERS.values():
        assert list(loader_class(range(80), 4, **workers)) == ["4 of int"] * 20


@pytest.mark.parametrize(
    "kind", [torch_data.BatchSampler, torch_data.RandomSampler, torch_data.SequentialSampler]
)
def test_iter_of_torchs_samplers_that_a_program_replaces(
    monkeypatch: pytest.MonkeyPatch, kind: Any, workers: Any
) -> None:
    keys = [[5, 1], [3]] if kind is torch_data.BatchSampler else [5, 1, 3]
    monkeypatch.setattr(kind, "__iter__", lambda self: iter(keys))
    shuffle = kind is not torch_data.SequentialSampler
    for loader_class in LOADERS.values():
        loader = loader_class(range(8), 2, shuffle=shuffle, **workers)
        assert [batch.tolist() for batch in [*loader, *loader]] == [[5, 1], [3]] * 2


def test_functions_of_torchs_table_that_are_exchanged_or_wrapped(
    monkeypatch: pytest.MonkeyPatch, workers: Any
) -> None:
    table = torch_collate.default_collate_fn_map
    monkeypatch.setitem(table, float, torch_collate.collate_int_fn)  # of another dtype
    monkeypatch.setitem(table, int, functools.wraps(torch_collate.collate_int_fn)(counted))
    dataset = Dataset(lambda i: (i, i / 2), 80)
    expected, found = (
        [facts(batch) for batch in loader_class(dataset, 4, **workers)]
        for loader_class in LOADERS.values()
    )
    assert found == expected and expected[0][0] == "4 of int"


class Gives(Dataset):
    """Gives other numbers of examples than it was asked for."""

    def __getitems__(self, indices: list[int]) -> Any:
        return self.function(indices)


@pytest.mark.parametrize(
    "function",
    [
        lambda indices: [i for i in indices if i % 5],
        lambda indices: [i for i in indices for _ in range(2)],
        lambda indices: indices[:3] if indices[0] > 6 else indices,
        tuple,
        lambda indices: np.array([indices, indices]).T,
    ],
    ids=["fewer", "more", "later fewer", "tuple", "array"],
)
@pytest.mark.parametrize("collate_fn", [None, list], ids=["default", "own"])
def test_getitems_that_gives_others(function: Any, collate_fn: Any, workers: Any) -> None:
    expected, found = (
        [facts([torch.as_tensor(part) for part in batch]) for batch in loader]
        for loader in (
            loader_class(Gives(function), 4, collate_fn=collate_fn, **workers)
            for loader_class in LOADERS.values()
        )
    )
    assert found == expected


@pytest.mark.parametrize("item", [slice(2, 5), 3, None], ids=str)
def test_items_of_a_batch_sampler_that_are_no_containers(
    loader_class: Any, workers: Any, item: Any
) -> None:
    """`__getitems__` gets them as they are; without it, each batch is an error."""
    numbers = np.arange(12)
    loader = loader_class(
        Gives(lambda key: numbers[key]), batch_sampler=[item, [4, 6]], collate_fn=np.copy, **workers
    )
    assert [batch.tolist() for batch in loader] == [numbers[item].tolist(), [4, 6]]
    iterator = iter(loader_class(range(12), batch_sampler=[item, [4, 6]], **workers))
    with pytest.raises(TypeError, match="not iterable"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[4, 6]]


def test_a_number_of_workers_that_is_changed(loader_class: Any, workers: Any) -> None:
    loader = loader_class(Dataset(lambda i: os.getpid() == here), 4, **workers)
    seen = []
    for number in (loader.num_workers, 0, loader.num_workers):
        loader.num_workers = number
        seen.append([bool(batch.all()) for batch in loader])
    own = [loader.num_workers == 0] * 3
    assert seen == [own, [True] * 3, own]


@pytest.mark.parametrize("patch", [True, False])
def test_torchdatas_loader_over_a_patched_one(patch):
    """Its `__init__` does not call that of the class it derives from."""
    pytest.importorskip("torchdata.stateful_dataloader")
    program = (
        "import fastiter.torch, torch.utils.data, torch.utils.data.dataloader as place\n"
        f"if {patch}:\n"
        "    torch.utils.data.DataLoader = place.DataLoader = fastiter.torch.DataLoader\n"
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        "loader = StatefulDataLoader(range(5), 2)\n"
        "assert len(loader) == len(list(loader)) == 3\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

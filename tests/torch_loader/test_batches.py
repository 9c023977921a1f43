"""The batches of `fastiter.torch.DataLoader` are those of torch's own loader, bit for bit."""

from __future__ import annotations

import collections
import copy
import functools
import platform
import random
import re
import resource
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from inside import planner_of, ring_of
from outside import reserved
from programs import run

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from datasets_of import Dataset, N, Stream  # noqa: E402

from fastiter import concat_examples  # noqa: E402
from fastiter.torch import DataLoader, as_default  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")


class Point(NamedTuple):
    x: Any
    y: Any


def nested(i):
    inner = {"a": (i, [float(i), Point(i, f"k{i}")]), "b": b"z", "c": torch.full((2, 1), i)}
    return {"x": np.full(3, i), "inner": inner, "name": f"q{i}", "parts": (f"r{i}", b"s", i)}


EXAMPLES = {
    "int": lambda i: i,
    "float": lambda i: i / 2,
    "bool": lambda i: i % 2 == 0,
    "str": lambda i: ["", "é", "一", "\U0001f600", "\ud800", "plain"][i % 6] + str(i),
    "bytes": lambda i: b"x" * i,
    "tensor": lambda i: torch.full((3, 2), i),
    "0-d tensor": lambda i: torch.tensor(i),
    "empty tensor": lambda i: torch.empty(0, 4),
    "bfloat16": lambda i: torch.full((2,), i, dtype=torch.bfloat16),
    "complex32": lambda i: torch.full((2,), complex(i, 1), dtype=torch.complex32),
    "complex": lambda i: torch.full((2,), i, dtype=torch.complex64),
    "bool tensor": lambda i: torch.tensor([i % 2 == 0]),
    "view": lambda i: torch.arange(12).reshape(3, 4).t() + i,
    "gradients": lambda i: torch.ones(2, requires_grad=i == 5) * i,
    "array": lambda i: np.full((2, 3), i, np.float32),
    "0-d array": lambda i: np.array(i),
    "numpy scalar": lambda i: np.float32(i),
    "uint16": lambda i: np.uint16(i),
    "tuple": lambda i: (np.full(3, i), i, f"s{i}"),
    "list": lambda i: [i, float(i)],
    "list of arrays": lambda i: [np.full(2, i) for _ in range(3)],
    "named tuple": lambda i: Point(torch.full((2,), i), f"t{i}"),
    "dict": lambda i: {"x": i, "y": torch.full((2,), i), 3: f"u{i}"},
    "ordered dict": lambda i: collections.OrderedDict(x=i, y=torch.full((2,), i)),
    "nested": nested,
    "empty containers": lambda i: (i, (), {"a": [], "b": i}),
    "numbers of two types": lambda i: i if i < 20 else float(i),
    "shapes that change": lambda i: torch.full((2 + i // 15,), i),
    "keys that change": lambda i: {"x": i, "y": i} if i < 20 else {"y": i, "x": i, "z": 0},
}


def equal(a: Any, b: Any) -> bool:
    """Whether two batches have the same types, shapes, dtypes and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def small_arrays(i):
    fixed = np.full(3, i)
    fixed.flags.writeable = False
    others = [np.full((2, 3), i, order="F"), np.full(2, i, ">i4"), np.array(i), np.zeros((0, 2))]
    named = [np.full(2, f"é{i}"), np.array([(i, 1.5)], "i1,f8"), np.array(i, "M8[s]")]
    return [*(np.full(3, i + k, np.float32) for k in range(50)), fixed, *others, *named, fixed]


def as_list(examples):
    return list(examples)


def test_small_arrays_take_little_more_than_their_bytes():
    dataset = Dataset(small_arrays)
    loader = DataLoader(dataset, batch_size=5, num_workers=1, collate_fn=as_list)
    batches = list(loader)
    examples = [example for batch in batches for example in batch]
    assert equal(examples, [dataset[i] for i in range(N)])
    for example in examples:
        assert example[50] is example[-1]
        assert example[51].flags.f_contiguous
        assert all(array.flags.writeable for array in example)
    n_arrays = sum(map(len, examples))
    assert loader.stats().bytes_written < 75 * n_arrays


def channels_last(examples):
    batch = torch.stack(examples).contiguous(memory_format=torch.channels_last)
    return batch, batch.to(torch.bfloat16), batch[:, :2, ::2], batch.numpy()


def test_the_order_of_axes_in_memory_stays():
    dataset = Dataset(lambda i: torch.arange(60.0).reshape(3, 4, 5) + i, n=8)
    loader = DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=channels_last)
    for number, batch in enumerate(loader):
        expected = channels_last([dataset[i] for i in range(4 * number, 4 * number + 4)])
        assert equal(batch, expected)
        images, halves, part, array = batch
        for tensor in images, halves:
            assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert part.stride() == (20, 1, 10, 2)  # written without what lies between
        assert array.strides == expected[3].strides


def epochs_of(loader_class, dataset, epochs=3, seed=3, **arguments):
    """All batches of some epochs, or the text of the first error."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    loader = loader_class(dataset, generator=generator, **arguments)
    found = []
    try:
        for _ in range(epochs):
            found.append(list(loader))
    except Exception as error:
        return type(error), str(error)
    return found


def check(dataset, workers=(0, 2), **arguments):
    """Compare with torch's loader, with as many workers."""
    for number in workers:
        expected, found = (
            epochs_of(loader_class, copy.deepcopy(dataset), num_workers=number, **arguments)
            for loader_class in (torch_data.DataLoader, DataLoader)
        )
        assert equal(found, expected), (number, str(found)[:500], str(expected)[:500])


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("arguments", [{}, {"shuffle": True}, {"drop_last": True}], ids=str)
def test_default_collate(kind, arguments):
    found = epochs_of(DataLoader, Dataset(EXAMPLES[kind]), batch_size=5, num_workers=2, **arguments)
    expected = epochs_of(torch_data.DataLoader, Dataset(EXAMPLES[kind]), batch_size=5, **arguments)
    if isinstance(expected, tuple):  # shapes that do not fit: torch's error, and the index
        kind, text = expected
        assert found[0] is kind and text in found[1]
    else:
        assert equal(found, expected), (str(found)[:500], str(expected)[:500])


def test_columns_are_used():
    """The examples of most kinds are written straight into columns; no batch is pickled."""
    plain = {"int", "str", "tensor", "array", "tuple", "list", "named tuple", "dict", "nested"}
    for kind in plain:
        loader = DataLoader(Dataset(EXAMPLES[kind], 200), batch_size=5, num_workers=2)
        iterator = iter(loader)
        for _ in range(30):
            next(iterator)
        assert planner_of(iterator).by_indices, kind


class Changing(torch_data.Dataset):
    """Tensors of a size, or texts, until it is changed."""

    size: int | None = 2

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return ("n" * i) if self.size is None else torch.full((self.size,), i)


@pytest.mark.parametrize(
    ("method", "sizes"),
    [("fork", (2, 2, 3, 3, None, None, 2)), ("spawn", (2, 3, None, 2))],  # each imports torch anew
)
def test_shared_rows_have_the_columns_of_the_epoch_before(method, sizes):
    options = {"batch_size": 5, "num_workers": 2, "multiprocessing_context": method}
    plain = torch_data.DataLoader(Changing(), **options)
    loader = DataLoader(Changing(), dataset_timeout=100, **options)
    assert ring_of(iter(loader)).schema is None
    for size in sizes:
        plain.dataset.size = loader.dataset.size = size
        found = [*loader]
        assert equal(found, [*plain]), size
        assert ring_of(iter(loader)).schema is not None
    loader.collate_fn = list
    assert equal([*loader], [*torch_data.DataLoader(Changing(), 5, collate_fn=list)])


def test_random_numbers_are_those_of_torchs_workers():
    def draw(index):
        return random.random(), np.random.rand(), torch.rand(2), index

    check(Dataset(draw), workers=(2,), batch_size=4, shuffle=True)
    check(Dataset(draw), workers=(2,), batch_size=4, persistent_workers=True)


class Sliced(torch_data.Dataset):
    """Takes keys of any type."""

    def __len__(self):
        return N

    def __getitem__(self, key):
        if isinstance(key, slice):
            return torch.arange(*key.indices(N))
        return str(key)


SAMPLERS = {
    "sequential": lambda d, g: torch_data.SequentialSampler(d),
    "random": lambda d, g: torch_data.RandomSampler(d, generator=g),
    "random, own seed": lambda d, g: torch_data.RandomSampler(d),
    "with replacement": lambda d, g: torch_data.RandomSampler(d, True, 50, generator=g),
    "more than all": lambda d, g: torch_data.RandomSampler(d, num_samples=91, generator=g),
    "weighted": lambda d, g: torch_data.WeightedRandomSampler(range(1, N + 1), 40, generator=g),
    "subset": lambda d, g: torch_data.SubsetRandomSampler([3, 5, 11, 7], generator=g),
    "distributed": lambda d, g: torch_data.DistributedSampler(d, 2, 1),
    "list": lambda d, g: [1, 5, 9, 1],
    "numpy integers": lambda d, g: list(np.arange(7)),
    "tensors": lambda d, g: list(torch.arange(7)),
    "bool": lambda d, g: [True, False],
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("batch_size", [4, None])
def test_samplers(kind, batch_size):
    found = []
    for loader_class in (torch_data.DataLoader, DataLoader, DataLoader):
        torch.manual_seed(5)
        generator = torch.Generator()
        generator.manual_seed(4)
        dataset = Dataset(lambda i: torch.as_tensor(i) * 10)
        workers = 2 if len(found) == 2 else 0
        loader = loader_class(
            dataset,
            batch_size=batch_size,
            sampler=SAMPLERS[kind](dataset, generator),
            num_workers=workers,
        )
        batches = []
        for epoch in range(3):
            if kind == "distributed":
                loader.sampler.set_epoch(epoch)
            batches += list(loader)
        found.append(batches)
    assert len(found[0]) > 0
    assert equal(found[1], found[0]) and equal(found[2], found[0])


@pytest.mark.parametrize(
    "keys",
    [["a", "bcd"], [(1, 2), ()], [slice(2, 5), slice(0, 3)], [2**63, 5], [-1, 3]],
    ids=str,
)
def test_keys_of_any_type(keys):
    check(Sliced(), sampler=keys, batch_size=1)
    check(Sliced(), sampler=keys, batch_size=None)
    check(Sliced(), batch_sampler=[keys[:1], keys[:1], keys[1:]])


def test_batches_of_varying_size():
    batches = [[0, 1, 2], [3], [4, 5, 6, 7], [8, 8]]
    check(Dataset(lambda i: (torch.full((2,), i), i)), batch_sampler=batches)


class Growing:
    """A batch sampler whose batches have 1 to 12 keys; its ``batch_size``, if any, is another."""

    def __init__(self, batch_size=None):
        if batch_size is not None:
            self.batch_size = batch_size

    def __iter__(self):
        sizes = np.arange(120) // 10 + 1
        batches = np.split(np.arange(sizes.sum()), sizes.cumsum()[:-1])
        return iter([batch.tolist() for batch in batches])


@pytest.mark.parametrize("batch_size", [None, 4, 5000, 10**7])
@pytest.mark.parametrize("options", [{}, {"dataset_timeout": 60, "on_timeout": "retry"}])
def test_columns_have_room_for_the_batches_that_came(batch_size, options):
    dataset = Dataset(lambda i: (torch.full((5000,), i), i), 780)
    loader = DataLoader(dataset, batch_sampler=Growing(batch_size), num_workers=2, **options)
    expected = torch_data.DataLoader(dataset, batch_sampler=Growing())
    most = 0
    for ours, theirs in zip(loader, expected, strict=True):
        assert all(map(torch.equal, ours, theirs))
        most = max(most, reserved())
    assert most < 64 << 20  # a batch has 480 KB; 5,000 such rows have 200 MB
    if batch_size != 4:  # larger batches than these are made as wholes
        assert sum(worker.spills for worker in loader.stats().workers) < 390


def test_a_batch_size_that_no_batch_has_takes_no_memory():
    dataset = Dataset(lambda i: (torch.full((50_000,), i), i), 40)
    loader = DataLoader(dataset, 10_000, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert [len(rows) for _, rows in loader] == [40]
        assert reserved() < 128 << 20  # 10,000 rows have 4 GB


def type_of(key):
    return str(getattr(key, "dtype", type(key)))


class Types(Dataset):
    def __init__(self):
        super().__init__(lambda key: (type_of(key), int(np.sum(np.asarray(key)))))

    def __getitems__(self, keys):
        return [(type(keys).__name__, *self[key]) for key in keys]


OneByOne = type("OneByOne", (Types,), {"__getitems__": None})
ARRAYS = {
    "int64": lambda: [np.arange(3 * k, 3 * k + 3) for k in range(9)],
    "int32": lambda: [np.arange(3 * k, 3 * k + 3, dtype=np.int32) for k in range(9)],
    "big-endian": lambda: [np.arange(3 * k, 3 * k + 3, dtype=">i8") for k in range(9)],
    "strided": lambda: [np.arange(N)[k::9] for k in range(9)],
    "bool": lambda: [np.array([True, False])] * 3,
    "float": lambda: [np.array([1.0, 2.0])] * 3,
    "rows": lambda: [np.arange(6).reshape(3, 2)] * 3,
    "tensors": lambda: [torch.arange(3 * k, 3 * k + 3) for k in range(9)],
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("dataset", [Types, OneByOne])
def test_batches_of_keys_that_are_arrays(kind, dataset):
    check(dataset(), batch_sampler=ARRAYS[kind](), epochs=1)


@pytest.mark.parametrize("kind", ["int64", "int32", "strided", "bool", "rows"])
def test_workers_share_the_rows_of_batches_whose_keys_are_arrays(kind):
    arguments = {"batch_sampler": ARRAYS[kind](), "num_workers": 2}
    dataset = Dataset(lambda key: np.sum(np.asarray(key)))
    found = list(DataLoader(dataset, dataset_timeout=60, **arguments))
    assert equal(found, list(torch_data.DataLoader(dataset, **arguments)))


class GeneratedBatches:
    """Batches that are generators, which have no length."""

    def __iter__(self):
        for first in range(0, 30, 3):
            yield (key for key in range(first, first + 3))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_keys_that_are_generators(workers):
    dataset = Dataset(lambda i: i)
    loader = DataLoader(dataset, batch_sampler=GeneratedBatches(), num_workers=workers)
    expected = list(torch_data.DataLoader(dataset, batch_sampler=GeneratedBatches()))
    assert equal(list(loader), expected)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    assert equal(list(loader), expected[1:])


class Many(Dataset):
    """Fetches a batch in one call, and counts the calls in its examples."""

    calls = 0

    def __getitems__(self, indices):
        self.calls += 1
        return [(index, self.calls) for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
def test_getitems_is_called_once_for_a_batch(workers):
    check(Many(None), workers=(workers,), batch_size=5, epochs=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"on_error": "skip"},
        {"num_workers": 1},
        {"num_workers": 1, "on_error": "skip"},
        {"num_workers": 1, "dataset_timeout": 60},
        {"num_workers": 1, "hedge": 0.1},
    ],
    ids=str,
)
def test_getitems_is_not_called_without_batches(arguments):
    dataset = Many(lambda key: ("one", key), 7)
    loader = DataLoader(dataset, batch_size=None, **arguments)
    assert list(loader) == list(torch_data.DataLoader(dataset, batch_size=None))


def test_the_datasets_of_torch():
    first, second = torch.arange(40).reshape(20, 2), torch.arange(20)
    tensors = torch_data.TensorDataset(first, second)
    check(tensors, batch_size=3)
    check(torch_data.Subset(tensors, [4, 2, 9]), batch_size=2)
    check(torch_data.ConcatDataset([tensors, tensors]), batch_size=7, shuffle=True)
    check(torch_data.StackDataset(a=tensors, b=tensors), batch_size=3)


def total(batch):
    return {"sum": sum(x.sum() for x, _ in batch), "names": [name for _, name in batch]}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_fn_of_ones_own(workers):
    dataset = Dataset(lambda i: (torch.full((i % 3 + 1,), i), f"n{i}"))
    check(dataset, workers=(workers,), batch_size=4, collate_fn=total)
    check(dataset, workers=(workers,), batch_size=4, collate_fn=lambda batch: batch)


@pytest.mark.parametrize("kind", sorted({*EXAMPLES} - {"gradients"}))
@pytest.mark.parametrize("container", [list, tuple])
def test_a_collate_fn_that_returns_the_examples(container, kind):
    check(
        Dataset(EXAMPLES[kind]),
        workers=(2,),
        batch_size=4,
        collate_fn=container,
        persistent_workers=True,
    )


def test_rows_are_used_for_examples_of_any_shape():
    dataset = Dataset(lambda i: (np.full((i % 5, 2), i), i), 200)
    loader = DataLoader(dataset, batch_size=5, num_workers=2, collate_fn=list)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(30)]
    assert planner_of(iterator).by_indices
    for array, number in (example for batch in batches for example in batch):
        assert array.shape == (number % 5, 2) and (array == number).all()
        array[...] = 0  # it is the program's own


@pytest.mark.parametrize("collate_fn", [None, list])
def test_columns_of_a_buffer_that_the_dataset_writes_again(collate_fn):
    buffer = np.zeros(2)

    def written(i):
        buffer[:] = i
        return buffer

    loader = DataLoader(Dataset(written, 160), 2, collate_fn=collate_fn, num_workers=2)
    *_, last = ([float(row[1]) for row in batch] for batch in loader)
    assert last == [158, 159]


def joined(batch):
    """The result of a worker's `default_collate`, and whether it has a file of shared memory."""
    whole = torch_data.default_collate(batch)
    return whole, whole.is_shared()


def test_a_collate_fn_that_calls_torchs():
    dataset = Dataset(lambda i: torch.full((3,), i))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=joined)
    for number, (batch, is_shared) in enumerate(loader):
        assert batch[:, 2].tolist() == [*range(4 * number, min(4 * number + 4, N))]
        assert not is_shared


class Large(torch_data.IterableDataset):
    """Examples of 16 MB that take no memory."""

    def __iter__(self):
        return iter([{"x": torch.full((1,), i).expand(1 << 21), "i": i} for i in range(8)])


def limit_own_memory(worker):
    used = int(re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + (40 << 20), resource.RLIM_INFINITY))


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts otherwise there")
def test_whole_batches_are_made_in_place():
    """A worker needs no memory of its own of a batch's size."""
    loader = DataLoader(Large(), batch_size=4, num_workers=1, worker_init_fn=limit_own_memory)
    for number, batch in enumerate(loader):
        assert (
            batch["x"][:, -1].tolist()
            == batch["i"].tolist()
            == [*range(4 * number, 4 * number + 4)]
        )


# In a program of its own: workers that are forked have the free memory of the process before them.
OWN_MEMORY = """
import re, torch
from pathlib import Path
from fastiter.torch import DataLoader

class OwnMemory(torch.utils.data.Dataset):
    # Examples of 1 MB, each with the private memory of the process that fetches it, in bytes.
    def __len__(self):
        return 32 * 12

    def __getitem__(self, i):
        example = torch.full((1 << 18,), float(i))
        status = Path("/proc/self/status").read_text()
        return example, int(re.search(r"RssAnon:\\s*(\\d+)", status)[1]) << 10

loader = DataLoader(OwnMemory(), 32, num_workers=2, multiprocessing_context="fork")
own = [memory.tolist() for _, memory in loader]
print(max(own[0]) - min(own[0]), max(own[-1] + own[-2]) - min(own[0]))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the heap is given back by glibc alone"
)
def test_workers_do_not_keep_the_memory_of_the_first_batches():
    first, last = map(int, run("-c", OWN_MEMORY).stdout.split())
    assert first > 20 << 20  # made as a whole: its examples live at a time
    assert last < 8 << 20  # made in columns


def test_concat_examples_pads_in_place():
    collate_fn = functools.partial(concat_examples, padding=-1)
    dataset = Dataset(lambda i: (np.arange(i % 7 + 1), i), 200)
    check(dataset, batch_size=8, collate_fn=collate_fn)
    iterator = iter(DataLoader(dataset, batch_size=8, collate_fn=collate_fn, num_workers=2))
    for _ in range(20):
        next(iterator)
    assert planner_of(iterator).by_indices


class Registered:
    def __init__(self, value):
        self.value = value


def test_types_registered_with_torchs_collate():
    table = torch_data._utils.collate.default_collate_fn_map
    former = dict(table)

    def join(batch, *, collate_fn_map=None):
        return torch.tensor([part.value for part in batch])

    try:
        table[Registered] = join
        check(Dataset(lambda i: {"a": Registered(i), "b": i}), batch_size=4)
        table[int] = lambda batch, *, collate_fn_map=None: torch.tensor(batch) + 1000
        check(Dataset(lambda i: (i, float(i))), batch_size=4)
    finally:
        table.clear()
        table.update(former)


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_iterable_datasets(workers, batch_size):
    check(Stream(), workers=(workers,), batch_size=batch_size)
    if batch_size:
        check(Stream(), workers=(workers,), batch_size=batch_size, drop_last=True)
    check(
        torch_data.ChainDataset([Stream(5), Stream(9)]), workers=(workers,), batch_size=batch_size
    )


class Lying(Stream):
    def __len__(self):
        return 3


def test_a_length_that_lies_is_warned_of():
    for loader_class in (torch_data.DataLoader, DataLoader):
        loader = loader_class(Lying(), num_workers=1)
        assert len(loader) == 3
        with pytest.warns(UserWarning, match="was reported to be 3") as warned:
            list(loader)
        assert sum(w.category is UserWarning for w in warned) == 20


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods(method):
    check_method(method, torch_data.TensorDataset(torch.arange(50).reshape(25, 2)))


def check_method(method, dataset):
    found = epochs_of(
        DataLoader, dataset, batch_size=4, num_workers=2, multiprocessing_context=method
    )
    assert equal(found, epochs_of(torch_data.DataLoader, dataset, batch_size=4))


class Unpicklable(torch_data.Dataset):
    def __init__(self):
        self.stream = (i for i in ())

    def __len__(self):
        return 4


def test_advice_names_the_loaders_arguments(monkeypatch, tmp_path):
    loader = DataLoader(Unpicklable(), num_workers=1, multiprocessing_context="spawn")
    advice = "pass multiprocessing_context='fork', or pass num_workers=0"
    with pytest.raises(TypeError, match=advice):
        iter(loader)
    loader = DataLoader([0], num_workers=1, multiprocessing_context="spawn")
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FileNotFoundError, match="pass multiprocessing_context='fork'"):
        iter(loader)


def test_as_many_batches_are_begun_ahead():
    def n_drawn(loader_class):
        drawn = []
        sampler = (drawn.append(i) or [i] for i in range(30))
        iterator = iter(loader_class(range(30), batch_sampler=sampler, num_workers=2))
        next(iterator), next(iterator)
        return len(drawn)

    assert n_drawn(DataLoader) == n_drawn(torch_data.DataLoader) == 6


FORKING = """
import warnings
from fastiter.torch import DataLoader

class OfGpu:
    __cuda_array_interface__ = {"version": 3}

class Dataset(list):
    pass

if __name__ == "__main__":
    dataset = Dataset([0])
    dataset.table = OfGpu()
    with warnings.catch_warnings(record=True) as caught:
        list(DataLoader(dataset, num_workers=1, multiprocessing_context="fork"))
    print(*(warning.message for warning in caught))
"""


def test_the_warning_of_a_fork_names_the_loaders_arguments(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FORKING)
    text = run(program).stdout
    assert "the dataset holds arrays of a GPU" in text
    assert "Pass multiprocessing_context='safe'" in text


def test_the_loader_is_torchs():
    loader = DataLoader(list(range(5)), batch_size=2)
    assert isinstance(loader, torch_data.DataLoader)
    assert len(loader) == 3 and loader.batch_size == 2
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3
    assert DataLoader[int] is not None


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"num_workers": 1, "multiprocessing_context": "none"},
        {"multiprocessing_context": "fork"},
    ],
    ids=str,
)
def test_arguments_that_torch_refuses(arguments):
    found = []
    for loader_class in (torch_data.DataLoader, DataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            loader_class(list(range(5)), **arguments)
        found.append((type(caught.value), str(caught.value)))
    assert found[0] == found[1]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("generator", [5, "cpu"])
def test_what_is_no_generator_is_refused_by_the_loop(generator, shuffle, workers):
    arguments = {"shuffle": shuffle, "generator": generator}
    with as_default():
        patched = torch_data.DataLoader
    found = []
    ours = functools.partial(DataLoader, num_workers=workers)
    for loader_class in (torch_data.DataLoader, ours, patched):
        loader = loader_class(range(5), **arguments)
        with pytest.raises(TypeError) as caught:
            iter(loader)
        found.append(str(caught.value))
    assert found == found[:1] * 3


@pytest.mark.parametrize(
    ("every", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError), ([], TypeError)]
)
def test_wrong_numbers_of_batches_between_states(every, error):
    with pytest.raises(error, match="snapshot_every_n_steps must be"):
        DataLoader(range(5), snapshot_every_n_steps=every)


def test_a_prefetch_factor_of_0_is_refused_when_workers_would_start():
    loader = DataLoader(list(range(5)), num_workers=1, prefetch_factor=0)
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0"):
        iter(loader)


def test_a_frame_is_no_table_as_for_torch() -> None:
    """Its columns are looked for, by the numbers of rows."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for kind in (torch.utils.data.DataLoader, DataLoader):
        for n_workers in (0, 1):
            with pytest.raises(KeyError):
                next(iter(kind(pandas.DataFrame({"a": [1, 2]}), 2, num_workers=n_workers)))


def leading_views(rows):
    whole = torch.stack(rows)
    return whole, whole[:, :2], whole


def test_tensors_that_are_views_of_one_have_memory_of_their_own():
    """And the same tensor twice stays one."""
    dataset = Dataset(lambda i: torch.full((3,), i + 1), 60)
    loader = DataLoader(dataset, 4, num_workers=1, collate_fn=leading_views)
    for whole, part, again in loader:
        part.zero_()
        assert whole.all()
        again.zero_()
        assert not whole.any()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "float32"])
def test_expanded_tensors_travel(dtype):
    """torch does not load its own pickles of wide unsigned numbers."""
    rows = [torch.tensor([i]).to(getattr(torch, dtype)).expand(3) for i in range(4)]
    for arguments in ({"collate_fn": list}, {"multiprocessing_context": "spawn"}):
        loaders = [
            kind(rows, 2, num_workers=1, **arguments)
            for kind in (DataLoader, torch_data.DataLoader)
        ]
        found, expected = map(list, loaders)
        assert len(found) == len(expected) == 2
        for batch, wanted in zip(found, expected, strict=True):
            for row, right in zip(batch, wanted, strict=True):
                assert row.dtype == right.dtype and row.tolist() == right.tolist()


def test_a_tensor_of_a_batch_is_not_shared_until_it_is_asked_to():
    loader = DataLoader(Dataset(lambda i: torch.full((3,), i), 60), 4, num_workers=1)
    for number, batch in enumerate(loader):
        assert not batch.is_shared()
        assert batch.share_memory_().is_shared()
        assert batch[:, 0].tolist() == [*range(4 * number, 4 * number + 4)]


class FirstIsEmpty(torch_data.Sampler):
    batch_size = 2

    def __iter__(self):
        return iter([[], [0, 1], []])

    def __len__(self):
        return 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_batch_may_be_the_first(workers):
    loader = DataLoader([5, 6], batch_sampler=FirstIsEmpty(), collate_fn=list, num_workers=workers)
    assert list(loader) == [[], [5, 6], []]


def test_gradients_of_examples_from_workers_are_required_without_a_history():
    dataset = Dataset(lambda i: torch.full((2,), float(i), requires_grad=True), 40)
    for batch in DataLoader(dataset, 4, num_workers=1):
        assert batch.requires_grad and batch.grad_fn is None


def test_private_attributes_of_torchs_iterator_with_workers_do_not_exist():
    iterator = iter(DataLoader(list(range(8)), 2, num_workers=1))
    assert isinstance(iterator, torch_data.dataloader._BaseDataLoaderIter)
    absent = "_index_queues _worker_result_queue _task_info _data_queue _send_idx"
    absent += " _rcvd_idx _workers_status _dataset_fetcher _prefetch_factor _in_order _shutdown"
    for name in (*absent.split(), "_worker_init_fn"):
        assert not hasattr(iterator, name), name
    assert len(list(iterator)) == 4


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors():
    """torch's own loader raises with workers, and joins them without."""
    dataset = Dataset(
        lambda i: torch.quantize_per_tensor(torch.full((2,), i * 1.0), 0.5, 0, torch.quint8)
    )
    for batch, plain in zip(
        DataLoader(dataset, 4, num_workers=1), torch_data.DataLoader(dataset, 4), strict=True
    ):
        assert batch.dtype == torch.quint8 and torch.equal(batch, plain)


def inner_of(i, n):
    items = [("a", i), ("b", -i)]
    return {"inner": dict(items if i < n else items[::-1])}


@pytest.mark.parametrize("of_another", [lambda i: inner_of(i, 20), lambda i: inner_of(i % 3, 1)])
def test_dicts_whose_keys_come_in_another_order(of_another):
    """A batch has the order of its first example."""
    dataset = Dataset(lambda i: (of_another(i)["inner"], of_another(i)), 40)
    for batch, plain in zip(
        DataLoader(dataset, 4, num_workers=1), torch_data.DataLoader(dataset, 4), strict=True
    ):
        assert list(batch[0]) == list(batch[1]["inner"]) == list(plain[0])
        assert batch[0]["a"].tolist() == plain[0]["a"].tolist()


@pytest.mark.parametrize("key", [True, 1.0, np.int64(1)], ids=repr)
def test_keys_of_dicts_that_are_equal_and_of_another_type(key):
    """A batch has those of its first example."""
    dataset = Dataset(lambda i: {"inner": {1 if i < 20 else key: i}}, 40)
    for batch, plain in zip(
        DataLoader(dataset, 4, num_workers=1), torch_data.DataLoader(dataset, 4), strict=True
    ):
        assert repr(batch) == repr(plain)

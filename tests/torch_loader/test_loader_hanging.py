"""Examples that hang or are slow: ``dataset_timeout``, ``on_timeout``, ``n_retries``, ``hedge``."""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter import concat_examples  # noqa: E402
from fastiter.errors import DatasetTimeoutError, TimeoutWarning  # noqa: E402
from fastiter.random import example_rng  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

N = 26
RETRY = {"dataset_timeout": 0.4, "on_timeout": "retry"}


class Pair(NamedTuple):
    x: Any
    y: Any


EXAMPLES = {
    "numbers": lambda i: i,
    "tensors": lambda i: (torch.full((2, 3), i), float(i)),
    "nested": lambda i: {"a": [torch.tensor(i), f"t{i}"], "b": Pair(np.full(2, i), b"x")},
    "texts": lambda i: f"text {i}",
}


class Examples(torch_data.Dataset):
    """Example 5 hangs where it is fetched first, or each time."""

    def __init__(self, function=EXAMPLES["numbers"], marks=None, always=()):
        self.function, self.marks, self.always = function, marks, always

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index in self.always or (self.marks and index == 5 and self._is_first(index)):
            threading.Event().wait()
        return self.function(index)

    def _is_first(self, index):
        try:
            os.close(os.open(Path(self.marks, str(index)), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class Whole(Examples):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def as_lists(examples):
    return [examples, len(examples)]


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return [*one] == [*other] and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("collate_fn", [None, as_lists])
@pytest.mark.parametrize("dataset", [Examples, Whole])
def test_a_row_that_hangs_once_is_fetched_elsewhere(kind, collate_fn, dataset, tmp_path):
    options = {"batch_size": 4, "collate_fn": collate_fn}
    expected = list(torch_data.DataLoader(dataset(EXAMPLES[kind]), **options))
    loader = DataLoader(
        dataset(EXAMPLES[kind], tmp_path), num_workers=2, n_retries=3, **RETRY, **options
    )
    found = list(loader)
    assert len(found) == len(expected) and all(map(equal, expected, found))
    assert loader.stats().timeouts >= 1
    assert all(map(equal, expected, loader))


@pytest.mark.parametrize("collate_fn", [None, as_lists])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_row_that_hangs_each_time_fails(collate_fn, on_error):
    loader = DataLoader(
        Examples(always={6}),
        4,
        num_workers=2,
        collate_fn=collate_fn,
        n_retries=1,
        on_error=on_error,
        **({"skip_limit": 1} if on_error == "skip" else {}),
        **RETRY,
    )
    iterator = iter(loader)
    next(iterator)
    if on_error == "raise":
        with pytest.raises(DatasetTimeoutError, match="dataset index 6"):
            next(iterator)
    else:
        next(iterator)
        assert loader.indices == [4, 5, 7]
        assert [one.index for one in loader.skipped] == [6]
    next(iterator)
    assert loader.indices == [8, 9, 10, 11]


class Key:
    def __init__(self, number):
        self.number = number

    def __repr__(self):
        return f"Key({self.number})"


KEYS = {
    "NumPy's": np.int64,
    "short": np.int16,
    "large": lambda i: i + 2**64,
    "tensors": torch.tensor,
    "texts": str,
    "tuples": lambda i: (i, "x"),
    "lists": lambda i: [i],
    "own": Key,
}


def number_of(key):
    key = key[0] if isinstance(key, (tuple, list)) else key
    return key.number if isinstance(key, Key) else int(key) % 2**64


class ByKey(Examples):
    """An example tells the key, and its type."""

    def __getitem__(self, key):
        return super().__getitem__(number_of(key)), f"{type(key).__name__} {key!r}"


class WholeByKey(ByKey):
    def __getitems__(self, keys):
        return [(self[key], type(keys).__name__) for key in keys]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("dataset", [ByKey, WholeByKey])
def test_a_row_of_another_key_that_hangs_once_is_fetched_elsewhere(kind, dataset, tmp_path):
    keys = [KEYS[kind](i) for i in range(9)]
    options = {"batch_size": 4, "sampler": keys}
    expected = list(torch_data.DataLoader(dataset(), **options))
    loader = DataLoader(dataset(marks=tmp_path), num_workers=2, n_retries=3, **RETRY, **options)
    found, indices = [], []
    for batch in loader:
        found.append(batch)
        indices += loader.indices
    assert len(found) == len(expected) and all(map(equal, expected, found))
    assert indices == keys
    stats = loader.stats()
    assert stats.timeouts + stats.deaths >= 1  # one that waits for a lock may be ended as it starts
    assert all(map(equal, expected, loader))


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_another_key_that_hangs_each_time_fails_alone(kind, on_error):
    keys = [KEYS[kind](i) for i in range(9)]
    options = {"sampler": keys, "num_workers": 2, "n_retries": 1, "collate_fn": list}
    options |= {"on_error": "skip", "skip_limit": 1} if on_error == "skip" else {}
    loader = DataLoader(ByKey(always={4}), 3, **options, **RETRY)
    iterator = iter(loader)
    next(iterator)
    if on_error == "raise":
        name = re.escape(f"key {keys[4]!r} took longer")
        with pytest.raises(DatasetTimeoutError, match=name) as caught:
            next(iterator)
        assert caught.value.index is keys[4]
    else:
        assert [number for number, _ in next(iterator)] == [3, 5]
        assert loader.indices == [keys[3], keys[5]]
        (skipped,) = loader.skipped
        assert skipped.index == (keys[4] if kind == "large" else repr(keys[4]))
    assert [number for number, _ in next(iterator)] == [6, 7, 8]


def test_another_key_that_hangs_costs_one_worker_in_the_next_epoch():
    options = {"sampler": [*"01234567"], "n_retries": 2, "on_error": "skip", "skip_limit": None}
    loader = DataLoader(
        ByKey(always={4}), 3, num_workers=2, persistent_workers=True, **options, **RETRY
    )
    ended = []
    for _ in range(2):
        assert len([*loader]) == 3
        ended.append(loader.stats().timeouts)
    assert ended == [3, 4]


@pytest.mark.parametrize("kind", KEYS)
def test_single_examples_of_other_keys_are_fetched_alone(kind, tmp_path):
    options = {"batch_size": None, "sampler": [KEYS[kind](i) for i in range(9)]}
    expected = list(torch_data.DataLoader(ByKey(), **options))
    loader = DataLoader(ByKey(marks=tmp_path), num_workers=2, n_retries=3, **RETRY, **options)
    assert list(loader) == expected


BATCHES = [
    (*([1, 2], (3, 4), range(5, 7), [np.int64(7), 8], [True]),),
    (*(np.array([1, 2]), np.array([[3, 4], [5, 6]]), torch.tensor([7, 8]), ["a", (9,)], []),),
]


class Told(Examples):
    def __getitem__(self, key):
        return f"{type(key).__name__} {key!r}"


class WholeTold(Told):
    """Each example tells the container, of whose keys a call may have a part."""

    def __getitems__(self, keys):
        return [f"{self[key]} of {type(keys).__name__}" for key in keys]


@pytest.mark.parametrize("batches", BATCHES, ids=["lists", "arrays"])
@pytest.mark.parametrize("dataset", [Told(), WholeTold()], ids=["single", "whole"])
def test_batches_of_any_keys_are_fetched_by_these(batches, dataset):
    options = {"batch_sampler": [*batches], "collate_fn": list}
    loader = DataLoader(dataset, num_workers=2, hedge=0.1, **options)
    assert list(loader) == list(torch_data.DataLoader(dataset, **options))


class Numbers(Examples):
    def __getitem__(self, key):
        return torch.cat([torch.rand(2), torch.from_numpy(example_rng().random(2))])


@pytest.mark.parametrize("kind", ["NumPy's", "large", "tensors", "tuples"])
@pytest.mark.parametrize(("seed_examples", "size"), [(True, 3), (False, 3), (True, None)])
def test_random_numbers_of_other_keys_are_the_same(kind, seed_examples, size):
    numbers = []
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "hedge": 0.1}):
        torch.manual_seed(0)
        keys = [KEYS[kind](i) for i in range(8)]
        loader = DataLoader(Numbers(), size, sampler=keys, seed_examples=seed_examples, **options)
        numbers.append(torch.cat([batch.reshape(-1, 4) for batch in loader]))
        if not seed_examples:
            numbers[-1] = numbers[-1][:, 2:]  # the others are the workers' own
    assert torch.equal(numbers[0], numbers[1]) and torch.equal(numbers[0], numbers[2])


@pytest.mark.parametrize("in_order", [True, False])
def test_a_state_of_other_keys_goes_on(in_order):
    def make(size):
        options = {"sampler": [f"{i}" for i in range(N)], "collate_fn": list, "in_order": in_order}
        return DataLoader(ByKey(), size, num_workers=2, hedge=0.1, **options)

    loader = make(4)
    iterator = iter(loader)
    seen = [number for _ in range(3) for number, _ in next(iterator)]
    other = make(5)
    other.load_state_dict(loader.state_dict())
    seen += [number for batch in other for number, _ in batch]
    assert sorted(seen) == list(range(N))


def test_a_key_that_does_not_pickle_is_an_error():
    loader = DataLoader(ByKey(), 2, sampler=[1, threading.Lock()], num_workers=1, hedge=0.1)
    with pytest.raises(TypeError, match="cannot pickle"):
        next(iter(loader))


class SlowAt(Examples):
    def __getitem__(self, index):
        time.sleep(1.0 if index in (9, "9") else 0.0)
        return int(index)


@pytest.mark.parametrize(("kind", "name"), [(int, "index 9"), (str, "key '9'")])
def test_a_warning_names_the_row(kind, name):
    keys = [*map(kind, range(N))]
    loader = DataLoader(SlowAt(), 4, sampler=keys, num_workers=1, dataset_timeout=0.3)
    with pytest.warns(TimeoutWarning, match=f"has been busy with {name} for"):
        found = [batch.tolist() for batch in loader]
    assert [i for batch in found for i in batch] == list(range(N))


def test_timeout_limits_next_beside_it():
    loader = DataLoader(Examples(always={0}), 4, num_workers=1, timeout=1, dataset_timeout=60)
    with pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
        next(iter(loader))


class Uneven(torch_data.Dataset):
    """Of whose rows one in a hundred is slow in the worker that fetches it first."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 600

    def __getitem__(self, key):
        index = number_of(key)
        slow = index % 100 == 57
        if slow:
            try:
                os.close(os.open(Path(self.folder, str(index)), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                slow = False
        time.sleep(0.5 if slow else 0.001)
        return index


@pytest.mark.parametrize("collate_fn", [None, list])
@pytest.mark.parametrize("kind", [int, np.int64, str], ids=["integers", "NumPy's", "texts"])
def test_slow_rows_are_fetched_twice(collate_fn, kind, tmp_path):
    options = {"sampler": [*map(kind, range(600))], "collate_fn": collate_fn}
    loader = DataLoader(Uneven(tmp_path), 20, num_workers=2, hedge=0.2, **options)
    found = [i for batch in loader for i in (batch if collate_fn else batch.tolist())]
    assert found == list(range(600))
    stats = loader.stats()
    assert stats.hedged >= stats.won >= 1


class FirstWaitsForLast(Examples):
    """The first example of a batch of 13 is there when the last one has been fetched."""

    def __init__(self):
        super().__init__()
        self.last = multiprocessing.Event()

    def __getitem__(self, key):
        if number_of(key) == 0:
            self.last.wait()
        elif number_of(key) == 12:
            self.last.set()
        return number_of(key)


@pytest.mark.parametrize("kind", ["integers", *KEYS])
def test_workers_share_the_rows_of_a_batch(kind):
    options = {"sampler": [KEYS.get(kind, int)(i) for i in range(N)], "collate_fn": list}
    loader = DataLoader(FirstWaitsForLast(), 13, num_workers=2, hedge=0.05, **options)
    assert [index for batch in loader for index in batch] == list(range(N))


def test_concat_examples_and_single_examples():
    pad = functools.partial(concat_examples, padding=0)
    options = {"num_workers": 2, "hedge": 0.1}
    rows = Examples(lambda i: np.arange(i % 3 + 1))
    for found, wanted in zip(
        DataLoader(rows, 4, collate_fn=pad, **options),
        DataLoader(rows, 4, collate_fn=pad),
        strict=True,
    ):
        assert np.array_equal(found, wanted)
    single = DataLoader(Examples(EXAMPLES["tensors"]), batch_size=None, **options)
    expected = torch_data.DataLoader(Examples(EXAMPLES["tensors"]), batch_size=None)
    assert all(map(equal, expected, single))


def test_arrays_of_the_other_byte_order_fail_as_in_torch():
    other = np.dtype(np.float32).newbyteorder()
    loader = DataLoader(Examples(lambda i: np.full(2, i, other)), 2, num_workers=2, hedge=0.1)
    iterator = iter(loader)
    for _ in range(N // 2):
        text = r"(?s)^Caught ValueError in DataLoader worker process\.\nOriginal .* byte order"
        with pytest.raises(ValueError, match=text):
            next(iterator)


def test_batches_of_samplers_and_seeds_are_the_same():
    batches = [[3, 1], [4], [15, 9, 2], list(range(20))]
    found = DataLoader(Examples(), batch_sampler=batches, num_workers=2, hedge=0.1)
    assert [batch.tolist() for batch in found] == batches
    numbers = []
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "hedge": 0.1}):
        torch.manual_seed(0)
        dataset = Examples(lambda i: torch.rand(2))
        loader = DataLoader(dataset, 4, shuffle=True, seed_examples=True, **options)
        numbers.append(torch.cat(list(loader)))
    assert torch.equal(numbers[0], numbers[1]) and torch.equal(numbers[0], numbers[2])


@pytest.mark.parametrize("in_order", [True, False])
def test_a_state_goes_on(in_order):
    def make(size):
        return DataLoader(Examples(), size, num_workers=2, hedge=0.1, in_order=in_order)

    loader = make(4)
    iterator = iter(loader)
    seen = [i for _ in range(3) for i in next(iterator).tolist()]
    state = loader.state_dict()
    del iterator
    other = make(5)
    other.load_state_dict(state)
    seen += [i for batch in other for i in batch.tolist()]
    assert sorted(seen) == list(range(N))
    plain = DataLoader(Examples(), 4)
    plain.load_state_dict(state) if in_order else None
    assert len(list(plain)) == (4 if in_order else 7)


class Stateful(Examples):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Stream(torch_data.IterableDataset):
    def __iter__(self):
        return iter([1])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dataset_timeout": 1}, "dataset_timeout=1.*num_workers=1 or more"),
        ({"hedge": 0.1}, "hedge=0.1.*num_workers=1 or more"),
        ({"on_timeout": "retry", "num_workers": 1}, "on_timeout='retry' needs a limit"),
        ({"n_retries": 5, "num_workers": 1}, "n_retries=5 retries nothing"),
        ({"on_timeout": "stop", "num_workers": 1}, "on_timeout must be"),
        ({"hedge": 2, "num_workers": 1}, "hedge must be above 0"),
        ({"dataset_timeout": -1, "num_workers": 1}, "dataset_timeout"),
        ({"dataset": Stateful(), "hedge": 0.1, "num_workers": 1}, "hedge=0.1.*state_dict"),
        ({"dataset": Stream(), "dataset_timeout": 1, "num_workers": 1}, "IterableDataset"),
    ],
)
def test_arguments_without_effect_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        DataLoader(**{"dataset": Examples(), "batch_size": 4, **options})

"""torch's tensors: `as_torch`.

Where processes are forked nothing was computed by torch before, so that its threads do not live.
"""

from __future__ import annotations

import collections
import copy
import functools
import gc
import io
import pickle
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from programs import run
from resuming import by_copy, by_dict, by_pickle, by_serializer
from tensors_of import Tensors, address

from fastiter import MultithreadIterator, SerialIterator, concat_examples, progress
from fastiter.interop import as_torch

torch = pytest.importorskip("torch", reason="torch is not installed")
data = torch.utils.data


class Pair(NamedTuple):
    x: Any
    y: Any


class Arrays:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return np.full((2, 3), i, np.float32), i


def iterator_of(kind: str, processes: Any, dataset: Any, **arguments: Any) -> Any:
    """By threads, by the caller, or by processes that start as ``kind`` says."""
    if kind in ("fork", "spawn"):
        return processes(dataset, context=kind, **arguments)
    cls = SerialIterator if kind == "serial" else MultithreadIterator
    return cls(dataset, 4, shuffle=False, **arguments)


# ---- as_torch


def test_tensors_are_the_memory_of_the_batch(processes):
    inner = processes(Arrays(), converter=concat_examples)
    batches = as_torch(inner)
    seen = []
    inner_next = type(inner).__next__

    class Spy:
        converter = concat_examples

        def __next__(self) -> Any:
            seen.append(inner_next(inner))
            return seen[-1]

    for _ in range(8):
        x, y = next(as_torch(Spy()))
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert (address(x), address(y)) == tuple(map(address, seen.pop()))
    assert next(batches)[1].tolist() == [32, 33, 34, 35]


def test_a_tensor_keeps_its_memory_for_a_thousand_batches(processes):
    batches = as_torch(processes(Arrays(), converter=concat_examples))
    for _ in range(4):
        next(batches)
    x, y = next(batches)
    part = x[1:3, 0]
    place = address(x)
    del x
    for _ in range(1000):
        other = next(batches)[0]
        assert address(other) != place
    del other
    gc.collect()
    assert part.tolist() == [[17.0] * 3, [18.0] * 3]
    assert y.tolist() == [16, 17, 18, 19]
    batches.finalize()
    gc.collect()
    assert part.tolist() == [[17.0] * 3, [18.0] * 3]


def test_memory_is_used_again_when_the_last_tensor_has_gone(processes):
    batches = as_torch(processes(Arrays(), converter=concat_examples))
    assert len({address(next(batches)[0]) for _ in range(60)}) < 20


def test_tensors_can_be_written(processes):
    for x, _ in as_torch(processes(Arrays(), converter=concat_examples, repeat=False)):
        x += 1
        assert float(x[0, 0, 0]) % 4 == 1


@pytest.mark.parametrize("kind", ["serial", "threads", "fork"])
def test_examples_without_a_converter_are_joined(processes, kind):
    dataset = [
        {"pair": Pair(np.full(2, i, np.uint8), i), "nested": (float(i), str(i)), "none": None}
        for i in range(8)
    ]
    iterator = iterator_of(kind, processes, dataset)
    next(as_torch(iterator))
    batch = next(as_torch(iterator))
    assert type(batch["pair"]) is Pair
    assert batch["pair"].x.dtype == torch.uint8
    assert batch["pair"].x.tolist() == [[4, 4], [5, 5], [6, 6], [7, 7]]
    assert batch["pair"].y.tolist() == [4, 5, 6, 7]
    assert batch["nested"][0].dtype == torch.float64
    assert batch["nested"][1] == ["4", "5", "6", "7"]
    assert batch["none"] == [None] * 4
    iterator.finalize()


class Both(tuple):
    def __new__(cls, first: Any, second: Any) -> Any:
        return super().__new__(cls, (first, second))


class Rows(list):
    pass


@pytest.mark.parametrize("converter", [None, lambda rows, _: rows[0]], ids=["joined", "mapped"])
def test_tuples_and_lists_of_other_classes_keep_these(converter):
    row = np.arange(3)
    example = Both(row, Rows([row, 3])), torch.max(torch.eye(3), 1), torch.Size([2, 3])
    iterator = SerialIterator([example], 1, converter=converter)
    both, largest, size = next(as_torch(iterator))
    assert type(both) is Both and type(both[1]) is Rows
    assert type(both[0]) is type(both[1][0]) is torch.Tensor
    assert type(largest) is torch.return_types.max and largest.indices.ravel().tolist() == [0, 1, 2]
    assert size == (2, 3) and type(size) is (tuple if converter is None else torch.Size)


def test_columns_of_examples_are_handed_over(processes):
    inner = processes(Arrays())
    for _ in range(4):
        next(inner)
    batch = next(inner)
    x, _ = as_torch(iter([batch])).__next__()
    assert address(x) == address(batch[0][0])


def test_tensors_as_examples_are_stacked(processes):
    batches = as_torch(processes(Tensors()))
    for k in range(4):
        x, i, j = next(batches)
        assert x.shape == (4, 2, 3)
        assert i.tolist() == j.tolist() == x[:, 0, 0].tolist() == list(range(4 * k, 4 * k + 4))


def convert(batch: list[Any], device: Any) -> Any:
    numbers = np.array(batch)
    return {
        "nested": [(numbers, [numbers * 2]), Pair(numbers, "text")],
        "big-endian": numbers.astype(">i4"),
        "reversed": numbers[::-1],
        "strings": numbers.astype(str),
        "objects": np.array([{}, None, 1]),
        "times": numbers.astype("M8[s]"),
        "masked": np.ma.masked_greater(numbers, 1),
        "scalar": np.float32(2),
        "empty": np.zeros((0, 3), np.float32),
        "number": 3,
        "tensor": torch.ones(2),
    }


def test_results_of_a_converter(processes):
    dataset = list(range(8))
    for iterator in (
        SerialIterator(dataset, 4, shuffle=False, converter=convert),
        processes(dataset, converter=convert),
    ):
        batch = next(as_torch(iterator))
        (first, (second,)), pair = batch["nested"]
        assert torch.equal(first, torch.arange(4))
        assert torch.equal(second, 2 * first)
        assert type(pair) is Pair
        assert torch.equal(pair.x, first)
        assert pair.y == "text"
        assert batch["big-endian"].dtype == torch.int32
        assert batch["big-endian"].tolist() == [0, 1, 2, 3]
        assert batch["reversed"].tolist() == [3, 2, 1, 0]
        assert batch["strings"].tolist() == ["0", "1", "2", "3"]
        assert batch["objects"].dtype == object
        assert batch["times"].dtype == "M8[s]"
        assert batch["masked"].count() == 2
        assert (batch["scalar"], batch["number"]) == (2, 3)
        assert batch["empty"].shape == (0, 3)
        assert torch.equal(batch["tensor"], torch.ones(2))


def test_a_read_only_array_is_copied_without_a_warning():
    numbers = np.arange(3)
    numbers.flags.writeable = False
    iterator = SerialIterator([1], 1, converter=lambda batch, device: numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = next(as_torch(iterator))
    tensor += 1
    assert numbers.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["longdouble", "ml_dtypes.bfloat16"])
def test_numbers_that_torch_lacks_are_named(name):
    library = pytest.importorskip("ml_dtypes") if name.startswith("ml") else np
    dtype = np.dtype(getattr(library, name.rpartition(".")[2]))
    iterator = SerialIterator([1], 1, converter=lambda batch, device: np.zeros(2, dtype))
    with pytest.raises(TypeError, match=rf"takes no array of shape \(2,\) and dtype {dtype}:"):
        next(as_torch(iterator))


class OfAnotherLibrary:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries_come_by_dlpack():
    array = np.arange(4)
    iterator = SerialIterator([1], 1, converter=lambda batch, device: OfAnotherLibrary(array))
    assert address(next(as_torch(iterator))) == address(array)


def test_each_for_is_an_epoch():
    inner = SerialIterator(Arrays(), 15, repeat=False, shuffle=False, converter=concat_examples)
    batches = as_torch(inner)
    assert len(batches) == 3
    for _ in range(3):
        assert [len(y) for _, y in batches] == [15, 15, 10]
        assert batches.epoch == 1
    assert len(next(iter(batches))[1]) == 15
    assert [len(y) for _, y in batches] == [15, 15, 10]  # also after a loop that was left
    assert [len(y) for _, y in as_torch(inner)] == [15, 15, 10]  # and with a wrapper for each
    assert [len(y) for _, y in progress(as_torch(inner), file=io.StringIO())] == [15, 15, 10]
    rest = iter(batches)
    assert len(next(rest)[1]) == 15
    assert [len(y) for _, y in rest] == [15, 10]
    batches.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        next(iter(batches))


@pytest.mark.parametrize("how", [by_dict, by_serializer, by_pickle, by_copy])
@pytest.mark.parametrize("n_before", [0, 1, 4])
def test_a_loaded_state_is_where_the_next_for_begins(how, n_before):
    batches, other = (
        as_torch(SerialIterator(list(range(40)), 15, repeat=False, shuffle=False)) for _ in range(2)
    )
    for _ in range(n_before):
        next(other, None)
    next(batches)
    resumed = how(batches, other)
    assert [len(x) for x in resumed] == [15, 10]
    assert [len(x) for x in resumed] == [15, 15, 10]
    assert [len(x) for x in how(resumed, other)] == [15, 15, 10]  # of an end


def test_iterators_of_others_are_reset_as_far_as_they_can_be():
    class Epochs:
        repeat, epoch = False, 0

        def reset(self) -> None:
            self.epoch, self.left = 0, 2

        __init__ = reset

        def __next__(self) -> Any:
            if self.epoch:
                raise StopIteration
            self.left -= 1
            self.epoch = int(self.left == 0)
            return np.zeros(self.left + 1)

    batches = as_torch(Epochs())
    assert [[len(x) for x in batches] for _ in range(2)] == [[2, 1]] * 2
    batches = as_torch(iter([np.zeros(1)]))
    assert bool(batches)
    assert [[len(x) for x in batches] for _ in range(2)] == [[1], []]


def test_attributes_snapshots_and_copies_are_those_of_the_iterator():
    inner = SerialIterator(Arrays(), 4, shuffle=False, converter=concat_examples)
    batches = as_torch(inner)
    assert batches.iterator is inner
    next(batches)
    state = batches.state_dict()
    stored: dict[str, Any] = {}
    batches.serialize(stored.setdefault)
    other, loaded = copy.copy(batches), pickle.loads(pickle.dumps(batches))
    following = next(batches)[1].tolist()
    assert following == next(other)[1].tolist() == next(loaded)[1].tolist() == [4, 5, 6, 7]
    assert (batches.epoch, batches.current_position, batches.batch_size) == (0, 8, 4)
    batches.load_state_dict(state)
    assert next(batches)[1].tolist() == following
    batches.serialize(stored.get and (lambda key, value: stored[key]))
    assert next(batches)[1].tolist() == following
    with batches:
        batches.reset()
        assert next(batches)[1].tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="finalized"):
        next(batches)


class Mapping(collections.UserDict):
    """A mapping that is no dict, as transformers' BatchEncoding."""


@pytest.mark.parametrize(
    "kind",
    [dict, collections.OrderedDict, functools.partial(collections.defaultdict, int), Mapping],
)
def test_mappings_of_every_kind_are_searched(kind):
    examples = [kind(x=torch.full((2,), float(i)), y=i) for i in range(4)]
    whole = type(examples[0])
    joined = next(as_torch(SerialIterator(examples, 4, shuffle=False)))
    converted = next(as_torch(iter([kind(x=np.zeros((4, 2)), y=np.arange(4))])))
    for batch in (joined, converted):
        assert type(batch) is whole
        assert batch["x"].shape == (4, 2)
        assert batch["y"].tolist() == [0, 1, 2, 3]
        assert getattr(batch, "default_factory", int) is int


def test_a_list_whose_parts_differ_is_joined_part_by_part():
    examples = [[torch.full((2,), float(i)), i, np.zeros(3)] for i in range(4)]
    x, y, z = next(as_torch(SerialIterator(examples, 4, shuffle=False)))
    assert x.tolist() == [[i, i] for i in range(4)]
    assert y.tolist() == [0, 1, 2, 3]
    assert z.shape == (4, 3)
    assert next(as_torch(SerialIterator([[1, 2]] * 4, 4))).shape == (4, 2)


# ---- torch's threads


def test_torchs_threads_and_the_start_of_workers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import logging, sys, torch
from fastiter import MultiprocessIterator, concat_examples


class Products(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return (torch.ones(300, 300) @ torch.ones(300, 300)).sum(), torch.ones(1 << 17).sum(), i


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.ones(1 << 22).sum()  # its pool lives now
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for context in ("safe", "fork"):
        with MultiprocessIterator(
            Products(), 4, shuffle=False, n_processes=2, converter=concat_examples, context=context
        ) as iterator:
            for _ in range(3):
                product, total, i = next(iterator)
                assert product.tolist() == [300.0**3] * 4 and total.tolist() == [1 << 17] * 4
"""
    )
    result = run("-W", "ignore", program)
    assert result.returncode == 0, result.stderr
    if sys.version_info < (3, 14):  # whose default is no fork
        assert "workers are started by a fork server, since" in result.stderr

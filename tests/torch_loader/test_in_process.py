"""Batches without workers are torch's, however they are made: large ones lie in memory that is used
again, compiled code joins arrays and numbers."""

from __future__ import annotations

import itertools
import warnings
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils.data._utils import collate as torch_collate  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

LARGE = 100, 100  # shape of rows; with each dtype below they have 16 KiB or more


def as_rows(kind):
    """Rows of a batch, as large as those that are joined in memory which is used again."""
    rows = [torch.full(LARGE, i, dtype=torch.float32) for i in range(32)]
    changed = {
        "bfloat16": [row.bfloat16() for row in rows],
        "uint8": [row.repeat(2, 2).byte() for row in rows],
        "bool": [row.repeat(2, 2) > 3 for row in rows],
        "arrays": [row.numpy() for row in rows],
        "mixed": [*rows[:-1], rows[-1].double()],
        "transposed": [row.view(50, 200).T for row in rows],
        "gradients": [row.requires_grad_() for row in rows],
        "parameters": [torch.nn.Parameter(row) for row in rows],
        "complex": [(row * 1j).conj() for row in rows],
        "shapes": [*rows[:-1], rows[-1][1:]],
        "sparse": [row.to_sparse() for row in rows],
    }
    return changed[kind]


@pytest.mark.parametrize(
    "kind", ["bfloat16", "uint8", "bool", "arrays", "mixed", "transposed", "gradients"]
)
def test_large_batches_without_workers_are_torchs(kind):
    rows = as_rows(kind)
    (ours,), (theirs,) = (list(each(rows, 32)) for each in (DataLoader, torch_data.DataLoader))
    assert (ours.dtype, ours.stride(), type(ours)) == (theirs.dtype, theirs.stride(), type(theirs))
    assert ours.requires_grad == theirs.requires_grad and torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["parameters", "complex", "shapes", "sparse"])
def test_odd_large_batches_without_workers_are_torchs(kind):
    results = []
    for each in (DataLoader, torch_data.DataLoader):
        try:
            (batch,) = each(as_rows(kind), 32)
            results.append((type(batch), batch.dtype, batch.is_conj(), batch.tolist()))
        except Exception as error:
            results.append((type(error), str(error)[:80]))
    assert results[0] == results[1]


def test_large_batches_without_workers_use_their_memory_again():
    loader = DataLoader([torch.full(LARGE, i) for i in range(320)], 32)
    places = {batch.data_ptr() for batch in loader}
    assert len(places) == 2  # that of the batch before is held while the next one is made
    kept = list(loader)
    assert [int(row[0, 0]) for batch in kept for row in batch] == list(range(320))
    assert len({batch.data_ptr() for batch in kept}) == 10
    parts = [batch[0].numpy() for batch in loader]
    assert [int(part[0, 0]) for part in parts] == list(range(0, 320, 32))


class Number(int):
    pass


def read_only(array):
    array.setflags(write=False)
    return array


class Pair(NamedTuple):
    a: object
    b: object


DTYPES = "?bBhHiIlLqQefdgFDG"
VALUES = {
    **{f"array of {code}": lambda i, c=code: np.arange(6).astype(c) + i for code in DTYPES},
    **{f"scalar of {code}": lambda i, c=code: np.array(i).astype(c)[()] for code in DTYPES},
    **{f"array without axes, {code}": lambda i, c=code: np.array(i).astype(c) for code in DTYPES},
    "other byte order": lambda i: np.array([i], ">f4"),
    "objects": lambda i: np.array([i], object),
    "texts": lambda i: np.array(["x"]),
    "times": lambda i: np.array([i], "M8[s]"),
    "a time": lambda i: np.datetime64(i, "s"),
    "records": lambda i: np.zeros(2, [("a", "i4")]),
    "dtypes": lambda i: np.zeros(2, "f4" if i % 2 else "f8"),
    "shapes": lambda i: np.zeros(2 + i % 2),
    "columns first": lambda i: np.asfortranarray(np.arange(6.0).reshape(2, 3) + i),
    "every other": lambda i: (np.arange(12.0) + i)[::2],
    "backwards": lambda i: (np.arange(12.0) + i)[::-1],
    "no elements": lambda i: np.zeros((0, 3)),
    "masked": lambda i: np.ma.array([i, 2], mask=[0, 1]),
    "int": lambda i: i,
    "int64's limits": lambda i: (-(2**63), 2**63 - 1, i)[i % 3],
    "beyond int64": lambda i: 2**62 * (i + 1),
    "bool": lambda i: i % 2 == 0,
    "float": lambda i: (i / 3, float("inf"), float("nan"))[i % 3],
    "complex": lambda i: complex(i, 1),
    "int or float": lambda i: i if i % 2 else i / 2,
    "float or int": lambda i: i / 2 if i % 2 == 0 else i,
    "bool or int": lambda i: i % 3 == 0 or i,
    "NumPy's or Python's": lambda i: np.float64(i) if i % 2 else float(i),
    "scalars of two dtypes": lambda i: np.int8(i) if i % 2 else np.int32(i),
    "array or number": lambda i: np.array(i) if i % 2 else i,
    "tensor or array": lambda i: torch.tensor([i]) if i % 2 else np.array([i]),
    "array or tensor": lambda i: np.array([i]) if i % 2 else torch.tensor([i]),
    "own class": Number,
    "None": lambda i: None,
    "bytes": lambda i: b"x",
    "text of NumPy": lambda i: np.str_(i),
}
EXAMPLES = {
    "bare": lambda value: value,
    "tuple": lambda value: (value, 1),
    "list": lambda value: [value, 2.0],
    "named": lambda value: Pair(value, value),
    "nested": lambda value: {"a": [value, (value,)], "b": {"c": value}, "text": "x"},
}


def described(value):
    """A batch, as values that can be compared."""
    if isinstance(value, torch.Tensor):
        elements = [str(element) for element in value.flatten().tolist()]
        return value.dtype, value.shape, value.stride(), value.device, elements
    if isinstance(value, dict):
        return type(value), {key: described(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [described(item) for item in value]
    return value


def batches_of(kind, dataset, **arguments):
    """The batches, or the error, without the place that ours adds to it."""
    try:
        return [described(batch) for batch in kind(dataset, 3, **arguments)]
    except Exception as error:
        return type(error), str(error).split(" (example")[0].split("\n")[0]


@pytest.mark.parametrize("value", VALUES)
def test_values_are_joined_as_by_torch(value):
    for form in EXAMPLES:
        dataset = [EXAMPLES[form](VALUES[value](i)) for i in range(7)]
        assert batches_of(DataLoader, dataset) == batches_of(torch_data.DataLoader, dataset), form


def test_arrays_of_a_mapped_file_are_joined(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(42.0).reshape(7, 6))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r+")
    assert batches_of(DataLoader, mapped) == batches_of(torch_data.DataLoader, mapped)


def test_torch_warns_of_arrays_that_must_not_be_written_to():
    dataset = [read_only(np.arange(3.0) + i) for i in range(7)]
    told = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        for kind in (DataLoader, torch_data.DataLoader):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                list(kind(dataset, 3))
            assert len(caught) == 7 and "not writable" in str(caught[0].message)
    finally:
        torch.set_warn_always(told)


@pytest.mark.parametrize(
    "mode", [lambda: torch.device("meta"), FakeTensorMode, torch.inference_mode]
)
def test_modes_of_torch_reach_the_batches(mode):
    dataset = [(np.arange(3.0) + i, i, float(i), np.float32(i)) for i in range(7)]
    found = []
    for kind in (DataLoader, torch_data.DataLoader):
        iterator = iter(kind(dataset, 3))
        next(iterator)
        with mode():
            batch = next(iterator)
        found.append([(type(x), x.device.type, x.is_inference()) for x in batch])
    assert found[0] == found[1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_function_of_the_program_for_tensors_gets_those_of_arrays(monkeypatch, num_workers):
    def join(batch, *, collate_fn_map=None):
        return [tensor.dtype for tensor in batch]

    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, join)
    dataset = [(np.arange(3.0) + i, i) for i in range(6)]
    loader = DataLoader(
        dataset, 3, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None
    )
    for first, second in loader:
        assert first == [torch.float64] * 3 and second.tolist()[0] in (0, 3)


def test_a_collate_fn_in_a_worker_joins_as_torch():
    """The functions that a worker has put into torch's table."""
    for value, form in itertools.product(
        ("array of f", "scalar of i", "float", "shapes"), EXAMPLES
    ):
        dataset = [EXAMPLES[form](VALUES[value](i)) for i in range(7)]
        ours, theirs = (
            batches_of(
                kind,
                dataset,
                num_workers=1,
                collate_fn=lambda batch: torch_data.default_collate(batch),
            )
            for kind in (DataLoader, torch_data.DataLoader)
        )
        assert ours == theirs or (value == "shapes" and ours[0] is theirs[0]), (value, form)

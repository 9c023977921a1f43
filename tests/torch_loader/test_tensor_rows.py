"""Batches of a `TensorDataset`, and of `Subset`s of one, which are gathered, are torch's."""

from __future__ import annotations

import functools
import itertools
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from torch.utils.data import Subset, TensorDataset  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

N = 23


class Own(torch.Tensor):
    pass


def tensors_by_kind():
    torch.manual_seed(0)
    rows = torch.randn(N, 4)
    dtypes = (torch.bool, torch.uint8, torch.uint16, torch.int32, torch.float16, torch.bfloat16)
    return {
        "rows": rows,
        "numbers": torch.arange(N),
        **{str(dtype): rows.abs().to(dtype) for dtype in (*dtypes, torch.float64)},
        "complex": torch.randn(N, 2, dtype=torch.complex64),
        "conjugated": torch.randn(N, 2, dtype=torch.complex64).conj(),
        "one channel": torch.randn(N, 1, 3, 3),
        "one pixel": torch.randn(N, 3, 1, 1),
        "channels last": torch.randn(N, 3, 4, 4).to(memory_format=torch.channels_last),
        "transposed": torch.randn(4, N).T,
        "every other": torch.randn(2 * N, 3)[::2],
        "expanded": torch.randn(1, 3).expand(N, 3),
        "from the second row on": torch.randn(N + 1, 3)[1:],
        "gradients": torch.randn(N, 2, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.randn(N, 2)),
        "no elements": torch.zeros(N, 0),
        "large": torch.randn(N, 100, 100),
        "own class": torch.randn(N, 2).as_subclass(Own),
        "sparse": torch.eye(N).to_sparse(),
    }


VIEWS = {
    "whole": lambda dataset: dataset,
    "list": lambda dataset: Subset(dataset, [5, 1, 1, 7, 22, -1, 0, 3, 9, 10, 11]),
    "range": lambda dataset: Subset(dataset, range(3, 20)),
    "array": lambda dataset: Subset(dataset, np.arange(3, 20)),
    "tensor": lambda dataset: Subset(dataset, torch.arange(3, 20)),
    "tuple": lambda dataset: Subset(dataset, tuple(range(3, 20))),
    "bools": lambda dataset: Subset(dataset, [True, False] * 8),
    "split": lambda dataset: torch_data.random_split(dataset, [13, N - 13])[0],
    "nested": lambda dataset: Subset(Subset(dataset, list(range(0, N, 2))), list(range(9, -1, -1))),
    "one too large": lambda dataset: Subset(dataset, [*range(9), 40]),
    "none": lambda dataset: Subset(dataset, []),
}
ARGUMENTS = {
    "in order": {"batch_size": 8},
    "shuffled": {"batch_size": 9, "shuffle": True},
    "the last one dropped": {"batch_size": 8, "drop_last": True},
    "few rows": {"batch_size": 2},
    "no batches": {"batch_size": None},
    "negative keys": {"batch_size": 9, "sampler": [0, -1, 2, 1, 1, 3, 4, 5, -2]},
    "a key too large": {"batch_size": 9, "sampler": [*range(8), 99]},
    "batches of keys": {"batch_sampler": [[0, 1], [2] * 9, list(range(9))]},
    "arrays of keys": {"batch_sampler": [np.arange(9), np.arange(9)[::-1]]},
    "other integers": {"batch_size": 9, "sampler": [np.int64(1), torch.tensor(2), *range(8)]},
    "bools": {"batch_size": 9, "sampler": [True] * 10},
}


def described(value):
    if isinstance(value, torch.Tensor):
        facts = value.dtype, value.shape, value.stride(), value.requires_grad, type(value)
        return facts, str(value.tolist())
    return type(value), [described(item) for item in value]


def batches_of(kind, dataset, **arguments):
    """The batches, or the error, without the place that ours adds to it."""
    torch.manual_seed(1)
    try:
        return [described(batch) for batch in kind(dataset, **arguments)]
    except Exception as error:
        return type(error), str(error).split(" (example")[0].split("\n")[0]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", tensors_by_kind())
def test_batches_without_workers(kind, view):
    dataset = VIEWS[view](TensorDataset(tensors_by_kind()[kind], torch.arange(N)))
    for name, arguments in ARGUMENTS.items():
        ours, theirs = (
            batches_of(each, dataset, **arguments) for each in (DataLoader, torch_data.DataLoader)
        )
        assert ours == theirs, name


OPTIONS = [{}, {"dataset_timeout": 60}, {"on_error": "skip", "skip_limit": 5}]


@pytest.mark.parametrize("view", VIEWS)
def test_batches_of_workers(view):
    kinds = tensors_by_kind()
    for kind in ("rows", "torch.bool", "one channel", "large", "torch.bfloat16", "every other"):
        dataset = VIEWS[view](TensorDataset(kinds[kind], torch.arange(N)))
        for name, options in zip(
            ("shuffled", "negative keys", "batches of keys"), OPTIONS, strict=True
        ):
            theirs = batches_of(torch_data.DataLoader, dataset, **ARGUMENTS[name])
            if isinstance(theirs, tuple):  # an error, which `on_error` may skip
                continue
            ours = batches_of(DataLoader, dataset, **ARGUMENTS[name], num_workers=2, **options)
            assert ours == theirs, (kind, name)


def calls_of(function, work):
    """The number of times that `work` calls a function of Python."""
    n_calls = 0

    def count(frame, event, argument):
        nonlocal n_calls
        n_calls += event == "call" and frame.f_code is function.__code__

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return n_calls


def test_no_example_is_made_without_workers():
    dataset = TensorDataset(torch.randn(N, 4), torch.arange(N))
    for data in (dataset, Subset(dataset, list(range(16)))):
        for batch_size in (1, 8):
            run = functools.partial(list, DataLoader(data, batch_size))
            assert calls_of(TensorDataset.__getitem__, run) == 0


def test_examples_of_a_subclass_or_a_changed_class_are_made(monkeypatch):
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * value for value in super().__getitem__(index))

    plain = TensorDataset(torch.arange(N))
    assert next(iter(DataLoader(Doubled(torch.arange(N)), 9)))[0].tolist() == list(range(0, 18, 2))
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, index: (index + 0.5,))
    for num_workers in (0, 1):
        assert next(iter(DataLoader(plain, 9, num_workers=num_workers)))[0][1] == 1.5
    monkeypatch.undo()
    plain.__getitems__ = lambda keys: [(torch.tensor(-key),) for key in keys]
    for num_workers in (0, 1):
        assert next(iter(DataLoader(plain, 9, num_workers=num_workers)))[0][1] == -1


@pytest.mark.parametrize(
    "change", ["replace", "resize", "in place", "gradients", "fewer", "indices"]
)
def test_what_the_program_changes_between_batches_is_seen(change):
    found = []
    for kind in (DataLoader, torch_data.DataLoader):
        tensor = torch.arange(4 * N, dtype=torch.float32).view(N, 4)
        dataset = TensorDataset(tensor, torch.arange(N))
        view = Subset(dataset, list(range(N)))
        iterator = iter(kind(view if change == "indices" else dataset, 8))
        batches = [described(next(iterator))]
        if change == "replace":
            dataset.tensors = (-tensor, *dataset.tensors[1:])
        elif change == "resize":
            tensor.resize_(4 * N, 4).fill_(7)
        elif change == "in place":
            tensor.mul_(2)
        elif change == "gradients":
            tensor.requires_grad_()
        elif change == "fewer":
            dataset.tensors = tuple(one[:10] for one in dataset.tensors)
        else:
            view.indices.reverse()
        try:
            batches.append(described(next(iterator)))
        except IndexError as error:
            batches.append(str(error).split(" (example")[0])
        found.append(batches)
    assert found[0] == found[1]


def test_functions_of_the_program_in_torchs_table_are_called(monkeypatch):
    def join(batch, *, collate_fn_map=None):
        return len(batch)

    table = torch_data._utils.collate.default_collate_fn_map
    dataset = TensorDataset(torch.arange(N))
    iterator = iter(DataLoader(dataset, 8))
    assert next(iterator)[0].tolist() == list(range(8))
    monkeypatch.setitem(table, torch.Tensor, join)
    assert next(iterator) == [8]
    for num_workers in (0, 1):
        assert next(iter(DataLoader(dataset, 8, num_workers=num_workers))) == [8]


@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (2, 3)])
def test_a_state_continues_with_other_workers(workers):
    dataset = Subset(TensorDataset(torch.arange(200)), list(range(0, 200, 2)))
    loaders = [
        DataLoader(dataset, 8, True, num_workers=n, generator=torch.Generator().manual_seed(3))
        for n in workers
    ]
    iterator = iter(loaders[0])
    batches = [next(iterator)[0].tolist() for _ in range(5)]
    loaders[1].load_state_dict(loaders[0].state_dict())
    batches += [batch[0].tolist() for batch in loaders[1]]
    assert sorted(itertools.chain(*batches)) == list(range(0, 200, 2))
    assert loaders[1].indices is not None


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(method):
    dataset = Subset(TensorDataset(torch.randn(N, 4), torch.arange(N)), list(range(20)))
    loader = DataLoader(dataset, 8, num_workers=1, multiprocessing_context=method)
    assert [described(b) for b in loader] == [
        described(b) for b in torch_data.DataLoader(dataset, 8)
    ]

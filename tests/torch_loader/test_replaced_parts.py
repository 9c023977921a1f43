"""Programs that replace parts of torch's loader: fetchers, iterators, the worker's loop, methods of
the class. They see the same with torch's `DataLoader` and with `fastiter.torch.DataLoader`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from torch.utils.data import _utils, dataloader  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

WORKERS = {"no workers": {}, "workers": {"num_workers": 2}}


@pytest.fixture(params=WORKERS)
def workers(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WORKERS[request.param]


class Stream(torch_data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(4))


class PackedFetcher(_utils.fetch._BaseDatasetFetcher):
    """As Axolotl's, for batches whose items are lists of keys."""

    def fetch(self, keys: Any) -> Any:
        if isinstance(keys[0], list):
            return self.collate_fn([sum(self.dataset[key] for key in some) for some in keys])
        return self.collate_fn([self.dataset[key] for key in keys])


def test_fetchers_of_lists_of_keys(
    monkeypatch: pytest.MonkeyPatch, loader_class: Any, workers: Any
) -> None:
    monkeypatch.setattr(_utils.fetch, "_MapDatasetFetcher", PackedFetcher)
    packed = [[[0, 1], [2, 3, 4]], [[5], [6, 7]]]
    loader = loader_class(range(8), batch_sampler=packed, **workers)
    assert [batch.tolist() for batch in loader] == [[1, 9], [5, 13]]
    assert [batch.tolist() for batch in loader_class(range(3), 2, **workers)] == [[0, 1], [2]]


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        return "noted", function(*arguments)

    return called


def of_subclass(kind: Any, name: str) -> Any:
    return type(kind.__name__, (kind,), {name: noted(getattr(kind, name))})


single = dataloader._SingleProcessDataLoaderIter
several = dataloader._MultiProcessingDataLoaderIter
PARTS = {
    "fetch": (_utils.fetch._MapDatasetFetcher, "fetch"),
    "fetch of a stream": (_utils.fetch._IterableDatasetFetcher, "fetch"),
    "next batch": (single, "_next_data"),
    "next batch of workers": (several, "_next_data"),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("derives", [False, True], ids=["function", "class"])
def test_functions_of_torchs_iterators(
    monkeypatch: pytest.MonkeyPatch, loader_class: Any, workers: Any, name: str, derives: bool
) -> None:
    kind, function = PARTS[name]
    if derives:
        module = _utils.fetch if function == "fetch" else dataloader
        monkeypatch.setattr(module, kind.__name__, of_subclass(kind, function))
    else:
        monkeypatch.setattr(kind, function, noted(getattr(kind, function)))
    dataset = Stream() if "stream" in name else range(80)
    loader = loader_class(dataset, 2, **workers)
    batches = [*loader]
    is_used = function == "fetch" or kind is (several if workers else single)
    assert all(isinstance(batch, (tuple, list)) is is_used for batch in batches)
    assert not is_used or {batch[0] for batch in batches} == {"noted"}
    if loader_class is DataLoader:
        for call in (loader.state_dict, lambda: loader.load_state_dict({})):
            with pytest.raises(RuntimeError, match=rf"has no state: .* replaced .*{kind.__name__}"):
                call()
        monkeypatch.undo()
        assert loader.state_dict()


added = 0


def adding(loop: Any, *arguments: Any) -> Any:
    global added
    added = 100
    return loop(*arguments)


def test_the_loop_of_workers(monkeypatch: pytest.MonkeyPatch, loader_class: Any) -> None:
    loop = functools.partial(adding, _utils.worker._worker_loop)
    monkeypatch.setattr(_utils.worker, "_worker_loop", loop)
    dataset = torch_data.StackDataset(Adds())
    assert [b.tolist() for (b,) in loader_class(dataset, 2, num_workers=1)] == [[100, 101], [102]]


class Adds:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index + added


@pytest.mark.parametrize("name", ["__iter__", "_get_iterator"])
def test_methods_of_torchs_class(
    monkeypatch: pytest.MonkeyPatch, loader_class: Any, workers: Any, name: str
) -> None:
    function = getattr(torch_data.DataLoader, name)
    monkeypatch.setattr(
        torch_data.DataLoader, name, lambda self: itertools.chain(["first"], function(self))
    )
    loader = loader_class(range(4), 2, **workers)
    for _ in range(2):
        first, *batches = loader
        assert first == "first"
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]
    if loader_class is DataLoader and name == "__iter__":
        assert loader.state_dict()


def test_a_state_of_a_whole_epoch_begins_the_next_one(
    monkeypatch: pytest.MonkeyPatch, workers: Any
) -> None:
    """Also where torch's own `__iter__` asks for the iterator."""
    loader = DataLoader(range(4), 2, **workers)
    assert len([*loader]) == 2
    state, again = loader.state_dict(), DataLoader(range(4), 2, **workers)
    function = torch_data.DataLoader.__iter__
    monkeypatch.setattr(torch_data.DataLoader, "__iter__", lambda self: function(self))
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("way", ["default", "set", "wrapped"])
def test_arguments_that_a_program_sets_in_torchs_class(
    monkeypatch: pytest.MonkeyPatch, loader_class: Any, way: str
) -> None:
    construct = torch_data.DataLoader.__init__

    def others(self: Any, dataset: Any, *arguments: Any, **keywords: Any) -> None:
        keywords["num_workers"] = 0
        keywords.pop("prefetch_factor", None)
        construct(self, dataset, *arguments, **keywords)

    replaced = {
        "default": functools.partialmethod(construct, collate_fn=len),
        "set": others,
        "wrapped": functools.wraps(construct)(others),
    }
    monkeypatch.setattr(torch_data.DataLoader, "__init__", replaced[way])
    loader = loader_class(range(3), batch_size=2, num_workers=2, prefetch_factor=3)
    assert loader.num_workers == (2 if way == "default" else 0)
    expected = [2, 1] if way == "default" else [[0, 1], [2]]
    assert [batch if way == "default" else batch.tolist() for batch in loader] == expected


def test_arguments_of_fastiter_need_its_iterators(
    monkeypatch: pytest.MonkeyPatch, workers: Any
) -> None:
    monkeypatch.setattr(single, "_next_data", noted(single._next_data))
    monkeypatch.setattr(several, "_next_data", noted(several._next_data))
    loader = DataLoader([1, None, 3], 3, on_error="skip", collate_fn=tuple, **workers)
    assert [*loader] == [(1, None, 3)]
    assert loader.state_dict()


def test_the_name_of_a_function_that_torchs_table_holds(
    monkeypatch: pytest.MonkeyPatch, loader_class: Any, workers: Any
) -> None:
    monkeypatch.setattr(
        _utils.collate, "collate_tensor_fn", noted(_utils.collate.collate_tensor_fn)
    )
    rows = torch.arange(160.0).reshape(80, 2)
    assert torch.equal(torch.cat([*loader_class(rows, 4, **workers)]), rows)


class Mixed(torch_data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), index), np.full(2, index), np.float32(index), float(index), index


@pytest.mark.parametrize("name", ["stack", "tensor", "as_tensor"])
def test_functions_that_make_tensors(
    monkeypatch: pytest.MonkeyPatch, workers: Any, name: str
) -> None:
    function = getattr(torch, name)
    monkeypatch.setattr(torch, name, lambda *args, **options: function(*args, **options).neg_())
    for rows in Mixed(), torch_data.TensorDataset(torch.arange(1.0, 41)):
        expected = [*torch_data.DataLoader(rows, 4, **workers)]
        torch.testing.assert_close([*DataLoader(rows, 4, **workers)], expected, rtol=0, atol=0)

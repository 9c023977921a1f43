"""Datasets of Hugging Face: by ArrowDataset, by iterators and by torch's loader."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

from fastiter import MultiprocessIterator, SerialIterator, concat_examples  # noqa: E402
from fastiter.datasets import ArrowDataset  # noqa: E402

N = 300


@pytest.fixture(scope="module")
def rows() -> Any:
    """A mapped dataset of many chunks, shuffled and cut, of which `label` tells the rest."""
    made = datasets.Dataset.from_dict(
        {
            "label": range(N),
            "ids": [list(range(i % 7)) for i in range(N)],
            "text": [f"t{i}" for i in range(N)],
        }
    )
    parts = [made.select(range(100)), made.select(range(100, N))]
    return datasets.concatenate_datasets(parts).shuffle(seed=1).select(range(20, 280))


@pytest.fixture
def no_getitem(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is read by the dataset's own indexing, here and in forked workers."""

    def fail(self: Any, key: Any) -> None:
        raise AssertionError("Dataset.__getitem__ was called")

    monkeypatch.setattr(datasets.Dataset, "__getitem__", fail)
    monkeypatch.setattr(datasets.Dataset, "__getitems__", fail)


def epoch(dataset: Any, iterator: Any = SerialIterator, **options: Any) -> list[Any]:
    it = iterator(dataset, 32, repeat=False, shuffle=False, **options)
    try:
        return list(it)
    finally:
        it.finalize()


def test_rows_in_the_order_of_the_dataset(rows: Any, no_getitem: None) -> None:
    wanted = rows.to_list()
    dataset = ArrowDataset(rows, padding=0)
    got = [{**row, "ids": row["ids"].tolist()} for row in dataset[:]]
    assert got == wanted and len(dataset) == 260
    workers = functools.partial(MultiprocessIterator, n_processes=2)
    for batches in (
        epoch(dataset, converter=concat_examples),
        epoch(dataset, workers, converter=concat_examples),
    ):
        assert [x for batch in batches for x in batch["text"]] == [row["text"] for row in wanted]
        assert batches[0]["ids"].shape == (32, 6)
    assert epoch(rows, converter=None)[0][3]["text"] == wanted[3]["text"]
    (batch, *_) = epoch(rows.select_columns(["label", "text"]), converter=concat_examples)
    assert batch["label"].tolist() == [row["label"] for row in wanted[:32]]


def test_columns_of_the_format(rows: Any, no_getitem: None) -> None:
    some = rows.with_format(None, columns=["text", "label"])
    assert list(ArrowDataset(some)[0]) == ["text", "label"]
    assert ArrowDataset(some, "label")[0] == rows.to_list()[0]["label"]
    assert list(ArrowDataset(rows.with_format("numpy"))[0]) == ["label", "ids", "text"]


def test_a_transform_is_called_in_its_own_way(rows: Any) -> None:
    def double(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"twice": [2 * label for label in batch["label"]]}

    dataset = ArrowDataset(rows.with_transform(double, columns=["label"]))
    labels = [row["label"] for row in rows.to_list()]
    (batch, *_) = epoch(dataset, converter=concat_examples)
    assert batch["twice"].tolist() == [2 * label for label in labels[:32]]


def test_features_that_are_decoded(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = [np.full((2, 3, 3), i, np.uint8) for i in range(4)]
    made = datasets.Dataset.from_dict(
        {"image": [image.fromarray(p) for p in pixels], "label": range(4)},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int8")}),
    )
    dataset = ArrowDataset(made)
    assert [np.asarray(row["image"]).max() for row in dataset[:]] == [0, 1, 2, 3]
    encoded = made.cast_column("image", datasets.Image(decode=False))
    decode = {"image": lambda value: len(value["bytes"])}
    assert ArrowDataset(encoded, decode=decode)[0]["image"] > 20
    assert ArrowDataset(made, "label")[2] == 2


def test_cached_files_stay_mapped(tmp_path: Path) -> None:
    made = datasets.Dataset.from_dict({"ids": [list(range(50))] * 2000})
    made.save_to_disk(str(tmp_path / "data"))
    rows = datasets.load_from_disk(str(tmp_path / "data")).shuffle(seed=0)
    dataset = ArrowDataset(rows, padding=0)
    assert len(pickle.dumps(dataset)) < 40_000  # of 400 KB
    assert pickle.loads(pickle.dumps(dataset))[7]["ids"].tolist() == list(range(50))


def test_an_iterable_dataset_has_no_rows(rows: Any) -> None:
    stream = rows.to_iterable_dataset()
    for make in (ArrowDataset, functools.partial(SerialIterator, batch_size=2)):
        with pytest.raises(TypeError, match="streaming=False"):
            make(stream)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_loader(rows: Any, no_getitem: None, num_workers: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    dataset = ArrowDataset(rows, padding=-1)
    loader = DataLoader(dataset, 32, shuffle=True, num_workers=num_workers)
    seen: list[int] = []
    for number, batch in enumerate(loader):
        labels = batch["label"].tolist()
        seen += labels
        assert batch["text"] == [f"t{label}" for label in labels]
        lists = [[x for x in ids if x >= 0] for ids in batch["ids"].tolist()]
        assert lists == [list(range(label % 7)) for label in labels]
        assert batch["ids"].dtype == torch.int64
        if number == 3:
            state = loader.state_dict()
            rest_starts = len(seen)
    assert sorted(seen) == sorted(row["label"] for row in rows.to_list())
    resumed = DataLoader(dataset, 32, shuffle=True, num_workers=num_workers)
    resumed.load_state_dict(state)
    assert [x for batch in resumed for x in batch["label"].tolist()] == seen[rest_starts:]

    plain = rows.select_columns(["label", "text"])
    first = next(iter(DataLoader(plain, 32, num_workers=num_workers)))
    assert first["text"] == [f"t{label}" for label in first["label"].tolist()]
    arrays = next(
        iter(DataLoader(dataset, 32, num_workers=num_workers, collate_fn=concat_examples))
    )
    assert type(arrays["ids"]) is np.ndarray and arrays["ids"].shape == (32, 6)
    keys = DataLoader(dataset, num_workers=num_workers, batch_sampler=[[3, 4], [-1]])
    assert [len(batch["text"]) for batch in keys] == [2, 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_loader_leaves_examples_to_a_collate_function(rows: Any, num_workers: int) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    loader = DataLoader(rows, 4, num_workers=num_workers, collate_fn=list)
    assert next(iter(loader)) == rows.to_list()[:4]
    stream = DataLoader(rows.to_iterable_dataset(), 4, collate_fn=list)
    assert next(iter(stream)) == rows.to_list()[:4]


def test_a_subclass_that_makes_its_own_rows_is_asked_for_them() -> None:
    class Doubled(datasets.Dataset):
        def __getitem__(self, key: Any) -> Any:
            return {"n": 2 * super().__getitem__(key)["n"]}

        def __getitems__(self, keys: list[int]) -> list[Any]:
            return [self[key] for key in keys]

    class Same(datasets.Dataset):
        pass

    plain = datasets.Dataset.from_dict({"n": [1, 2, 3]})
    for kind, wanted in ((Doubled, [2, 4, 6]), (Same, [1, 2, 3])):
        dataset = kind(plain.data, info=plain.info)
        iterator = SerialIterator(dataset, 3, shuffle=False, converter=concat_examples)
        assert next(iterator)["n"].tolist() == wanted
    calls, read = [], plain._getitem
    plain._getitem = lambda *key, **options: calls.append(key) or read(*key, **options)
    next(SerialIterator(plain, 3, shuffle=False, converter=concat_examples))
    assert calls

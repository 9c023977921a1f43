"""Datasets of Hugging Face: by ArrowDataset, by iterators and by torch's loader."""

from __future__ import annotations

import datetime
import decimal
import functools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

import pyarrow as pa  # noqa: E402

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


@pytest.mark.parametrize("output_all_columns", [False, True])
@pytest.mark.parametrize("columns", [["text", "label"], ["ids"], None])
def test_columns_of_the_format(rows: Any, columns: Any, output_all_columns: bool) -> None:
    some = rows.with_format(None, columns=columns, output_all_columns=output_all_columns)
    assert list(ArrowDataset(some)[0]) == list(some[0])


def test_columns_of_the_format_are_read_in_place(rows: Any, no_getitem: None) -> None:
    some = rows.with_format(None, columns=["text", "label"])
    assert ArrowDataset(some, "label")[0] == rows.to_list()[0]["label"]
    assert list(ArrowDataset(rows.with_format("numpy"))[0]) == ["label", "ids", "text"]


def test_a_transform_is_called_in_its_own_way(rows: Any) -> None:
    def double(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"twice": [2 * label for label in batch["label"]]}

    dataset = ArrowDataset(rows.with_transform(double, columns=["label"]))
    labels = [row["label"] for row in rows.to_list()]
    (batch, *_) = epoch(dataset, converter=concat_examples)
    assert batch["twice"].tolist() == [2 * label for label in labels[:32]]


def test_columns_of_a_transform_are_those_that_it_makes(rows: Any) -> None:
    made = rows.with_transform(lambda batch: {"q": [2 * label for label in batch["label"]]})
    wanted = [2 * row["label"] for row in rows.to_list()]
    assert list(ArrowDataset(made, "q")) == wanted
    assert ArrowDataset(made, ["q"])[3] == {"q": wanted[3]}
    with pytest.raises(KeyError, match=r"no column 'label' among \['q'\]"):
        ArrowDataset(made, columns=["label"])

    def fails(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if rows[0]["label"] in batch["label"]:
            raise ValueError("the first row")
        return {"q": batch["label"]}

    late = ArrowDataset(rows.with_transform(fails), ["label"])
    with pytest.raises(KeyError, match=r"no column 'label' in an example that has \['q'\]"):
        late[1]


SHAPED = {
    "plane": (datasets.Array2D((2, 3), "float32"), (2, 3)),
    "cube": (datasets.Array3D((2, 1, 4), "uint8"), (2, 1, 4)),
    "flags": (datasets.Array2D((3, 2), "bool"), (3, 2)),
    "days": (datasets.Array2D((2, 2), "date32"), (2, 2)),
    "four": (datasets.Array4D((1, 2, 2, 2), "int64"), (1, 2, 2, 2)),
    "five": (datasets.Array5D((1, 2, 1, 2, 2), "float64"), (1, 2, 1, 2, 2)),
    "open": (datasets.Array2D((None, 3), "int16"), None),
}


def shaped(name: str, n: int = 7, null: int | None = None) -> tuple[Any, list[Any]]:
    """A dataset with a column of arrays, and the arrays."""
    feature, shape = SHAPED[name]
    draw = np.random.default_rng(3)
    dtype = "datetime64[D]" if feature.dtype == "date32" else feature.dtype
    values: list[Any] = [
        draw.integers(0, 2, shape or (1 + i % 3, 3)).astype(dtype) for i in range(n)
    ]
    if null is not None:
        values[null] = None
    rows = {"x": [None if v is None else v.tolist() for v in values]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features({"x": feature}))
    return datasets.concatenate_datasets([made, made.select([2, 0])]), [*values, *values[2::-2]]


def assert_arrays(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        if other is None:
            assert one is None
            continue
        assert type(one) is np.ndarray and one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("source", ["dataset", "arrow", "parquet"])
@pytest.mark.parametrize("name", SHAPED)
def test_arrays_have_their_shape_and_dtype(name: str, source: str, tmp_path: Path) -> None:
    made, values = shaped(name)
    if source == "arrow":
        made.save_to_disk(str(tmp_path / "data"))
    if source == "parquet":
        made.to_parquet(str(tmp_path / "x.parquet"), batch_size=4)
    given = {"dataset": made, "arrow": tmp_path / "data", "parquet": tmp_path / "x.parquet"}[source]
    dataset = ArrowDataset(given, "x", padding=0)
    assert_arrays(dataset[:], values)
    (batch,) = epoch(dataset, converter=concat_examples)
    most = max(len(value) for value in values)
    padded = [np.pad(v, [(0, most - len(v))] + [(0, 0)] * (v.ndim - 1)) for v in values]
    assert_arrays(batch, padded)
    if name != "open":
        without = ArrowDataset(made, "x")
        assert_arrays(epoch(without, converter=concat_examples)[0], values)


@pytest.mark.parametrize("name", SHAPED)
def test_arrays_with_nulls(name: str) -> None:
    made, values = shaped(name, null=2)
    dataset = ArrowDataset(made, "x", nulls="none")
    assert_arrays(dataset[:], values)
    assert_arrays(epoch(dataset, converter=concat_examples)[0], values)
    masked = ArrowDataset(made, nulls="mask", padding=0)
    assert [row["x_valid"] for row in masked] == [value is not None for value in values]
    zero = np.zeros_like(values[0])[: None if name != "open" else 0]
    assert_arrays([row["x"] for row in masked], [zero if v is None else v for v in values])
    with pytest.raises(ValueError, match="has a null in row 2"):
        ArrowDataset(made)


def test_a_file_of_arrays_is_read_so_without_datasets(tmp_path: Path) -> None:
    made, values = shaped("plane")
    made.save_to_disk(str(tmp_path / "data"))
    code = (
        "import sys; from fastiter.datasets import ArrowDataset\n"
        f"rows = ArrowDataset({str(tmp_path / 'data')!r}, 'x')\n"
        "assert 'datasets' not in sys.modules\n"
        "print(rows[1].tolist(), rows[1].dtype)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"{values[1].tolist()} float32\n"


def test_arrays_of_another_shape_than_their_feature() -> None:
    kind = shaped("plane")[0].data.table.schema.field("x").type
    for rows in ([[[1, 2, 3]] * 2, [[1, 2]] * 3], [[[1, 2, 3]] * 3, [[1, 2, 3]]]):
        storage = pa.array(rows, kind.storage_type)
        with pytest.raises(ValueError, match=r"'x' has rows that are not of its shape, \(2, 3\)"):
            ArrowDataset(pa.table({"x": pa.ExtensionArray.from_storage(kind, storage)}))


# -- folders that were saved -----------------------------------------------------------------------


def test_a_saved_folder_is_the_files_that_it_lists(tmp_path: Path) -> None:
    made = datasets.Dataset.from_dict({"x": list(range(30))})
    made.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    rows = datasets.load_from_disk(str(tmp_path / "saved"))
    rows.map(lambda row: {"x": row["x"] + 100})
    rows.shuffle(seed=0).filter(lambda row: row["x"] > 3)
    assert len(list((tmp_path / "saved").glob("cache-*"))) > 1
    for folder in (tmp_path / "saved", tmp_path):  # also as a folder in another one
        assert [row["x"] for row in ArrowDataset(folder)] == list(range(30))
    assert next(SerialIterator(str(tmp_path / "saved"), 2, shuffle=False)) == [{"x": 0}, {"x": 1}]
    (tmp_path / "saved" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(FileNotFoundError, match=r"state\.json names .*data-00001-of-00003\.arrow"):
        ArrowDataset(tmp_path / "saved")


def test_a_folder_of_splits_is_no_dataset(tmp_path: Path) -> None:
    parts = {name: datasets.Dataset.from_dict({"x": [1, 2]}) for name in ("train", "test")}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    for folder in (tmp_path / "both", tmp_path):
        with pytest.raises(ValueError, match=r"DatasetDict with the splits \['train', 'test'\]"):
            ArrowDataset(folder)
    assert len(ArrowDataset(tmp_path / "both" / "train")) == 2


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


# ---- torch's loader: what it makes of any dataset ------------------------------------------------

Value, List = datasets.Value, datasets.List
M = 12  # rows


def rising(step: float = 1) -> list[Any]:
    return [i * step for i in range(M)]


def arrays(dtype: str, *shape: int) -> list[Any]:
    return [np.full(shape, i, dtype) for i in range(M)]


def features_of_kinds() -> dict[str, dict[str, tuple[Any, list[Any]]]]:
    """Columns of each kind: the feature, and values."""
    widths = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    texts = {"string": "é", "large_string": "x", "binary": b"y", "large_binary": b"z"}
    item: dict[str, Any] = {"x": Value("int32"), "y": {"z": Value("float32"), "s": Value("string")}}
    return {
        "ints": {kind: (Value(kind), rising()) for kind in widths},
        "narrow ints": {kind: (Value(kind), rising()) for kind in widths if kind != "uint64"},
        "floats": {f"float{bits}": (Value(f"float{bits}"), rising(1 / 3)) for bits in (16, 32, 64)},
        "not a number": {"a": (Value("float32"), [float("nan"), float("inf")] * (M // 2))},
        "bool": {"a": (Value("bool"), [i % 2 == 0 for i in range(M)])},
        "texts": {
            kind: (Value(kind), [text * i for i in range(M)]) for kind, text in texts.items()
        },
        "labels": {"a": (datasets.ClassLabel(names=list("abc")), [i % 3 for i in range(M)])},
        "lists": {"a": (List(Value("int32")), [[i, i + 1] for i in range(M)])},
        "unequal lists": {"a": (List(Value("int32")), [[i] * (i % 3) for i in range(M)])},
        "lists of a batch": {"a": (List(Value("int32")), [[i] * (i // 4) for i in range(M)])},
        "lists of 3": {"a": (List(Value("float32"), length=3), [[i, 1, 2] for i in range(M)])},
        "empty lists": {"a": (List(Value("int64")), [[]] * M)},
        "lists of texts": {"a": (List(Value("string")), [["a", str(i)] for i in range(M)])},
        "lists of lists": {"a": (List(List(Value("int8"))), [[[i, 1], [2, 3]] for i in range(M)])},
        "large lists": {"a": (datasets.LargeList(Value("int64")), [[i, 1] for i in range(M)])},
        "struct": {"a": (item, [{"x": i, "y": {"z": i / 2, "s": "a"}} for i in range(M)])},
        "structs in lists": {
            "a": (List({"x": Value("int8")}), [[{"x": i}, {"x": 1}] for i in range(M)])
        },
        "a null": {"a": (Value("int64"), [*range(M - 1), None]), "b": (Value("int8"), rising())},
        "a null text": {"a": (Value("string"), [*"abcdefghijk", None])},
        "nulls": {"a": (Value("null"), [None] * M)},
        "a null list": {"a": (List(Value("int64")), [*([i, 1] for i in range(M - 1)), None])},
        "a null in a list": {
            "a": (List(Value("int64")), [*([i, 1] for i in range(M - 1)), [1, None]])
        },
        "timestamp": {"a": (Value("timestamp[s]"), [datetime.datetime(2020, 1, 1)] * M)},
        "date": {"a": (Value("date32"), [datetime.date(2020, 1, 1)] * M)},
        "time": {"a": (Value("time32[s]"), [datetime.time(1)] * M)},
        "duration": {"a": (Value("duration[s]"), [datetime.timedelta(1)] * M)},
        "decimal": {"a": (Value("decimal128(5, 2)"), [decimal.Decimal("1.25")] * M)},
        "2 axes": {"a": (datasets.Array2D((2, 3), "float32"), arrays("float32", 2, 3))},
        "3 axes": {"a": (datasets.Array3D((2, 1, 2), "int32"), arrays("int32", 2, 1, 2))},
        "4 axes": {"a": (datasets.Array4D((1, 2, 1, 2), "uint8"), arrays("uint8", 1, 2, 1, 2))},
        "5 axes": {"a": (datasets.Array5D((1,) * 5, "int64"), arrays("int64", 1, 1, 1, 1, 1))},
        "translation": {"a": (datasets.Translation(("de", "en")), [{"de": "a", "en": "b"}] * M)},
        "mixed": {
            "z": (Value("int32"), rising()),
            "a": (Value("string"), list("abcdefghijkl")),
            "t": (List(Value("int8")), [[i, 2] for i in range(M)]),
        },
    }


def forms_of(made: Any, torch: Any) -> Iterator[tuple[str, Any]]:
    """Forms in which a program may give a dataset to a loader."""
    names = made.column_names
    yield "as it is", made
    yield "shuffled", made.shuffle(seed=1)
    yield "selected", made.select(range(3, 9))
    yield "chunks", datasets.concatenate_datasets([made, made.select([1, 0])])
    for form in ("torch", "numpy", "python", "arrow"):
        yield form, made.with_format(form)
    yield "first column", made.with_format(None, columns=names[:1])
    yield "columns turned round", made.with_format(None, columns=names[::-1])
    yield "all columns", made.with_format(None, columns=names[-1:], output_all_columns=True)
    yield "torch, all", made.with_format("torch", columns=names[-1:], output_all_columns=True)
    yield "transform", made.with_transform(lambda rows: {"q": [1.5] * len(rows[names[0]])})
    yield "subset", torch.utils.data.Subset(made, [3, 1, 2, 5])
    yield "stream", made.to_iterable_dataset()


def told(batch: Any, torch: Any) -> Any:
    """Types, dtypes, order of keys and values of a batch."""
    if isinstance(batch, dict):
        return type(batch), [(name, told(value, torch)) for name, value in batch.items()]
    if isinstance(batch, (list, tuple)):
        return type(batch), [told(value, torch) for value in batch]
    if isinstance(batch, torch.Tensor):
        return batch.dtype, tuple(batch.shape), repr(batch.tolist())
    return type(batch), repr(batch)


def batches_of(loader: Any, torch: Any) -> list[Any]:
    """An epoch; of a batch that cannot be made, the type of the error."""
    found, iterator = [], iter(loader)
    while True:
        try:
            found.append(told(next(iterator), torch))
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error))


def made_of(columns: dict[str, tuple[Any, list[Any]]]) -> Any:
    features = datasets.Features({name: feature for name, (feature, _) in columns.items()})
    return datasets.Dataset.from_dict({n: v for n, (_, v) in columns.items()}, features=features)


GATHERED = {"narrow ints", "floats", "not a number", "bool", "texts", "labels"}


@pytest.mark.parametrize("kind", features_of_kinds())
def test_batches_are_those_of_torchs_loader(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    made = made_of(features_of_kinds()[kind])
    for form, dataset in forms_of(made, torch):
        for num_workers in (0, 1) if form in ("as it is", "torch") else (0,):
            expected, found = (
                batches_of(loader_class(dataset, 4, num_workers=num_workers), torch)
                for loader_class in (torch.utils.data.DataLoader, DataLoader)
            )
            assert found == expected, (form, num_workers)
    # By columns, where they are known to give the same.
    read = type(iter(DataLoader(made, 4))._dataset).__name__
    assert read == ("ValueColumns" if kind in GATHERED else "Dataset")


@pytest.mark.parametrize("seed", range(20))
def test_batches_of_random_columns(seed: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    rng = np.random.default_rng(seed)
    kinds = features_of_kinds()
    chosen = GATHERED if seed % 2 else kinds
    columns = {
        f"{kind} {name}": column
        for kind in rng.permutation(sorted(chosen))[:3].tolist()
        for name, column in kinds[kind].items()
    }
    made = made_of({name: columns[name] for name in rng.permutation(list(columns)).tolist()})
    made = made.select(rng.integers(0, M, 30).tolist())
    arguments = {"batch_size": int(rng.integers(1, 9)), "drop_last": bool(rng.integers(2))}
    expected, found = (
        batches_of(loader_class(made, num_workers=seed % 4 // 2, **arguments), torch)
        for loader_class in (torch.utils.data.DataLoader, DataLoader)
    )
    assert found == expected


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_format_counts_that_the_dataset_has_when_a_loop_begins(num_workers: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    for loader_class in (torch.utils.data.DataLoader, DataLoader):
        made = made_of(features_of_kinds()["narrow ints"]).select_columns(["int8", "int16"])
        loader = loader_class(made, 12, num_workers=num_workers)
        assert loader.dataset is made and loader.dataset.column_names == ["int8", "int16"]
        (batch,) = loader
        assert batch["int8"].dtype == torch.int64
        made.set_transform(lambda rows: {"more": [value + 100 for value in rows["int8"]]})
        (batch,) = loader
        assert {name: column.tolist() for name, column in batch.items()} == {
            "more": list(range(100, 112))
        }
        made.set_format("torch", columns=["int16"])
        (batch,) = loader
        assert list(batch) == ["int16"]
        made.reset_format()
        loader.collate_fn = list
        (batch,) = loader
        assert batch[3] == {"int8": 3, "int16": 3}
        loader = loader_class(made, 12, num_workers=num_workers)
        loader.collate_fn = len
        assert list(loader) == [12]


class Renamed(datasets.Dataset):
    """A subclass with examples of its own."""

    def __getitem__(self, key: Any) -> Any:
        return {"renamed": super().__getitem__(key)["a"]}

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


def test_a_subclass_has_examples_of_its_own() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    renamed = Renamed(datasets.Dataset.from_dict({"a": range(4)}).data)
    (batch,) = DataLoader(renamed, 4)
    assert {name: column.tolist() for name, column in batch.items()} == {"renamed": [0, 1, 2, 3]}
    assert torch.is_tensor(batch["renamed"])

"""NpyDataset: rows of mapped files."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastiter import concat_examples
from fastiter.datasets import NpyDataset

X = np.random.RandomState(0).rand(40, 3, 2).astype(np.float32)
Y = np.arange(40)


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    np.savez(tmp_path / "both.npz", x=X, y=Y)
    return {name.partition(".")[0]: tmp_path / name for name in os.listdir(tmp_path)}


def test_one_array(files):
    dataset = NpyDataset(files["x"])
    assert (len(dataset), dataset.keys, dataset.mode) == (40, ("0",), None)
    assert type(dataset[3]) is np.ndarray
    np.testing.assert_array_equal(dataset[3], X[3])
    np.testing.assert_array_equal(dataset[-1], X[-1])
    np.testing.assert_array_equal(dataset[5:1:-2], X[5:1:-2])
    for index in (40, -41):
        with pytest.raises(IndexError):
            dataset[index]
    label = NpyDataset(str(files["y"]))[7]
    assert (type(label), label) == (np.int64, 7)


def test_several_arrays(files):
    x, y = NpyDataset([files["x"], files["y"]])[4]
    np.testing.assert_array_equal(x, X[4])
    assert y == 4
    example = NpyDataset({"image": files["x"], "label": files["y"]})[5]
    assert list(example) == ["image", "label"]
    np.testing.assert_array_equal(example["image"], X[5])


def test_npz(files):
    dataset = NpyDataset(files["both"])
    assert (dataset.keys, dataset.mode) == (("x", "y"), dict)
    np.testing.assert_array_equal(dataset[9]["x"], X[9])
    assert dataset[9]["y"] == 9
    x, y = dataset.slice[[3, 1], ("x", "y")].astuple().fetch()
    np.testing.assert_array_equal(x, X[[3, 1]])
    assert y.tolist() == [3, 1]


def test_examples_are_copies_and_slices_are_views(files):
    dataset = NpyDataset(files["x"])
    example = dataset[0]
    example[:] = 0
    np.testing.assert_array_equal(dataset[0], X[0])
    view = dataset.get_examples(slice(2, 9), None)[0]
    assert not view.flags.writeable
    assert type(view) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0


@pytest.mark.parametrize(
    "data",
    [
        np.asfortranarray(np.arange(12.0).reshape(4, 3)),
        np.arange(4, dtype=">i2"),
        np.array(["a", "bcd"]),
        np.zeros(3, [("ä", "i4"), ("b", "f8", (2,))]),
        np.empty((0, 5)),
        np.empty((3, 0)),
        np.array(["2020", "NaT"], "M8[D]"),
    ],
    ids=lambda data: str(data.dtype),
)
def test_every_kind_of_array(tmp_path, data):
    np.save(tmp_path / "a.npy", data)
    np.savez(tmp_path / "a.npz", first=np.zeros(len(data), np.int8), a=data)
    for dataset in (
        NpyDataset(tmp_path / "a.npy"),
        NpyDataset(tmp_path / "a.npz").slice[:, "a"],
    ):
        found = dataset.get_examples(None, None)[0]
        assert (found.dtype, found.shape) == (data.dtype, data.shape)
        assert found.tobytes() == data.tobytes()
        assert [np.asarray(row).tobytes() for row in dataset] == [row.tobytes() for row in data]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format(tmp_path, version):
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, Y, version)
    assert NpyDataset(tmp_path / "a.npy")[:] == Y.tolist()


def test_what_cannot_be_mapped(tmp_path):
    path = tmp_path / "a.npy"

    def refused(match: str, write: Any, where: Path = path) -> None:
        write(where)
        with pytest.raises(ValueError, match=match):
            NpyDataset(where)

    refused("objects", lambda p: np.save(p, np.array([None]), allow_pickle=True))
    refused("without dimensions", lambda p: np.save(p, np.float32(1)))
    refused("not an array", lambda p: p.write_bytes(b"something else"))
    refused("not an array", lambda p: p.write_bytes(b""))
    np.save(path, Y)
    refused("ends after", lambda p: os.truncate(p, p.stat().st_size - 1))
    refused("ends within its header", lambda p: os.truncate(p, 50))
    bad = b"\x93NUMPY\1\0\x10\0{'descr': 'f8', \n"
    refused("header that cannot be read", lambda p: p.write_bytes(bad))
    npz = tmp_path / "a.npz"
    refused("compressed", lambda p: np.savez_compressed(p, a=Y), npz)
    refused("same length", lambda p: np.savez(p, a=Y, b=Y[1:]), npz)
    refused("no array", np.savez, npz)
    with pytest.raises(ValueError, match="no array"):
        NpyDataset([])
    with pytest.raises(FileNotFoundError, match=r"none\.npy"):
        NpyDataset(tmp_path / "none.npy")


def damaged(whole: bytes, start: int, stop: int) -> list[bytes]:
    """The file with each of some bytes changed to others."""
    return [
        whole[:at] + bytes([value]) + whole[at + 1 :]
        for at in range(start, stop)
        for value in (0, 255, ord("-"), ord("9"), ord("("))
    ]


@pytest.mark.parametrize(
    "shape", ["(-1,)", "(2.0,)", "(True,)", "2    ", f"({10**30}, 0)", f"({2**40}, {2**40}, 0)"]
)
def test_a_damaged_shape(tmp_path, shape):
    np.save(tmp_path / "a.npy", Y)
    whole = (tmp_path / "a.npy").read_bytes()
    new = whole.replace(b"(40,), }" + b" " * (len(shape) - 5), f"{shape}, }}".encode())
    assert len(new) == len(whole)
    (tmp_path / "a.npy").write_bytes(new)
    with pytest.raises(ValueError, match=r"a\.npy has a header that cannot be read"):
        NpyDataset(tmp_path / "a.npy")


def test_damaged_files_are_refused_at_once_or_can_be_read(tmp_path):
    np.save(tmp_path / "a.npy", X[:2])
    np.savez(tmp_path / "a.npz", x=X[:2])
    for path, start in ((tmp_path / "a.npy", 0), (tmp_path / "a.npz", -150)):
        whole = path.read_bytes()
        begin = len(whole) + start if start else 0
        for content in damaged(whole, begin, begin + 150):
            path.write_bytes(content)
            try:
                dataset = NpyDataset(path)
            except ValueError as error:
                assert path.name in str(error)
            else:
                dataset[:]


def test_an_array_that_ends_as_an_archive(tmp_path):
    archive = io.BytesIO()
    np.savez(archive, x=Y)
    rows = np.frombuffer(archive.getvalue(), np.uint8)
    np.save(tmp_path / "a.npy", rows)
    dataset = NpyDataset(tmp_path / "a.npy")
    assert (dataset.mode, dataset[:]) == (None, rows.tolist())


def test_a_pickle_holds_no_data(files, monkeypatch):
    monkeypatch.chdir(files["x"].parent)
    dataset = NpyDataset(["x.npy", "y.npy"])
    dataset[0]
    image = pickle.dumps(dataset)
    assert len(image) < 1000
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(pickle.loads(image)[7][0], X[7])


def test_file_that_is_another_one_by_now(files):
    image, whole = pickle.dumps(NpyDataset(files["x"])), files["x"].read_bytes()
    for other in (X[1:], X.reshape(40, 2, 3), X + 1):
        np.save(files["x"].with_name("new.npy"), other)
        files["x"].with_name("new.npy").replace(files["x"])
        with pytest.raises(ValueError, match="is another file than"):
            pickle.loads(image)[0]
    for content in (whole[:-8], b""):
        files["x"].write_bytes(content)
        with pytest.raises(ValueError, match="is another file than"):
            pickle.loads(image)[0]
    files["x"].unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(image)[0]


def test_closed(files):
    with NpyDataset(files["both"]) as dataset:
        row = dataset.get_examples(slice(0, 2), (0,))[0]
        image = pickle.dumps(dataset)
    dataset.close()
    with pytest.raises(ValueError, match="closed"):
        dataset[0]
    np.testing.assert_array_equal(row, X[:2])
    assert pickle.loads(image)[3]["y"] == 3
    del row
    assert str(files["both"]) not in Path("/proc/self/maps").read_text()


def check_epoch(iterator: Any) -> None:
    found = [example for batch in iterator for example in batch]
    np.testing.assert_array_equal(np.stack([x for x, _ in found]), X)
    assert [y for _, y in found] == Y.tolist()


def test_in_every_iterator(make, files):
    dataset = NpyDataset([files["x"], files["y"]])
    check_epoch(make(dataset, 7, shuffle=False, repeat=False))
    iterator = make(dataset, 8, shuffle=False, repeat=False, converter=concat_examples)
    for number, (x, y) in enumerate(iterator):
        np.testing.assert_array_equal(x, X[8 * number :][:8])
        np.testing.assert_array_equal(y, Y[8 * number :][:8])


def test_under_every_start_method(make_started, files):
    dataset = NpyDataset(files["both"]).astuple()
    check_epoch(make_started(dataset, 7, shuffle=False, repeat=False))

"""fastiter.cache in one process: examples, limits, files, damage."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import errno
import io
import itertools
import logging
import math
import os
import pickle
import stat
import subprocess
import sys
import threading
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

import fastiter
from fastiter._ring.serialization import dumps
from fastiter.datasets import CachedDataset, SubDataset


class Point(NamedTuple):
    x: Any
    y: Any


class Own:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is Own and other.value == self.value

    __hash__ = None


class Counted:
    """A dataset that notes which rows were asked for."""

    def __init__(self, examples):
        self.examples, self.asked = list(examples), []

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        self.asked.append(i)
        example = self.examples[i]
        if isinstance(example, Exception):
            raise example
        return copy.deepcopy(example)


class Many(Counted):
    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [self.examples[i] for i in indices]


@pytest.fixture(params=["memory", "file"])
def place(request, tmp_path):
    return {"memory": 1 << 24} if request.param == "memory" else {"path": tmp_path / "cache"}


@pytest.fixture
def torch():
    """Imported before a test is watched, as its import may start a process."""
    return pytest.importorskip("torch")


def rows_of(n=20, step=100):
    return [(np.arange(i * step, dtype=np.float32) + i, i) for i in range(n)]


def assert_equal(a, b):
    assert type(a) is type(b)
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_equal(left, right)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, np.ndarray) and a.dtype.hasobject:
        assert a.tolist() == b.tolist()
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    elif isinstance(a, float) and math.isnan(a):
        assert math.isnan(b)
    else:
        assert a == b


EXAMPLES = [
    *(3, -(1 << 80), 2.5, math.nan, True, None, "text", "ä€😀", b"\0bytes", 1j),
    np.float32(1.5),
    np.datetime64("2020-01-01"),
    np.arange(12, dtype=">i4").reshape(3, 4),
    np.arange(3).astype(">g"),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(20)[::-2],
    np.empty((0, 3), np.uint8),
    np.array(5),
    np.array([None, "a"], object),
    np.array([(1, 2.0)], [("a", "<i2"), ("b", ">f8")]),
    np.arange(6).astype(">M8[s]").reshape(2, 3).T,
    np.zeros((), [("at", ">m8[ns]"), ("n", "<i2")]),
    (np.zeros(3), {"k": [np.ones((2, 2), bool), "t"], 4: ()}),
    Point(np.arange(3), 1),
    collections.OrderedDict(a=1),
    Own([1, 2]),
    {1, 2},
    Ellipsis,
]


@pytest.mark.parametrize("copies", [True, False])
def test_an_example_comes_back_as_it_was(place, copies):
    dataset = Counted(EXAMPLES)
    with fastiter.cache(dataset, copy=copies, **place) as cached:
        for i in 2 * list(range(len(EXAMPLES))):
            assert_equal(cached[i], EXAMPLES[i])
        assert dataset.asked == list(range(len(EXAMPLES)))
        stats = cached.stats()
        assert stats.rows == stats.hits == stats.misses == len(EXAMPLES)
        assert stats.uncached == stats.failed == stats.lost == stats.damaged == 0


@pytest.mark.processes  # which the import of torch starts
def test_tensors_and_images(place, torch):
    image_module = pytest.importorskip("PIL.Image")
    image = image_module.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    for copies in (True, False):
        with fastiter.cache([(torch.arange(4.0), image)], copy=copies, **place) as cached:
            cached[0]
            tensor, again = cached[0]
            assert torch.equal(tensor, torch.arange(4.0)) and tensor.dtype == torch.float32
            assert again.tobytes() == image.tobytes() and again.mode == "RGB"
            tensor += 1
            again.putpixel((0, 0), (9, 9, 9))
            again.load()[1, 1] = (8, 8, 8)
            assert torch.equal(cached[0][0], torch.arange(4.0)) and cached[0][1] == image


def test_views_are_arrays_of_any_example(place, torch):
    example = Point(
        np.arange(3), {"t": torch.ones(2, dtype=torch.bfloat16), "own": Own(np.ones(2))}
    )
    with fastiter.cache([example], copy=False, **place) as cached:
        cached[0]
        hit = cached[0]
        assert not hit.x.flags.writeable and not hit.y["own"].value.flags.writeable
        hit.y["t"] += 1
        assert_equal(cached[0].x, example.x)
        assert torch.equal(cached[0].y["t"], torch.ones(2, dtype=torch.bfloat16))


def test_images_of_all_modes(place):
    image_module = pytest.importorskip("PIL.Image")
    dice = np.random.default_rng(0)
    image = image_module.fromarray(dice.integers(0, 256, (9, 7, 3), np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    images = [image.convert(mode) for mode in ("RGB", "L", "1", "P", "RGBA", "CMYK", "F", "I")]
    images += [image_module.open(file), image_module.new("RGB", (0, 0)), image.convert("P")]
    images[-1].putpalette(bytes(range(256)) * 4, "RGBA")
    image.info["self"] = [image]
    with fastiter.cache(images, **place) as cached:
        for i in [*range(len(images)), *range(len(images))]:
            hit = cached[i]
            assert type(hit) is type(images[i]) and hit == images[i] and hit.info == images[i].info
        assert hit.convert("RGBA") == images[-1].convert("RGBA")


def test_an_image_of_a_file_keeps_what_its_class_pickles(place):
    image_module = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image_module.new("RGB", (9, 7), (1, 2, 3)).save(file, "JPEG", dpi=(72, 72))
    with fastiter.cache([image_module.open(file)], **place) as cached:
        loaded = pickle.loads(pickle.dumps(cached[0]))
        hit = cached[0]
        assert hit == loaded and hit.info == loaded.info and hit.format == "JPEG"
        assert vars(hit).keys() == vars(loaded).keys()


def test_what_is_returned_is_private(place):
    array = np.arange(8)
    array.flags.writeable = False
    cached = fastiter.cache([array], **place)
    assert cached[0] is array  # a miss returns the dataset's own object
    for _ in range(2):
        example = cached[0]
        assert example.tolist() == list(range(8))
        example += 1
    mine = np.arange(8)
    other = fastiter.cache([mine], memory=1 << 20)
    other[0][:] = -1
    assert other[0].tolist() == list(range(8))


def test_views_stay_after_close(place):
    cached = fastiter.cache(rows_of(5), copy=False, **place)
    list(cached[:])
    views = cached[:]
    assert not views[4][0].flags.writeable
    with pytest.raises(ValueError, match="copy=False"):
        cached.clear()
    cached.close()
    for (array, i), (right, _) in zip(views, rows_of(5), strict=True):
        assert np.array_equal(array, right) and i == right.size // 100


def test_indexing_is_that_of_a_list(place):
    dataset = Counted(range(10, 20))
    cached = fastiter.cache(dataset, **place)
    assert len(cached) == 10 and cached.dataset is dataset
    assert cached[-1] == cached[np.int64(9)] == 19
    assert cached[2:8:3] == [12, 15] and cached[[0, -1]] == [10, 19]
    for wrong in (10, -11, np.int32(10)):
        with pytest.raises(IndexError):
            cached[wrong]
    assert set(dataset.asked) == {0, 2, 5, 9}
    assert not hasattr(cached, "__getitems__") and not hasattr(cached, "state_dict")
    assert copy.copy(cached) is copy.deepcopy(cached) is cached


def test_one_call_for_the_rows_that_miss(place):
    dataset = Many(rows_of(10))
    cached = fastiter.cache(dataset, **place)
    cached[3]
    dataset.asked.clear()
    assert_equal(cached.__getitems__([1, 3, 5]), [dataset.examples[i] for i in (1, 3, 5)])
    assert_equal(cached.__getitems__([5, 1]), [dataset.examples[i] for i in (5, 1)])
    assert dataset.asked == [[1, 5]]
    assert fastiter.cache([1])[0] == 1


def test_the_work_for_an_array_does_not_grow_with_their_number():
    calls = dict.fromkeys((10, 40), 0)

    def count(frame, event, argument):
        calls[n_arrays] += event == "call"

    for n_arrays in calls:
        rows = [{f"x{n}": np.full(3, n) for n in range(n_arrays)}]
        cached = fastiter.cache(rows)
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            cached[0]
        finally:
            sys.setprofile(before)
    assert calls[40] < 5 * calls[10]


def test_a_wrong_number_of_examples_has_failed(place):
    class Few(Many):
        def __getitems__(self, indices):
            return self.examples[:1]

    cached = fastiter.cache(Few(rows_of(5)), **place)
    with pytest.raises(ValueError, match="1 examples for 2"):
        cached.__getitems__([1, 2])
    assert cached.stats().failed == cached.stats().misses == 2


def test_errors_are_raised_anew_and_not_stored(place):
    dataset = Counted([KeyError("a"), 1])
    cached = fastiter.cache(dataset, **place)
    for _ in range(3):
        with pytest.raises(KeyError):
            cached[0]
    assert cached[1] == 1
    stats = cached.stats()
    assert (stats.failed, stats.misses, stats.rows) == (3, 4, 1)


def test_what_does_not_pickle_is_returned_and_told_once(place, caplog):
    example = threading.Lock()
    cached = fastiter.cache([example, (i for i in ())], **place)
    with caplog.at_level(logging.WARNING, "fastiter"):
        assert all(cached[0] is example for _ in range(3))
        cached[1]
    assert len(caplog.records) == 1 and "does not pickle" in caplog.text
    assert cached.stats().uncached == 4


class Immense:
    def __reduce__(self):
        raise MemoryError


def test_an_example_that_finds_no_memory_is_not_said_not_to_pickle(caplog):
    example = Immense()
    cached = fastiter.cache([example], memory=1 << 20)
    with caplog.at_level(logging.WARNING, "fastiter"):
        assert cached[0] is example
    assert not caplog.records and cached.stats().uncached == 1


def test_a_full_cache_goes_on_serving(tmp_path, caplog):
    dataset = Counted(np.full(10_000, i, np.uint8) for i in range(40))
    for name, place in (
        ("memory", {"memory": 200_000}),
        ("disk", {"path": tmp_path / "a", "disk": 200_000}),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fastiter"):
            cached = fastiter.cache(dataset, **place)
            for _ in range(2):
                assert all((cached[i] == i).all() for i in range(40))
        stats = cached.stats()
        assert stats.full == name and 10 <= stats.rows <= 19 and stats.bytes <= 200_000
        assert stats.hits == stats.rows and stats.misses == stats.rows + stats.uncached
        assert len(caplog.records) == 1 and "full" in caplog.text
        cached.clear()
        assert cached.stats().rows == 0 and not cached.stats().full
        assert (cached[3] == 3).all() and (cached[3] == 3).all() and cached.stats().rows == 1


def test_memory_grows_with_the_rows_only():
    cached = fastiter.cache(Counted(np.zeros(1 << 20, np.uint8) for _ in range(8)), memory="50%")
    used = os.fstat(cached._memory.fd)
    assert used.st_blocks * 512 <= 64 << 10
    list(cached[:4])
    assert 4 << 20 <= os.fstat(cached._memory.fd).st_blocks * 512 <= cached.stats().bytes + 4096
    cached.clear()
    assert os.fstat(cached._memory.fd).st_blocks * 512 <= 64 << 10


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"memory": "60"}, ValueError, "memory"),
        ({"memory": "0%"}, ValueError, "memory"),
        ({"memory": "101%"}, ValueError, "memory"),
        ({"memory": 0}, ValueError, "memory"),
        ({"memory": 100}, ValueError, "index"),
        ({"memory": 0.5}, TypeError, "memory"),
        ({"memory": True}, TypeError, "memory"),
        ({"memory": 1 << 20, "path": "a"}, ValueError, "memory"),
        ({"disk": "50%"}, ValueError, "disk"),
        ({"key": "a"}, ValueError, "key"),
        ({"path": "a", "key": 1.5}, TypeError, "key"),
        ({"path": "a", "disk": 100}, ValueError, "disk"),
        ({"path": 3.5}, TypeError, "path"),
        ({"path": "/"}, ValueError, "folder"),
        ({"path": "/dev/null"}, ValueError, "no file"),
        ({"copy": 2}, TypeError, "copy"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        fastiter.cache([1, 2], **arguments)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("length", [1 << 58, 1 << 62, (1 << 63) - 1])
def test_more_rows_than_an_index_can_have_are_refused(length, tmp_path):
    class Long:
        def __len__(self):
            return length

    for arguments in ({}, {"path": tmp_path / "a", "disk": 1 << 40}):
        with pytest.raises(ValueError, match=f"index of {length} rows alone takes"):
            fastiter.cache(Long(), **arguments)
    with pytest.raises(OSError, match=r"File too large|No space"):
        fastiter.cache(Long(), path=tmp_path / "a")
    assert not os.listdir(tmp_path)


def test_a_stream_cannot_be_cached():
    with pytest.raises(TypeError, match="stream"):
        fastiter.cache(itertools.count())


def test_a_cache_in_memory_does_not_travel_to_another_machine():
    with pytest.raises(TypeError, match="path="):  # as an iterator with workers on a cluster packs
        dumps([fastiter.cache([1])])


def test_a_cache_in_memory_does_not_pickle():
    with pytest.raises(TypeError, match="path="):
        pickle.dumps(fastiter.cache([1]))


def test_close(place):
    cached = fastiter.cache([1, 2], **place)
    with cached:
        assert cached[0] == 1
    for use in (lambda: cached[0], cached.stats, cached.clear, lambda: pickle.dumps(cached)):
        with pytest.raises(ValueError, match="closed"):
            use()
    cached.close()


def test_stats_text():
    stats = fastiter.datasets.CacheStats(
        *(118_287, 118_287, 66_500_000_000, 0, 120_000_000_000, 92, 8, 0, 0, 0, "", 8 * 1200.0)
    )
    assert str(stats) == "118,287 of 118,287 rows, 66.5 GB of 120.0 GB, 92 % hits, 30.7 h saved"


# ---- files


def test_a_file_outlives_its_program(tmp_path):
    path = tmp_path / "cache"
    with fastiter.cache(Counted(rows_of()), path=path, key="v1") as cached:
        list(cached[:15])
        assert cached.path == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    dataset = Counted(rows_of())
    with fastiter.cache(dataset, path=path, key="v1") as cached:
        assert cached.stats()[:2] == (15, 20) and cached.stats().hits == 0
        assert_equal(cached[:15], rows_of()[:15])
        assert dataset.asked == []
        assert_equal(cached[:], rows_of())
        assert dataset.asked == [15, 16, 17, 18, 19]
    assert os.listdir(tmp_path) == ["cache"]


def test_without_a_key_one_row_is_compared(tmp_path):
    path = tmp_path / "cache"
    with fastiter.cache(Counted(rows_of()), path=path) as cached:
        list(cached[:])
    dataset = Counted(rows_of())
    with fastiter.cache(dataset, path=path) as cached:
        assert_equal(cached[:], rows_of())
        assert dataset.asked == [0]
        assert cached.stats().hits == 20 and cached.stats().misses == 0
    with fastiter.cache(Counted(range(20)), path=path) as cached:
        for _ in range(2):
            with pytest.raises(ValueError, match="key="):
                cached[2]


EQUAL = r"""
import sys
import numpy as np
import fastiter

class Own:
    def __init__(self):
        self.names = {str(i) * 3 for i in range(50)}
    def __eq__(self, other):
        return self.names == other.names

examples = [{str(i) * 3 for i in range(50)}, Own(), np.ma.array([1, 2, 3], mask=[0, 1, 0])]
try:
    import torch
except ImportError:
    pass
else:
    examples += [torch.arange(100)[::7], torch.ones(3, requires_grad=True), torch.ones(1).expand(4)]
for number, example in enumerate(examples):
    with fastiter.cache([example], path=f"{sys.argv[1]}/{number}") as cached:
        cached[0]
        assert cached.stats().hits == int(sys.argv[2])
"""


def test_equal_rows_of_another_program_are_no_error(tmp_path):
    for hits, seed in enumerate(("1", "7")):  # which decides the order of a set
        subprocess.run(
            [sys.executable, "-c", EQUAL, str(tmp_path), str(hits)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )


@pytest.mark.parametrize("other", [{"key": "v2"}, {"key": b"v1"}, {}, {"dataset": Counted([1])}])
def test_another_meaning_is_an_error(tmp_path, other):
    path = tmp_path / "cache"
    with fastiter.cache(Counted(rows_of()), path=path, key="v1") as cached:
        list(cached[:])
    before = path.read_bytes()
    arguments = {"dataset": Counted(rows_of()), **other}
    with pytest.raises(ValueError, match="'v1'"):
        fastiter.cache(arguments.pop("dataset"), path=path, **arguments)
    assert path.read_bytes() == before


def test_other_files_are_left_alone(tmp_path):
    path = tmp_path / "file"
    for content in (b"f", b"something else" * 1000):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not fastiter's"):
            fastiter.cache([1], path=path)
        assert path.read_bytes() == content


def test_a_link_stays_a_link(tmp_path):
    path, target = tmp_path / "link", tmp_path / "file"
    path.symlink_to(target)
    with fastiter.cache([1], path=path) as cached:
        assert cached[0] == 1
    target.write_bytes(b"")
    with fastiter.cache([1], path=path) as cached:
        assert cached[0] == 1
    assert path.is_symlink() and target.stat().st_size > 1000


@pytest.mark.timeout(60)
def test_a_file_is_made_anew_while_others_have_it_open(tmp_path):
    path = tmp_path / "file"
    old = fastiter.cache(Counted(rows_of()), path=path, key=1)
    list(old[:])
    with open(path, "r+b") as file:
        file.seek(30)
        file.write(b"damage")
    with pytest.warns(UserWarning, match="made anew"):
        new = fastiter.cache(Counted(rows_of()), path=path, key=1)
    assert new.stats().rows == 0 and new[3][1] == 3 and new.stats().rows == 1
    assert_equal(old[:], rows_of())
    assert old.stats().hits == 20
    again = fastiter.cache(Counted(rows_of()), path=path, key=1)
    assert again.stats().rows == 1 and again[3][1] == 3 and new.stats().hits == 1


def test_an_empty_file_counts_as_none(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached = fastiter.cache([1], path=path)
    assert cached[0] == 1 and path.stat().st_size > 1000


def test_a_file_system_where_each_file_has_a_name(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, flags, *rest):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    path = tmp_path / "file"
    for content in (b"", b"fastiter cache 1"):
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cached = fastiter.cache([1, 2], path=path)
        assert cached[:] == [1, 2] and os.listdir(tmp_path) == ["file"]


def test_a_file_that_was_replaced_does_not_load(tmp_path):
    path = tmp_path / "file"
    cached = fastiter.cache([1, 2], path=path)
    text = pickle.dumps(cached)
    cached[0]
    other = pickle.loads(text)
    assert other[0] == 1 and other.stats().hits == 1
    path.unlink()
    with pytest.raises(ValueError, match="deleted"):
        pickle.loads(text)
    fastiter.cache([1, 2], path=path)
    with pytest.raises(ValueError, match="replaced"):
        pickle.loads(text)
    assert cached[0] == 1  # whoever has the old one goes on with it


@contextlib.contextmanager
def read_only_files():
    real = os.open

    def refuse(path, flags, *rest):
        if flags & os.O_RDWR and str(path).endswith("file"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


def test_a_file_that_cannot_be_opened_for_writing_serves_hits(tmp_path):
    path = tmp_path / "file"
    with fastiter.cache(Counted(rows_of()), path=path, key=1) as cached:
        list(cached[:10])
    before = path.read_bytes()
    dataset = Counted(rows_of())
    with read_only_files(), fastiter.cache(dataset, path=path, key=1) as cached:
        assert_equal(cached[:], rows_of())
        assert cached.stats().hits == 10 and cached.stats().uncached == 10
        with pytest.raises(ValueError, match="read-only"):
            cached.clear()
        assert cached.is_full
    assert dataset.asked == list(range(10, 20)) and path.read_bytes() == before


def test_rows_of_a_read_only_file_are_checked_once_in_a_process(tmp_path):
    path = tmp_path / "file"
    row = np.arange(100, 200, dtype=np.uint8)
    with fastiter.cache(Counted([row]), path=path, key=1) as cached:
        cached[0]
    with read_only_files():
        reader, other = (fastiter.cache(Counted([row + 1]), path=path, key=1) for _ in range(2))
    assert_equal(reader[0], row)
    with open(path, "r+b") as file:
        file.seek(path.read_bytes().index(row.tobytes()))
        file.write(b"\0")
    assert_equal(reader[0], np.array([0, *row[1:]], np.uint8))
    assert reader.dataset.asked == [] and reader.stats().damaged == 0
    assert_equal(other[0], row + 1)
    assert other.dataset.asked == [0] and other.stats().damaged == 1


def test_rows_that_are_stored_anew_are_checked_by_readers_of_the_file(tmp_path):
    path = tmp_path / "file"
    with fastiter.cache(Counted([1, "one"]), path=path, key=1) as cached:
        list(cached)
        with read_only_files():
            reader = fastiter.cache(Counted([2, "two"]), path=path, key=1)
        assert reader[:] == [1, "one"]
        cached.clear()
        assert reader[0] == 2 and reader.dataset.asked == [0]
        cached[0], cached[1]
        assert reader[:] == [1, "one"] and reader.dataset.asked == [0]


def test_a_reader_of_a_file_keeps_no_check_from_others(tmp_path):
    """Whoever opens it next for writing begins an opening, with checks of its own."""
    path = tmp_path / "file"
    row = np.arange(100, 200, dtype=np.uint8)
    with fastiter.cache(Counted([row]), path=path, key=1) as cached:
        cached[0]
    with read_only_files():
        reader = fastiter.cache(Counted([row]), path=path, key=1)
    with open(path, "r+b") as file:
        file.seek(path.read_bytes().index(row.tobytes()))
        file.write(b"\0")
    with fastiter.cache(Counted([row]), path=path, key=1) as cached:
        assert_equal(cached[0], row)
        assert cached.stats().damaged == 1
    reader.close()


def test_a_file_that_was_cut_while_it_was_open(tmp_path):
    """An entry that is stored behind the cut fills the gap with zeros."""
    path = tmp_path / "file"
    rows = [np.full(10_000, i + 1, np.uint8) for i in range(4)]
    cached = fastiter.cache(Counted(rows), path=path, key=1)
    cached[0], cached[1]
    os.truncate(path, path.stat().st_size - 5_000)
    cached[2]
    assert_equal(cached[:], rows)
    assert cached.dataset.asked == [0, 1, 2, 1, 3] and cached.stats().damaged == 1


class Unloadable(Exception):
    def __init__(self, first, second):
        super().__init__(first)


@pytest.mark.parametrize("place", ["memory", "file"])
def test_a_row_that_pickles_and_does_not_load_takes_space_once(place, tmp_path):
    rows = [(np.zeros(1000), Unloadable(1, 2)), *(np.full(1000, i) for i in range(99))]
    where = {"memory": 2 << 20} if place == "memory" else {"path": tmp_path / "file", "key": 1}
    cached = fastiter.cache(rows, **where)
    for _ in range(400):
        assert type(cached[0][1]) is Unloadable
    assert_equal(cached[1:], rows[1:])
    stats = cached.stats()
    assert (stats.rows, stats.full, stats.damaged, stats.uncached) == (99, "", 1, 399)
    assert 8000 < stats.lost < 9000


def test_a_row_that_is_larger_than_the_room_is_not_stored_and_others_are():
    rows = [np.zeros(1_000_000 if i % 50 == 0 else 10) for i in range(100)]
    cached = fastiter.cache(rows, memory=1 << 20)
    for _ in range(3):
        assert_equal(cached[:], rows)
    stats = cached.stats()
    assert (stats.rows, stats.full, stats.uncached) == (98, "", 6)
    for _ in range(8):
        cached[0]
    assert cached.stats().full == "memory"  # nothing else came


class Attributes:
    def __init__(self, **values):
        self.__dict__.update(values)


@dataclasses.dataclass
class Record:
    names: set
    array: np.ndarray


PROOF = """
import sys; sys.path[:0] = {path!r}
import numpy as np, fastiter
from test_cached_dataset import Attributes, Record
words = {{"a", "b", "c", "dd", "some", "more"}}
rows = [Record(words, np.ones(2)) if {i} else Attributes(words=words, array=np.ones(2))]
print(fastiter.cache(rows, path={file!r})[0].array)
"""


@pytest.mark.parametrize("i", [0, 1])
def test_equal_objects_of_own_classes_are_no_reason_to_refuse_a_file(i, tmp_path):
    source = PROOF.format(path=sys.path, file=str(tmp_path / "file"), i=i)
    for seed in "123":  # sets have another order
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True)
        assert (done.stdout, done.stderr) == (b"[1. 1.]\n", b"")
    with pytest.raises(ValueError, match="differs"):
        fastiter.cache([Attributes(words={"a"}, array=np.ones(2))], path=tmp_path / "file")[0]


def tensors_of(torch, kind):
    tensor = torch.arange(6.0).reshape(2, 3)
    if kind == "axes in another order":
        return tensor.T.bfloat16()
    if kind == "with a gradient":
        return tensor.requires_grad_()
    if kind == "with an attribute":
        tensor.tag = "a"
    return torch.ones(1).expand(3) if kind == "expanded" else tensor


KINDS = "axes in another order", "with a gradient", "with an attribute", "expanded"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copies", [True, False])
def test_equal_tensors_in_other_objects_are_no_reason_to_refuse_a_file(
    kind, copies, tmp_path, torch
):
    for _ in range(3):
        rows = [collections.deque([tensors_of(torch, kind), np.ones(2)])]
        with fastiter.cache(rows, path=tmp_path / "file", copy=copies) as cached:
            hit, tensor = cached[0][0], rows[0][0]
            assert torch.equal(hit, tensor) and hit.stride() == tensor.stride()
            assert hit.requires_grad == tensor.requires_grad and vars(hit) == vars(tensor)


@contextlib.contextmanager
def in_threads(function, n_threads):
    """Threads that call the function, with their number, again and again while the block runs."""
    is_over = threading.Event()

    def run(number):
        while not is_over.is_set():
            function(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_counts_are_right_beside_threads_that_store_and_one_that_clears():
    rows = [np.zeros(100_000 + i, np.uint8) for i in range(16)]
    cached = fastiter.cache(rows, memory=1 << 30)
    with in_threads(lambda number: [cached[(5 * number + i) % 16] for i in range(16)], 3):
        for _ in range(1500):
            cached.clear()
    assert_equal(cached[:], rows)
    stats = cached.stats()
    assert (stats.rows, stats.lost, stats.damaged) == (16, 0, 0)


def read_all(path, examples):
    """Reads all rows of a file: they are right, or it is no cache."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cached = fastiter.cache(Counted(examples), path=path, key=1)
        except ValueError as error:
            assert "cache" in str(error)
            return None
    with cached:
        for _ in range(2):
            assert_equal(cached[:], examples)
        return cached.stats()


def filled(path, examples):
    with fastiter.cache(Counted(examples), path=path, key=1) as cached:
        list(cached[:])
    return path.read_bytes()


def test_damaged_bytes_give_right_rows_or_an_error(tmp_path):
    examples = [(np.arange(i + 9), "t" * i) for i in range(4)]
    path = tmp_path / "file"
    content = filled(path, examples)
    start = content.index(np.arange(9).tobytes())
    damaged = 0
    # Header and index are mostly zeros: a part of their bytes stands for all.
    for place in [
        *range(0, 1200, 16),
        *range(12288, 12352, 4),
        *range(start - 400, len(content), 8),
    ]:
        path.write_bytes(content)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([content[place] ^ 0x55]))
        stats = read_all(path, examples)
        damaged += 0 if stats is None else stats.damaged
    assert damaged > 10
    path.write_bytes(content)
    assert read_all(path, examples).damaged == 0


def test_a_file_that_was_cut_gives_right_rows(tmp_path):
    examples = [(np.arange(i + 9), "t" * i) for i in range(4)]
    path = tmp_path / "file"
    content = filled(path, examples)
    for number in range(64):
        size = len(content) * number // 64
        path.write_bytes(content[:size])
        stats = read_all(path, examples)
        assert stats is not None or 0 < size < 16


def test_a_cut_file_is_made_anew_with_a_warning(tmp_path):
    path = tmp_path / "file"
    content = filled(path, [1, 2])
    path.write_bytes(content[:5000])
    with pytest.warns(Warning, match="was cut"):
        cached = fastiter.cache(Counted([1, 2]), path=path, key=1)
    assert cached[:] == [1, 2] and cached.stats().misses == 2


def test_a_row_that_does_not_load_is_fetched_anew(tmp_path, monkeypatch):
    path = tmp_path / "file"
    filled(path, [Own(1), 2])
    with fastiter.cache(Counted([Own(1), 2]), path=path, key=1) as cached:
        monkeypatch.setitem(globals(), "Own", None)
        assert type(cached[0]).__name__ == "Own" and cached.stats().damaged == 1


def test_clear_leaves_rows_that_are_read_whole(place):
    examples = [np.full(200_000, i, np.uint8) for i in range(4)]
    cached = fastiter.cache(examples, **place)
    wrong = []

    def read(_):
        wrong.extend(i for i in range(4) if not (cached[i] == i).all())

    with in_threads(read, 2):
        for _ in range(100):
            cached.clear()
    assert not wrong and cached.stats().rows <= 4


def test_below_others():
    dataset = Counted(rows_of())
    cached = fastiter.cache(dataset)
    part = SubDataset(cached, 5, 15)
    for _ in range(2):
        assert_equal(part[:], rows_of()[5:15])
    assert dataset.asked == list(range(5, 15))
    assert isinstance(cached, CachedDataset)

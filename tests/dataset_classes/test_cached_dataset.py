"""fastiter.cache in one process: examples, arguments, limits."""

from __future__ import annotations

import collections
import copy
import io
import itertools
import logging
import math
import os
import pickle
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from cached_rows import Counted, in_threads, rows_of
from comparison import same

import fastiter
from fastiter._clib import status
from fastiter._fetch.cache_table import start_of
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


class Many(Counted):
    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return [self.examples[i] for i in indices]


@pytest.fixture(params=["memory", "file"])
def place(request, tmp_path):
    return {"memory": 1 << 24} if request.param == "memory" else {"path": tmp_path / "cache"}


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
            found = cached[i]
            same(found if copies else copy.deepcopy(found), EXAMPLES[i])  # a copy can be written to
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
        same(cached[0].x.copy(), example.x)
        assert torch.equal(cached[0].y["t"], torch.ones(2, dtype=torch.bfloat16))


def test_images_of_all_modes(place):
    image_module = pytest.importorskip("PIL.Image")
    dice = np.random.default_rng(0)
    image = image_module.fromarray(dice.integers(0, 256, (9, 7, 3), np.uint8))
    file = io.BytesIO()
    image.save(file, "PNG")
    images = [image.convert(mode) for mode in ("RGB", "L", "1", "P", "RGBA", "CMYK", "F", "I")]
    images += [image_module.open(file), image_module.new("RGB", (0, 0))]
    images += [image_module.new("P", (3, 2)), image_module.new("PA", (3, 2)), image.convert("P")]
    images[-1].putpalette(bytes(range(256)) * 4, "RGBA")
    image.info["self"] = [image]
    with fastiter.cache(images, **place) as cached:
        for i in [*range(len(images)), *range(len(images))]:
            hit = cached[i]
            assert type(hit) is type(images[i]) and hit == images[i] and hit.info == images[i].info
            palettes = [each.palette and each.palette.getdata() for each in (hit, images[i])]
            assert palettes[0] == palettes[1]  # that of `new` is there, and empty
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
    same(cached.__getitems__([1, 3, 5]), [dataset.examples[i] for i in (1, 3, 5)])
    same(cached.__getitems__([5, 1]), [dataset.examples[i] for i in (5, 1)])
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


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, 1 << 63, 1 << 80])
def test_sizes_beyond_any_machine_are_no_limit(size, tmp_path):
    for arguments in ({"memory": size}, {"path": tmp_path / "a", "disk": size}):
        with fastiter.cache([1, 2], **arguments) as cached:
            assert [cached[1], cached[1]] == [2, 2] and cached.stats().hits == 1


@pytest.mark.parametrize("length", [1 << 58, 1 << 62, (1 << 63) - 1])
def test_more_rows_than_an_index_can_have_are_refused(length, tmp_path):
    for arguments in ({}, {"path": tmp_path / "a", "disk": 1 << 40}):
        with pytest.raises(ValueError, match=f"index of {length} rows alone takes"):
            fastiter.cache(range(length), **arguments)
    with pytest.raises(OSError, match=r"File too large|No space"):
        fastiter.cache(range(length), path=tmp_path / "a")
    assert not os.listdir(tmp_path)


def test_an_index_that_finds_no_memory_is_told():
    length = status.memory_total() // (start_of(1 << 20) >> 20) * 99 // 100
    with pytest.raises(MemoryError, match=f"index of {length} rows takes .* are available"):
        fastiter.cache(range(length), memory="100%")


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
    same(cached[1:], rows[1:])
    stats = cached.stats()
    assert (stats.rows, stats.full, stats.damaged, stats.uncached) == (99, "", 1, 399)
    assert 8000 < stats.lost < 9000


def test_a_row_that_is_larger_than_the_room_is_not_stored_and_others_are():
    rows = [np.zeros(1_000_000 if i % 50 == 0 else 10) for i in range(100)]
    cached = fastiter.cache(rows, memory=1 << 20)
    for _ in range(3):
        same(cached[:], rows)
    stats = cached.stats()
    assert (stats.rows, stats.full, stats.uncached) == (98, "", 6)
    for _ in range(8):
        cached[0]
    assert cached.stats().full == "memory"  # nothing else came


def test_counts_are_right_beside_threads_that_store_and_one_that_clears():
    rows = [np.zeros(100_000 + i, np.uint8) for i in range(16)]
    cached = fastiter.cache(rows, memory=1 << 30)
    with in_threads(lambda number: [cached[(5 * number + i) % 16] for i in range(16)], 3):
        for _ in range(1500):
            cached.clear()
    same(cached[:], rows)
    stats = cached.stats()
    assert (stats.rows, stats.lost, stats.damaged) == (16, 0, 0)


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
        same(part[:], rows_of()[5:15])
    assert dataset.asked == list(range(5, 15))
    assert isinstance(cached, CachedDataset)

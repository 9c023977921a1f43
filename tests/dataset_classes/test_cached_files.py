"""Files of fastiter.cache in one process: their meaning, their replacement, damage."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import os
import pickle
import shutil
import stat
import subprocess
import sys
import warnings

import numpy as np
import pytest
from cached_rows import Counted, rows_of
from comparison import same

import fastiter


def test_a_file_outlives_its_program(tmp_path):
    path = tmp_path / "cache"
    with fastiter.cache(Counted(rows_of()), path=path, key="v1") as cached:
        list(cached[:15])
        assert cached.path == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    dataset = Counted(rows_of())
    with fastiter.cache(dataset, path=path, key="v1") as cached:
        assert cached.stats()[:2] == (15, 20) and cached.stats().hits == 0
        same(cached[:15], rows_of()[:15])
        assert dataset.asked == []
        same(cached[:], rows_of())
        assert dataset.asked == [15, 16, 17, 18, 19]
    assert os.listdir(tmp_path) == ["cache"]


def test_without_a_key_one_row_is_compared(tmp_path):
    path = tmp_path / "cache"
    with fastiter.cache(Counted(rows_of()), path=path) as cached:
        list(cached[:])
    dataset = Counted(rows_of())
    with fastiter.cache(dataset, path=path) as cached:
        same(cached[:], rows_of())
        copied = pickle.loads(pickle.dumps(cached))
        same(copied[:], rows_of())
        assert dataset.asked == copied.dataset.asked == [0]
        assert cached.stats().hits == 40 and cached.stats().misses == 0
    with fastiter.cache(Counted(range(20)), path=path) as cached:
        for _ in range(2):
            with pytest.raises(ValueError, match="key="):
                cached[2]


def test_an_object_in_itself_proves_nothing(tmp_path):
    rows = [[1], [2]]
    rows[0].append(rows[0])
    fastiter.cache(rows, path=tmp_path / "a")[:]
    cached = fastiter.cache([rows[0], [3]], path=tmp_path / "a")
    assert cached[0][0] == 1
    with pytest.raises(ValueError, match="differs"):
        cached[1]


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


@pytest.mark.parametrize("key", ["v2", b"v1" * 999, "v1" * 998 + "v2", None, "v1" * 999])
def test_another_meaning_is_an_error(tmp_path, key):
    path = tmp_path / "cache"
    with fastiter.cache(Counted(rows_of()), path=path, key="v1" * 999) as cached:
        list(cached[:])
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"20 rows of .* with key 'v1v1"):
        fastiter.cache(Counted(rows_of(1 if key == "v1" * 999 else 20)), path=path, key=key)
    assert path.read_bytes() == before


def test_a_share_of_the_disk_counts_besides_what_the_file_takes(tmp_path):
    rows = [np.full(100_000, i, np.uint8) for i in range(6)]
    fastiter.cache(rows, path=tmp_path / "a", key=1)[:5]
    share = 150_000 / shutil.disk_usage(tmp_path).free * 100
    cached = fastiter.cache(rows, path=tmp_path / "a", key=1, disk=f"{share:.12f}%")
    assert cached.stats().rows == 5 and len(cached[:]) == 6 and cached.stats().rows == 6


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
    same(old[:], rows_of())
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
        same(cached[:], rows_of())
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
    same(reader[0], row)
    with open(path, "r+b") as file:
        file.seek(path.read_bytes().index(row.tobytes()))
        file.write(b"\0")
    same(reader[0], np.array([0, *row[1:]], np.uint8))
    assert reader.dataset.asked == [] and reader.stats().damaged == 0
    same(other[0], row + 1)
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
        same(cached[0], row)
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
    same(cached[:], rows)
    assert cached.dataset.asked == [0, 1, 2, 1, 3] and cached.stats().damaged == 1


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
from test_cached_files import Attributes, Record
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
            same(cached[:], examples)
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


class Own:
    """A class that may be gone when its pickle is loaded."""


def test_a_row_that_does_not_load_is_fetched_anew(tmp_path, monkeypatch):
    path = tmp_path / "file"
    filled(path, [Own(), 2])
    with fastiter.cache(Counted([Own(), 2]), path=path, key=1) as cached:
        monkeypatch.setitem(globals(), "Own", None)
        assert type(cached[0]).__name__ == "Own" and cached.stats().damaged == 1

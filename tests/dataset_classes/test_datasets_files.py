"""Datasets in files of text and of pickles."""

from __future__ import annotations

import codecs
import errno
import gc
import gzip
import io
import os
import pickle
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastiter import datasets
from fastiter.datasets import _files, text_dataset

EXAMPLES = [(1, 2.0, "hello"), None, {"x": b"y" * 70_000}, [], "", np.arange(20_000), 2**100]


def same(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and bool(np.all(found == expected))


def write_lines(path: Path, n: int, encoding: str = "utf-8") -> list[str]:
    lines = [f"line {i} {'é' * (i % 50)}\n" for i in range(n)]
    path.write_text("".join(lines), encoding=encoding)
    return lines


def write_pickles(path: Path, examples: Any) -> Path:
    with datasets.open_pickle_dataset_writer(path) as writer:
        for example in examples:
            writer.write(example)
    return path


# -- TextDataset ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 4])
def test_lines(any_library, tmp_path, n):
    path = tmp_path / "a.txt"
    path.write_bytes("eins\nzw\u00f6i\r\n\ndrei".encode() if n else b"")
    dataset = any_library.TextDataset(str(path), encoding="utf-8")
    expected = ["eins\n", "zw\u00f6i\n", "\n", "drei"][:n]
    assert len(dataset) == n
    assert dataset[:] == [dataset[i] for i in range(n)] == expected
    assert dataset[[*range(n)][::-1]] == expected[::-1]
    for index in (-1, n):
        with pytest.raises(IndexError):
            dataset[index]
    dataset.close()


def test_lines_of_several_files(any_library, tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes("ä\nb\n".encode("latin-1"))
    second.write_bytes("\u3042\r\nc".encode("utf-16"))
    paths = [str(first), str(second)]
    dataset = any_library.TextDataset(
        paths, encoding=["latin-1", "utf-16"], errors="strict", newline=[None, ""]
    )
    assert dataset[:] == [("ä\n", "\u3042\r\n"), ("b\n", "c")]
    dataset.close()
    single = any_library.TextDataset(paths[:1], encoding="latin-1")
    assert single[0] == "ä\n"
    single.close()


def test_filtered_lines(any_library, tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("1\n2\n3\n4\n")
    second.write_text("4\n2\n9\n1\n")
    dataset = any_library.TextDataset(
        [str(first), str(second)], filter_func=lambda x, y: int(x) >= int(y)
    )
    assert dataset[:] == [("2\n", "2\n"), ("4\n", "1\n")]
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[-1:] == [("4\n", "1\n")]
    copy.close()
    dataset.close()


def test_wrong_arguments_for_text(any_library, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a\n")
    for error, paths, options in (
        (ValueError, [], {}),
        (ValueError, [str(path)], {"encoding": ["utf-8", "utf-8"]}),
        (ValueError, str(path), {"newline": "\t"}),
        (FileNotFoundError, str(tmp_path / "none.txt"), {}),
        (LookupError, str(path), {"encoding": "no-such-encoding"}),
    ):
        with pytest.raises(error):
            any_library.TextDataset(paths, **options)
    gc.collect()


def test_files_of_unequal_length(tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for n, path in enumerate(paths):
        write_lines(path, 2 + n)
    with pytest.raises(ValueError, match=r"a\.txt': 2, .*b\.txt': 3"):
        datasets.TextDataset(paths)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_text_that_cannot_be_decoded_is_an_error_at_once(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes("fine\n".encode(encoding) + b"\x00\xdc\xff")
    with pytest.raises(UnicodeDecodeError):
        datasets.TextDataset(path, encoding=encoding)
    dataset = datasets.TextDataset(path, encoding=encoding, errors="ignore")
    assert dataset[0] == "fine\n"


def test_decoding_errors_tell_the_place(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\n" * 1000 + b"not \xff\n")
    with pytest.raises(UnicodeDecodeError, match=r"a\.txt, near byte 5004"):
        datasets.TextDataset(path, encoding="utf-8")


newlines = st.sampled_from([None, "", "\n", "\r", "\r\n"])
errors = st.sampled_from(["ignore", "replace", "surrogateescape", "backslashreplace"])
encodings = st.sampled_from(["utf-8", "ascii", "latin-1", "cp1252", "utf-8-sig", "utf-7", "gbk"])
pieces = st.sampled_from([b"a", b"\r", b"\n", b"\xc3", b"\xa9", b"\xe3\x81", b"\xff"])
texts = st.text(st.sampled_from("ab\r\n\u00e9\u3042\U0001f600\x85\u2028"), max_size=40)
encodings_of_all = st.sampled_from(
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "gb18030"]
)


@given(
    st.one_of(
        st.tuples(st.lists(pieces).map(b"".join), encodings, errors),
        st.tuples(texts, encodings_of_all, st.none()),
    ),
    newlines,
    st.integers(1, 5),
)
def test_any_content_gives_the_lines_of_open(content, newline, chunk):
    data, encoding, errors = content
    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_dataset, "_CHUNK_BYTES", chunk)
        file.write(data if isinstance(data, bytes) else data.encode(encoding))
        file.flush()
        options = {"encoding": encoding, "errors": errors, "newline": newline}
        with open(file.name, **options) as text:
            expected = list(text)
        dataset = datasets.TextDataset(file.name, **options)
        assert dataset[:] == expected
        assert dataset[::-1] == expected[::-1]


def test_which_encodings_are_read_line_by_line():
    names = ["utf-8", "ascii", "koi8-r", "koi8-u", *(f"cp125{n}" for n in range(9))]
    names += [f"iso8859-{n}" for n in range(1, 17) if n != 12]  # there is no 12
    for name in names:
        assert text_dataset._SELF_CONTAINED.fullmatch(codecs.lookup(name).name)
        for byte in range(256):
            text = bytes([byte]).decode(name, "replace")
            assert len(text) == 1
            assert (text in "\r\n") == (byte in b"\r\n")
            if byte in b"\r\n":
                assert text.encode("ascii") == bytes([byte])
    for name in ("utf-8-sig", "utf-16", "utf-7", "cp037", "gbk", "iso2022_jp"):
        assert not text_dataset._SELF_CONTAINED.fullmatch(codecs.lookup(name).name)


# -- PickleDataset -------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(6))
def test_pickles(any_library, tmp_path, protocol):
    path = str(tmp_path / "a.pkl")
    with any_library.open_pickle_dataset_writer(path, protocol) as writer:
        for example in EXAMPLES:
            writer.write(example)
        writer.flush()
    for library in {datasets, any_library}:  # what one wrote, the other reads
        with library.open_pickle_dataset(path) as dataset:
            assert len(dataset) == len(EXAMPLES)
            assert all(map(same, dataset[:], EXAMPLES))
            assert dataset[-1] == 2**100
            assert dataset[-7] == dataset[0]
            for index in (7, -8):
                with pytest.raises(IndexError):
                    dataset[index]
        with pytest.raises(ValueError):
            dataset[0]


def test_empty_file_of_pickles(any_library, tmp_path):
    path = tmp_path / "a.pkl"
    path.touch()
    with any_library.open_pickle_dataset(str(path)) as dataset:
        assert len(dataset) == 0
    with pytest.raises(FileNotFoundError, match=r"b\.pkl"):
        any_library.open_pickle_dataset(str(tmp_path / "b.pkl"))


def readers(path: Path) -> list[Any]:
    with gzip.open(f"{path}.gz", "wb") as file:
        file.write(path.read_bytes())
    unnamed = tempfile.TemporaryFile()  # noqa: SIM115
    unnamed.write(path.read_bytes())
    return [
        open(path, "rb"),
        open(path, "rb", buffering=0),
        open(path, "r+b"),
        unnamed,
        io.BytesIO(path.read_bytes()),
        gzip.open(f"{path}.gz", "rb"),
        io.BufferedReader(gzip.open(f"{path}.gz", "rb")),
        Unzipped(f"{path}.gz"),
    ]


class Unzipped(io.BufferedReader):
    """A reader with reading of its own."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path))
        self._file = gzip.open(path)  # noqa: SIM115
        for name in ("seek", "tell", "peek", "read", "readinto", "readline"):
            setattr(self, name, getattr(self._file, name))

    def close(self) -> None:
        self._file.close()
        super().close()


@pytest.mark.parametrize("number", range(8))
def test_readers(any_library, tmp_path, number):
    path = write_pickles(tmp_path / "a.pkl", EXAMPLES)
    chosen = readers(path)
    dataset = any_library.PickleDataset(chosen[number])
    assert all(map(same, dataset[:], EXAMPLES))
    if any_library is datasets and number in (3, 5, 6, 7):
        with pytest.raises(TypeError):
            pickle.dumps(dataset)
    elif any_library is datasets:
        with pickle.loads(pickle.dumps(dataset)) as copy:
            assert all(map(same, copy[:], EXAMPLES))
    dataset.close()
    assert chosen[number].closed
    with pytest.raises(ValueError):
        dataset[0]
    for reader in chosen:
        reader.close()


def test_reader_that_has_what_was_written_in_its_buffer(tmp_path):
    with open(tmp_path / "a.pkl", "w+b") as file:
        pickle.dump(1, file)
        assert datasets.PickleDataset(file)[:] == [1]


def test_reader_whose_name_is_another_file_by_now(tmp_path):
    path = write_pickles(tmp_path / "a.pkl", [1, 2])
    with open(path, "rb") as reader:
        os.replace(write_pickles(tmp_path / "b.pkl", [3, 4]), path)
        with datasets.PickleDataset(reader) as dataset:
            assert dataset[:] == [1, 2]
            with pytest.raises(TypeError, match="no name"):
                pickle.dumps(dataset)


def test_reader_that_is_open_for_writing_alone(tmp_path):
    with (
        io.FileIO(tmp_path / "a.pkl", "w") as writer,
        pytest.raises(io.UnsupportedOperation, match="not open for reading"),
    ):
        datasets.PickleDataset(writer)


def test_reader_without_random_access(any_library):
    read, write = os.pipe()
    os.close(write)
    with open(read, "rb") as reader, pytest.raises(ValueError, match="random access"):
        any_library.PickleDataset(reader)


@pytest.mark.parametrize("lost", [1, 2, 30, 60_000])
def test_file_that_ends_within_an_example(tmp_path, lost):
    path = write_pickles(tmp_path / "a.pkl", [1, "x" * 100_000])
    start = len(pickle.dumps(1, pickle.HIGHEST_PROTOCOL))
    os.truncate(path, path.stat().st_size - lost)
    with pytest.raises(pickle.UnpicklingError, match=rf"example 1, at byte {start} of .*a\.pkl"):
        datasets.open_pickle_dataset(path)
    os.truncate(path, start + 1)  # here Chainer's sees a file of one example
    with pytest.raises(pickle.UnpicklingError, match="example 1"):
        datasets.open_pickle_dataset(path)


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"\x80\x29N.", "unsupported pickle protocol: 41"),
        (b"\x80\x04\x8c\x02\xff\xfe.", "UnicodeDecodeError"),
        (b"\x80\x04\x95" + b"\xff" * 8 + b"N.", "OverflowError: FRAME"),
        (b"\x8e" + (1 << 62).to_bytes(8, "little"), "(MemoryError|pickle data was truncated)"),
        (b"K\1Na.", "AttributeError: 'int' object"),
        (b"cno_such_module\nname\n.", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_damaged_example_is_named(tmp_path, damaged, reason):
    path = write_pickles(tmp_path / "a.pkl", ["good"])
    start = path.stat().st_size
    path.write_bytes(path.read_bytes() + damaged)
    with pytest.raises(
        pickle.UnpicklingError, match=rf"example 1, at byte {start} of .*a\.pkl.*: .*{reason}"
    ):
        datasets.open_pickle_dataset(path)


def test_example_that_does_not_pickle_leaves_the_file_as_it_was(tmp_path):
    with datasets.open_pickle_dataset_writer(tmp_path / "a.pkl") as writer:
        writer.write(1)
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
            writer.write([b"x" * 200_000, lambda: None])
        writer.write(2)
    with pytest.raises(ValueError):
        writer.write(3)
    with datasets.open_pickle_dataset(tmp_path / "a.pkl") as dataset:
        assert dataset[:] == [1, 2]


def test_writer_that_takes_a_part_at_a_time():
    class Slow(io.RawIOBase):
        def __init__(self):
            self.data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data[:3])
            return min(3, len(data))

    slow = Slow()
    datasets.PickleDatasetWriter(slow).write("some text")
    assert pickle.loads(slow.data) == "some text"


def test_nothing_follows_an_example_that_was_written_in_part():
    class Small(io.BytesIO):
        room = 20

        def write(self, data):
            if len(data) > self.room:
                super().write(data[: self.room])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    small = Small()
    writer = datasets.PickleDatasetWriter(small)
    writer.write(1)
    with pytest.raises(OSError, match="No space"):
        writer.write("some text")
    small.room, written = 1000, small.getvalue()
    with pytest.raises(ValueError, match="anew"):
        writer.write(3)
    assert small.getvalue() == written


def test_threads_write(tmp_path):
    path = tmp_path / "a.pkl"
    with datasets.open_pickle_dataset_writer(path) as writer, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: [writer.write((n, i)) for i in range(200)], range(4)))
    with datasets.open_pickle_dataset(path) as dataset:
        assert sorted(dataset[:]) == [(n, i) for n in range(4) for i in range(200)]


# -- shared files --------------------------------------------------------------------------------


def text_of(path: Path, encoding: str = "utf-8") -> tuple[Any, list[Any]]:
    lines = write_lines(path, 400, encoding)
    return datasets.TextDataset(path, encoding=encoding), lines


def stateful_text_of(path: Path) -> tuple[Any, list[Any]]:
    return text_of(path, "utf-16")


def pickles_of(path: Path) -> tuple[Any, list[Any]]:
    examples = [("x" * (i % 97), i) for i in range(400)]
    return datasets.open_pickle_dataset(write_pickles(path, examples)), examples


def foreign_pickles_of(path: Path) -> tuple[Any, list[Any]]:
    _, examples = pickles_of(path)
    return datasets.PickleDataset(io.BytesIO(path.read_bytes())), examples


KINDS = [text_of, stateful_text_of, pickles_of, foreign_pickles_of]


@pytest.mark.parametrize("kind", KINDS)
def test_in_every_iterator(make, tmp_path, kind):
    dataset, expected = kind(tmp_path / "file")
    with dataset:
        dataset[3]
        iterator = make(dataset, 16, shuffle=False, repeat=False)
        assert [example for batch in iterator for example in batch] == expected


def test_under_every_start_method(make_started, tmp_path):
    made = [kind(tmp_path / kind.__name__) for kind in KINDS]
    dataset = datasets.TupleDataset(*(dataset for dataset, _ in made))
    iterator = make_started(dataset, 16, shuffle=False, repeat=False)
    found = [example for batch in iterator for example in batch]
    assert found == list(zip(*(expected for _, expected in made), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_many_threads_read_at_once(tmp_path, kind):
    dataset, expected = kind(tmp_path / "file")

    def read(seed: int) -> None:
        for i in np.random.RandomState(seed).permutation(400):
            assert dataset[i] == expected[i]

    with dataset, ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


@pytest.mark.parametrize("kind", KINDS)
def test_closed_datasets(tmp_path, kind):
    dataset, expected = kind(tmp_path / "file")
    image = pickle.dumps(dataset)
    for _ in range(2):
        dataset.close()
    with pytest.raises(ValueError, match="closed"):
        dataset[0]
    assert len(dataset) == 400
    with pickle.loads(image) as copy:
        assert copy[:] == expected


def test_a_close_during_reads_gives_right_lines_or_an_error(tmp_path):
    dataset, expected = text_of(tmp_path / "a.txt")
    other = tmp_path / "b.txt"
    other.write_bytes(b"!" * 100_000)
    started = threading.Barrier(5)

    def read() -> None:
        started.wait()
        for i in [*range(400)] * 100:
            try:
                found = dataset[i]
            except ValueError:
                return
            assert found == expected[i]

    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(read) for _ in range(4)]
        started.wait()
        dataset.close()
        with open(other, "rb"):  # takes the number of a descriptor that is closed
            for each in reads:
                each.result()


def test_dropped_datasets_close_their_files_in_silence(tmp_path):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (text_of, pickles_of):
            dataset, _ = kind(tmp_path / kind.__name__)
            dataset.itself = dataset
            del dataset
            gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_relative_paths_are_those_of_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text_of(Path("a.txt"))
    pickles_of(Path("b.pkl"))
    made = [datasets.TextDataset("a.txt", "utf-8"), datasets.open_pickle_dataset("b.pkl")]
    monkeypatch.chdir("/")
    for dataset in made:
        with dataset, pickle.loads(pickle.dumps(dataset)) as copy:
            assert copy[:] == dataset[:]


@pytest.mark.parametrize("kind", [text_of, stateful_text_of, pickles_of])
def test_file_that_is_gone_or_shorter_in_a_worker(tmp_path, kind):
    path = tmp_path / "file"
    dataset, _ = kind(path)
    image = pickle.dumps(dataset)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(OSError, match="has become shorter"):
        dataset[399]
    with pytest.raises(OSError, match="make the dataset again"):
        pickle.loads(image)[0]
    path.unlink()
    with pytest.raises(FileNotFoundError, match="file"):
        pickle.loads(image)[0]


def test_foreign_reader_after_a_fork(tmp_path):
    class Reader(io.BytesIO):
        n_forks = 0

        def after_fork(self):
            self.n_forks += 1

    _, examples = pickles_of(tmp_path / "a.pkl")
    reader = Reader((tmp_path / "a.pkl").read_bytes())
    dataset = datasets.PickleDataset(reader)
    with dataset._source._lock:  # as if another thread were reading
        pid = os.fork()
        if pid == 0:
            os._exit(0 if reader.n_forks == 1 and dataset[7] == examples[7] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert reader.n_forks == 0


def test_cursor_is_a_file_object(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(200)))
    with _files.SharedFile(path).stream() as stream, open(path, "rb") as file:
        for offset, whence in ((5, 0), (3, 1), (-4, 2), (10, 2), (-20, 1)):
            assert stream.seek(offset, whence) == file.seek(offset, whence)
            assert stream.read(2) == file.read(2)
            assert stream.tell() == file.tell()
        assert (stream.readable(), stream.writable(), stream.seekable()) == (True, False, True)


def test_directories_are_no_files(tmp_path):
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        datasets.open_pickle_dataset(tmp_path)
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        datasets.TextDataset(tmp_path)


@pytest.mark.parametrize(
    "make", [datasets.TextDataset, datasets.NpyDataset, datasets.open_pickle_dataset_writer]
)
def test_a_number_is_no_path(make, tmp_path):
    """It would be a descriptor of the program's, which closed with the dataset."""
    with open(tmp_path / "file", "wb") as file:
        for number in (file.fileno(), [file.fileno()]):
            with pytest.raises(TypeError, match=r"must be a .*path"):
                make(number)
        gc.collect()
        os.fstat(file.fileno())

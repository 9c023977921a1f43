"""Workers that are not forked share with the program: mapped files, locks and shared memory, the
environment. A fork gives the right values."""

from __future__ import annotations

import contextlib
import logging
import mmap
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_of import Blocks
from outside import environment, run_script

from fastiter._workers import process_group

METHODS = ["fork", "spawn", "forkserver"]
NEW = ["spawn", "forkserver"]
LENGTH = 200_000


def mapped_from(array: np.ndarray) -> str:
    """Kind of the mapping in which an array of this process begins, and its file."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, kind, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return f"{kind} {''.join(path)}"
    return ""


class Arrays:
    """Tells of its arrays: the sum of the first elements, type and mapping of each."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = arrays

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        found = {}
        for name, array in self.arrays.items():
            first = array.reshape(-1)[:50] if array.flags.c_contiguous else array[:2]
            total = int(first.astype(np.int64).sum())
            found[name] = (total, type(array).__name__, array.flags.writeable, mapped_from(array))
        return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file of int32 numbers, with a name that the system's tables write otherwise."""
    path = tmp_path / "some numbers\nof mine.bin"
    np.arange(LENGTH, dtype=np.int32).tofile(path)
    return str(path)


@pytest.mark.parametrize("method", METHODS)
def test_arrays_in_mapped_files_are_not_copied(make, path, method):
    whole = np.memmap(path, np.int32, "r")
    with open(path, "rb") as file:
        plain = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays = {
        "r": whole,
        "c": np.memmap(path, np.int32, "c"),
        "r+": np.memmap(path, np.int32, "r+"),
        "with an offset": np.memmap(path, np.int32, "r", offset=40_000),
        "slice": whole[1000:150_000],
        "columns": whole.reshape(-1, 100)[:, :-1],
        "backwards": whole[::-1],
        "windows": np.lib.stride_tricks.sliding_window_view(whole, 1025),
        "big-endian": np.memmap(path, ">i4", "r"),
        "records": np.memmap(path, [("a", "<i4"), ("b", "<i4")], "r")["b"],
        "of a mmap": np.frombuffer(plain, np.int32),
        "of a list": [whole][0].view(np.ndarray),
    }
    dataset = Arrays(arrays)
    for example in next(make(dataset, 4, context=method)):
        assert example == dataset[0]
    assert all("mine.bin" in mapping for *_, mapping in dataset[0].values())


@pytest.mark.parametrize("method", METHODS)
def test_pages_that_were_written_in_a_private_mapping_travel(make, path, method):
    array = np.memmap(path, np.int32, "c")
    array[[0, LENGTH - 1]] = -7
    example = next(make(Arrays({"first": array, "last": array[-1000:]}), 4, context=method))[0]
    assert example["first"][0] == sum(range(1, 50)) - 7
    assert example["last"][0] == sum(range(LENGTH - 1000, LENGTH - 950))
    assert np.fromfile(path, np.int32)[0] == 0


class Writes:
    def __init__(self, *arrays: np.ndarray):
        self.arrays = arrays

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        before = int(self.arrays[0][index])
        for array in self.arrays:
            array[index] = 1000 + index
        return before


@pytest.mark.parametrize("method", METHODS)
def test_writes_to_a_shared_mapping_are_seen_by_all(make, path, method):
    large = np.memmap(path, np.int32, "r+")
    small = np.memmap(path, np.int32, "r+", offset=4000, shape=(8,))
    iterator = make(Writes(large, small), 4, context=method)
    assert next(iterator) + next(iterator) == list(range(8))
    large[:8] = -1

    assert set(next(iterator) + next(iterator)) <= {-1, *range(1000, 1008)}
    iterator.finalize()
    assert small.tolist() == list(range(1000, 1008))
    assert np.fromfile(path, np.int32)[1000:1008].tolist() == small.tolist()


@pytest.mark.parametrize("method", NEW)
def test_a_file_that_has_lost_its_name_is_copied(make, path, method):
    array = np.memmap(path, np.int32, "r")
    np.zeros(LENGTH, np.int32).tofile(f"{path}.new")
    os.replace(f"{path}.new", path)
    example = next(make(Arrays({"r": array}), 4, context=method))[0]
    assert example["r"][0] == sum(range(50))
    assert "mine.bin" not in example["r"][3]


class Ends(Arrays):
    """Ends its process at the first example, as often as a shared number says."""

    def __init__(self, arrays: dict[str, np.ndarray], method: str, times: int):
        super().__init__(arrays)
        context = multiprocessing.get_context(method)
        self.lock = context.Lock()
        self.left = context.RawValue("i", times)
        self.marks = context.RawArray("i", 4)

    def __getitem__(self, index: int) -> dict[str, Any]:
        with self.lock:
            self.marks[index] += 1
            self.left.value -= 1
        if self.left.value >= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_starts_later_has_the_same_locks_and_mappings(make, path, method):
    dataset = Ends({"r": np.memmap(path, np.int32, "r")}, method, 2)
    iterator = make(dataset, 4, n_processes=1, context=method, shared_mem=1 << 16)
    for example in next(iterator):
        assert example == Arrays.__getitem__(dataset, 0)
    iterator.finalize()
    assert sum(dataset.marks) >= 6
    assert dataset.left.value < 0


@pytest.mark.parametrize("method", NEW)
def test_a_worker_that_starts_later_takes_no_other_file(make, path, method):
    dataset = Ends({"r": np.memmap(path, np.int32, "r")}, method, 0)
    iterator = make(dataset, 4, n_processes=1, context=method)
    next(iterator)
    np.zeros(LENGTH, np.int32).tofile(f"{path}.new")
    os.replace(f"{path}.new", path)
    dataset.left.value = 1
    with pytest.raises(OSError, match=r"mine\.bin is another file .* was replaced"):
        for _ in range(100):
            next(iterator)


@pytest.mark.parametrize("method", NEW)
def test_what_holds_a_lock_is_an_image_all_the_same(make, method):
    dataset = Ends({"in memory": np.ones(LENGTH, np.int32)}, method, 0)
    example = next(make(dataset, 4, n_processes=1, context=method))[0]
    assert re.search("p .*fastiter", example["in memory"][3])


def test_tables_of_mapped_arrow_files_are_not_copied(make, tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    path = str(tmp_path / "table.arrow")
    with (
        pa.OSFile(path, "wb") as file,
        pa.ipc.new_file(file, pa.schema([("a", pa.int64())])) as out,
    ):
        out.write(pa.record_batch({"a": np.arange(LENGTH)}))
    table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    dataset = Table(table)
    for method in METHODS:
        assert next(make(dataset, 4, context=method)) == [dataset[i] for i in range(4)]
    assert "table.arrow" in dataset[0][1]


class Table:
    def __init__(self, table: Any):
        self.table = table

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, str]:
        column = self.table["a"].chunk(0).to_numpy()
        return int(column[index]), mapped_from(column)


# ---- the process ---------------------------------------------------------------------------------

STATE = """
import os, resource, sys
import numpy as np
from fastiter import MultiprocessIterator

class State:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        umask = os.umask(0)
        os.umask(umask)
        return repr((
            {k: v for k, v in os.environ.items() if "_THREADS" not in k}, umask,
            os.environ.get("OMP_NUM_THREADS"), os.sched_getaffinity(0),
            os.getpriority(os.PRIO_PROCESS, 0), resource.getrlimit(resource.RLIMIT_STACK),
            os.getcwd(), hash("a text"), os.popen("echo $MINE").read(),
        ))

def state():
    with MultiprocessIterator(State(), 2, n_processes=1, context=sys.argv[1]) as iterator:
        return next(iterator)[0]

if __name__ == "__main__":
    os.environ["GONE"] = "1"
    os.environ.pop("PYTHONHASHSEED")
    state()
    os.environ["MINE"] = "is set"
    os.environ["ODD"] = "no \\udcff text"
    os.environ["OMP_NUM_THREADS"] = "3"
    del os.environ["GONE"]
    os.umask(0o27)
    os.nice(3)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 22, hard))
    os.chdir("/")
    found, expected = state(), State()[0]
    assert found == expected, (found, expected)
    del os.environ["OMP_NUM_THREADS"]
    assert ", '1', {" in state()
"""


@pytest.mark.parametrize("method", METHODS)
def test_workers_have_the_environment_of_the_program_at_their_start(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(STATE)
    command = [sys.executable, str(program), method]
    variables = {**environment(), "PYTHONHASHSEED": "7"}
    if method == "spawn":  # its interpreters take the seed from the environment of then
        program.write_text(STATE.replace('os.environ.pop("PYTHONHASHSEED")', ""))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


HALF = """
import builtins, os

if hasattr(builtins, "half_imported"):
    raise RuntimeError("imported twice in one process")
builtins.half_imported = True
if not os.path.exists({path!r}):
    open({path!r}, "w").close()
    raise OSError("the first import fails")

class Dataset:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index
"""
IMPORTS_HALF = """
from fastiter import MultiprocessIterator

if __name__ == "__main__":
    import os
    open({path!r}, "w").close()
    from half import Dataset
    os.unlink({path!r})
    with MultiprocessIterator(
        Dataset(), 4, n_processes=2, shuffle=False, context="forkserver"
    ) as iterator:
        print(next(iterator))
"""


def test_a_server_whose_import_failed_half_way_imports_nothing(tmp_path):
    path = str(tmp_path / "mark")
    (tmp_path / "half.py").write_text(HALF.format(path=path))
    source = IMPORTS_HALF.format(path=path)
    assert run_script(tmp_path, source) == (0, "[0, 1, 2, 3]\n", "")


RAISES = """
import sys
from fastiter import MultiprocessIterator
from examples_of import Blocks

if __name__ != "__main__":
    raise KeyError("the port is in use")
if __name__ == "__main__":
    with MultiprocessIterator(Blocks(8), 4, n_processes=2, context="forkserver") as iterator:
        try:
            next(iterator)
        except KeyError as error:
            print(error)
"""


def test_what_the_main_module_raises_in_a_worker_is_raised(tmp_path):
    assert run_script(tmp_path, RAISES) == (0, "'the port is in use'\n", "")


# ---- errors --------------------------------------------------------------------------------------

GUARDED = """
from fastiter import MultiprocessIterator

if __name__ == "__main__":
    class Dataset(list):
        pass

    try:
        next(MultiprocessIterator(Dataset([1, 2]), 2, n_processes=1, context={method!r}))
    except AttributeError as error:
        print(error)
"""


@pytest.mark.parametrize("method", NEW)
@pytest.mark.parametrize("where", ["below the guard", "interactive"])
def test_a_class_that_only_the_program_defines(tmp_path, method, where):
    source = GUARDED.format(method=method)
    if where == "interactive":
        command = [sys.executable, "-c", source]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=120
        )
        status, out = done.returncode, done.stdout
    else:
        status, out, _ = run_script(tmp_path, source)
    assert status == 0
    assert "'Dataset'" in out
    assert "guard" in out
    assert "notebook" in out
    assert "into a module" in out
    assert "context='fork'" in out


class Holding(Blocks):
    def __init__(self, what: Any):
        super().__init__(8)
        self.what = what


@pytest.mark.parametrize("method", NEW)
def test_an_open_file_is_to_be_opened_in_the_worker(make, method, tmp_path):
    # cloudpickle, where it is installed, sends the text of files that are open for reading, and
    # the bytes of a view: their positions and elements are others.
    (tmp_path / "lines").write_text("text")
    opened = contextlib.closing(sqlite3.connect(":memory:"))
    with (
        open(tmp_path / "file", "w") as file,
        open(tmp_path / "lines") as lines,
        opened as database,
    ):
        for what in (file, lines, memoryview(np.arange(8)), database):
            with pytest.raises(TypeError, match=r"'what'.*Open files, databases.* in the worker"):
                make(Holding(what), 4, context=method).start()


@pytest.mark.parametrize("method", NEW)
def test_the_programs_own_output_travels_by_name(make, method, monkeypatch):
    pytest.importorskip("cloudpickle")
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    assert len(next(make(Holding(sys.stderr), 4, context=method))) == 4


@pytest.mark.parametrize("method", NEW)
def test_an_image_that_takes_long_is_told_of_once(make, monkeypatch, caplog, method):
    monkeypatch.setattr(process_group, "SLOW_IMAGE_SECONDS", -1.0)
    monkeypatch.setattr(process_group, "_has_told_of_time", False)
    for _ in range(2):
        next(make(Blocks(8), 4, context=method))
    told = [record for record in caplog.records if "took" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert re.search(r"image, of [\d.]+ MiB, took [\d.]+ s .*persistent", told[0].message)

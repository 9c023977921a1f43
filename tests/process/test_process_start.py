"""Start methods, what travels to the workers, and what it costs there."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import numpy as np
import psutil
import pytest
from examples_of import Big, Blocks, Forwarding, Locked, Numbered, Opened
from inside import pids_of, ready_pids_of
from outside import HANG, environment, run_script

import fastiter
from fastiter import concat_examples
from fastiter._workers import forkserver as _forkserver

METHODS = ["fork", "spawn", "forkserver"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("as_context", [False, True])
@pytest.mark.each_method
def test_every_start_method_gives_the_same(make, method, as_context):
    context = multiprocessing.get_context(method) if as_context else method
    iterator = make(Numbered(20), 3, context=context)
    for number in range(14):
        for row, (block, index) in enumerate(next(iterator)):
            assert index == (3 * number + row) % 20
            np.testing.assert_array_equal(block, Blocks(20)[index])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_does_not_pickle_is_named(make, method):
    iterator = make(Opened(20), 4, context=method)
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            next(iterator)
        text = str(caught.value)
        assert text.startswith("attribute 'source.handle' of the dataset (")
        assert "TextIOWrapper" in text or "file" in text.lower() or "IO" in text
        assert "context='fork'" in text
        assert "MultithreadIterator" in text


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_does_not_load_is_told(make, method):
    with pytest.raises(RecursionError, match=r"raise AttributeError .*context='fork'"):
        next(make(Forwarding(20), 4, context=method))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_converter_that_does_not_pickle_is_an_error_at_the_start(make, monkeypatch, method):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # as if it were not installed
    iterator = make(Blocks(20), 4, context=method, converter=lambda batch, device: len(batch))
    with pytest.raises(TypeError, match=r"converter.*module level.*cloudpickle"):
        iterator.start()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_lambdas_travel_with_cloudpickle(make, method):
    pytest.importorskip("cloudpickle")
    offset = 5
    iterator = make(
        Blocks(20, 1),
        4,
        context=method,
        converter=lambda batch, device: np.stack(batch)[:, 0] + offset,
    )
    assert next(iterator).tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("method", METHODS)
def test_locks_and_shared_numbers_travel(make, method):
    dataset = Locked(20, method)
    iterator = make(dataset, 4, context=method)
    for number in range(10):
        assert next(iterator)[0][0] == number * 4 % 20 * 64
    iterator.finalize()
    assert dataset.count.value >= 40


def anonymous_bytes(pid):
    """Memory of a process that is no file's, nor shared as a file's is."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Anonymous: +(\d+) kB$", rollup, re.MULTILINE)[1]) << 10


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.each_method
def test_workers_share_one_image_of_the_dataset(make, method):
    def private(nbytes):
        iterator = make(Big(nbytes), 16, n_processes=2, context=method)
        pids = []
        while len(pids) < 2:
            for batch in (next(iterator) for _ in range(8)):
                assert all(example[1] == nbytes // 8 // 64 for example in batch)
            pids = ready_pids_of(iterator)
        return sum(map(anonymous_bytes, pids))

    nbytes = 64 << 20
    assert private(nbytes) < private(64 << 10) + nbytes // 2


@pytest.mark.parametrize("method", METHODS)
def test_a_dataset_that_writes_to_itself_is_private_to_a_worker(make, method):
    iterator = make(Writing(32), 8, context=method)
    for number in range(8):
        for row, example in enumerate(next(iterator)):
            assert example[0] == (8 * number + row) % 32
            assert example[1] == 7


class Writing:
    def __init__(self, size):
        self.size = size
        self.table = np.zeros((size, 40_000))

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.table[index] = 7
        value = self.table[index].mean()
        self.table[index] = 0
        return np.array([index, value])


@pytest.mark.parametrize("method", METHODS)
def test_generators_differ_between_workers_and_starts(make, method):
    def draws():
        iterator = make(Draws(64), 1, n_processes=2, context=method, maxtasksperchild=4)
        got = {}
        for _ in range(64 if method == "fork" else 14):
            pid, ours, numpys = next(iterator)[0]
            got.setdefault(pid, []).append((ours, numpys))
        iterator.finalize()
        return got

    random.seed(3)
    np.random.seed(3)
    got = draws()
    assert len(got) > 2
    firsts = [values[0] for values in got.values()]
    assert len({ours for ours, _ in firsts}) == len(firsts)
    assert len({numpys for _, numpys in firsts}) == len(firsts)


class Draws:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):

        return os.getpid(), random.random(), float(np.random.random())


def blocked_signals(connection):
    connection.send(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    connection.recv()


def test_the_forkserver_of_the_program_is_left_alone(make):
    iterator = make(Blocks(8), 4, context="forkserver")
    next(iterator)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=blocked_signals, args=(theirs,))
    process.start()
    assert ours.recv() == set()
    servers = {psutil.Process(pid).ppid() for pid in pids_of(iterator)}
    assert len(servers) == 1
    assert psutil.Process(process.pid).ppid() not in servers
    ours.send(None)
    process.join()


def test_another_copy_of_the_package_is_not_loaded_beforehand(tmp_path, monkeypatch):
    """One that lies where a server would look first."""
    monkeypatch.setenv("PYTHONPATH", str(Path(fastiter.__file__).parent.parent))
    assert _forkserver._is_found_by_others()
    (tmp_path / "fastiter").mkdir()
    (tmp_path / "fastiter" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert not _forkserver._is_found_by_others()


def test_an_editable_install_is_found_by_servers(tmp_path, monkeypatch):
    """A file beside the installed packages names its folder; any other folder is not theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    sources = Path(fastiter.__file__).parents[1]
    (tmp_path / "other.pth").write_text(f"# {sources}\nimport sys\n{tmp_path / 'nowhere'}\n")
    assert not _forkserver._is_found_by_others()
    (tmp_path / "sources.pth").write_text(f"{sources}\n")
    assert _forkserver._is_found_by_others()


def test_padding_travels_under_spawn(make):
    convert = functools.partial(concat_examples, padding=-1)
    iterator = make([np.arange(n) for n in (1, 3, 2)], 3, context="spawn", converter=convert)
    expected = [[0, -1, -1], [0, 1, 2], [0, 1, -1]]
    for _ in range(4):
        assert next(iterator).tolist() == expected


WITHOUT_GUARD = """
from examples_of import Blocks
from fastiter import MultiprocessIterator

iterator = MultiprocessIterator(Blocks(20), 4, n_processes=2, context={method!r})
{call}
print(len(next(iterator)))
iterator.finalize()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_without_a_main_guard_is_told(tmp_path, method):
    """By one error, at once: no worker imports that program."""
    source = WITHOUT_GUARD.format(method=method, call="iterator.start()")
    status, out, err = run_script(tmp_path, source)
    assert (status, out) == (1, "")
    assert re.search(r"RuntimeError: .* line 6 of .*program.py.*if __name__ == '__main__':", err)
    assert err.count("Traceback") == 1


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_guard_is_one_that_holds_workers_off(tmp_path, method):
    """In whatever words; one elsewhere is none."""
    inside = textwrap.indent(WITHOUT_GUARD.format(method=method, call="pass"), "    ")
    name = "multiprocessing.current_process().name"
    other = f"import multiprocessing\nif {name} == 'MainProcess':\n{inside}"
    assert run_script(tmp_path, other) == (0, "4\n", "")
    elsewhere = f"if __name__ == '__main__':\n    pass\n{textwrap.dedent(inside)}"
    status, _, err = run_script(tmp_path, elsewhere)
    assert status == 1
    assert err.count("Traceback") == 1


@pytest.mark.parametrize("how", ["-c", "-m", "import"])
def test_programs_that_need_no_guard(tmp_path, how):
    """No worker imports what is given by -c, or the __main__ of a package; and who has come to its
    end runs no more."""
    source = WITHOUT_GUARD.format(method="spawn", call="pass")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text(source)
    (tmp_path / "main.py").write_text(
        "import atexit\n\n\ndef run():\n"
        + textwrap.indent(source, "    ")
        + "\natexit.register(run)\n"
    )
    arguments = {"-c": ["-c", source], "-m": ["-m", "package"], "import": ["main.py"]}[how]
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=HANG
    )
    assert (done.stdout, done.returncode) == ("4\n", 0), done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_classes_of_a_main_module_that_no_worker_imports(tmp_path, method):
    """Of a folder, archive or package: the error says where they stand."""
    source = WITHOUT_GUARD.format(method=method, call="pass")
    source = source.replace("iterator =", "class Own(Blocks):\n    pass\n\n\niterator =", 1)
    source = source.replace("Blocks(20)", "Own(20)")
    (tmp_path / "__main__.py").write_text(source)
    done = subprocess.run(
        [sys.executable, tmp_path], env=environment(), capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 1
    assert "of a __main__.py" in done.stderr, done.stderr  # besides Python's own text


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_that_comes_from_the_standard_input(method):
    """No worker can import it; a fork needs not."""
    source = f"""
import sys
from fastiter import MultiprocessIterator

if __name__ == "__main__":
    for method in ({method!r}, "fork"):
        try:
            with MultiprocessIterator([1, 2], 2, n_processes=1, context=method) as iterator:
                print(sorted(next(iterator)))
        except RuntimeError as error:
            print(error)
"""
    done = subprocess.run(
        [sys.executable], input=source, capture_output=True, text=True, timeout=HANG
    )
    told, rows = done.stdout.splitlines()
    assert "<stdin> is no file: put the program into one, or pass context='fork'" in told
    assert (rows, done.stderr) == ("[1, 2]", "")


EMPTIED = """
import os
from examples_of import Blocks
from fastiter import MultiprocessIterator
from fastiter._workers import forkserver

if __name__ == "__main__":
    for is_there in (True, False):
        try:
            with MultiprocessIterator(Blocks(8), 4, context="forkserver") as iterator:
                print(len(next(iterator)))
        except FileNotFoundError as error:
            print(error)
        if is_there:
            os.unlink(forkserver._server._forkserver_address)
"""


def test_a_fork_server_whose_socket_was_deleted_is_told(tmp_path):
    status, out, err = run_script(tmp_path, EMPTIED)
    rows, told = out.splitlines()
    assert (status, rows, err) == (0, "4", "")
    assert "emptied" in told and "TMPDIR" in told and "'spawn'" in told and "/pymp-" in told


DEFAULT = """
import multiprocessing, sys, threading
import fastiter
from examples_of import Blocks
from fastiter import MultiprocessIterator
from inside import start_method_of

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    for method in (None, "safe", "spawn"):
        with MultiprocessIterator(Blocks(20), 4, n_processes=1, context=method) as iterator:
            next(fastiter.progress(iterator, file=open("/dev/null", "w")))
            print(start_method_of(iterator), multiprocessing.get_start_method(allow_none=True))
    multiprocessing.set_start_method("spawn")
"""


def test_the_default_start_method_stays_as_it_was(tmp_path):
    """By a fork server, spawned workers, or a progress bar."""
    status, out, err = run_script(tmp_path, DEFAULT)
    default = multiprocessing.get_all_start_methods()[0]
    assert (status, out) == (0, f"{default} None\nforkserver None\nspawn None\n"), err


FROZEN = """#!{python}
import os, sys
if "-c" in sys.argv:  # multiprocessing's own processes
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
sys.frozen, sys.executable, __file__ = True, __file__, "/nowhere/frozen.py"
from multiprocessing import spawn
import fastiter
if __name__ == "__main__":
    spawn.freeze_support()
    spawn.set_executable(sys.executable)
    for context in ("fork", "spawn"):
        with fastiter.MultiprocessIterator(range(4), 2, n_processes=1, context=context) as iterator:
            print(context, len(next(iterator)))
"""


def test_frozen_programs_have_no_file_of_their_main_module(tmp_path):
    """As PyInstaller makes them."""
    program = tmp_path / "frozen"
    program.write_text(FROZEN.format(python=sys.executable))
    program.chmod(0o755)
    done = subprocess.run(
        [program], capture_output=True, text=True, env=environment(), timeout=HANG
    )
    assert (done.stdout, done.stderr) == ("fork 2\nspawn 2\n", "")


# ---- the fork server -----------------------------------------------------------------------------

NOTED = """
import os, pathlib, threading
import numpy as np

with open(pathlib.Path(__file__).with_suffix(".imports"), "a") as marks:
    print(os.getpid(), file=marks)
{more}

class Noted:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index
"""

SERVED = """
import importlib, os, pathlib
import psutil
from fastiter import MultiprocessIterator
from inside import have_begun, pids_of
from outside import wait_until

with open(pathlib.Path(__file__).with_suffix(".imports"), "a") as marks:
    print(os.getpid(), file=marks)
print("main", flush=True)

if __name__ == "__main__":
    noted = importlib.import_module("noted")
    iterator = MultiprocessIterator(noted.Noted(), 4, n_processes=3, context="forkserver")
    next(iterator)
    wait_until(lambda: have_begun(iterator), "the workers have begun")
    pids = pids_of(iterator)
    print(psutil.Process(pids[0]).ppid(), *pids)
    iterator.finalize()
"""


OTHER_METHOD = """
import multiprocessing.context as contexts
import fastiter
class Loky(contexts.SpawnContext):
    _name = "loky"
contexts._concrete_contexts["loky"] = Loky()  # as joblib's workers have it
contexts._default_context.set_start_method("loky")
for context in (None, "safe", "fork"):
    with fastiter.MultiprocessIterator(range(4), 2, n_processes=1, context=context) as iterator:
        try:
            print(len(next(iterator)))
        except ValueError as error:
            print(error)
"""


def test_a_start_method_that_a_library_has_set_is_named(tmp_path):
    lines = run_script(tmp_path, OTHER_METHOD)[1].splitlines()
    told = ["workers cannot start by 'loky'" in line and "context='fork'" in line for line in lines]
    assert (told[:2], lines[2:]) == ([True, True], ["2"])


@pytest.mark.parametrize(
    ("more", "is_once"),
    [
        ("", True),
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", False),
        ("handle = open(__file__)", False),
    ],
)
def test_a_fork_server_imports_once_for_all_workers(tmp_path, more, is_once):
    """It imports the main module and the dataset's, but not where forked workers then would lack
    its threads, or share its files."""
    (tmp_path / "noted.py").write_text(NOTED.format(more=more))
    status, out, err = run_script(tmp_path, SERVED)
    assert status == 0, err
    server, *workers = map(int, out.split("\n")[-2].split())
    for module in ("noted", "program"):
        importers = list(map(int, (tmp_path / f"{module}.imports").read_text().split()))
        assert importers[1] == server
        assert set(importers[2:]) == (set() if is_once else set(workers))


DYING = """
import multiprocessing, os, signal
from examples_of import Locked
from fastiter import MultiprocessIterator, WorkerDiedError

if __name__ == "__mp_main__":
    os.register_at_fork(after_in_child=lambda: os._exit(3))

if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    dataset = Locked(20, "forkserver")
    dataset.more = bytes(1 << 20)  # more than a pipe takes before it is read
    try:
        next(MultiprocessIterator(dataset, 4, n_processes=2, context="forkserver"))
    except WorkerDiedError as error:
        print("exited with status 3" in str(error))
"""


def test_a_worker_that_dies_before_it_reads_its_task_ends_no_program(tmp_path):
    """With the default action at SIGPIPE, a write to a pipe without a reader would."""
    assert run_script(tmp_path, DYING)[:2] == (0, "True\n")


SERVERS_DIE = """
import contextlib, threading
import psutil
from fastiter import MultiprocessIterator

def kill_servers():
    while not done.is_set():
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if "forkserver" in " ".join(child.cmdline()):
                    child.kill()

if __name__ == "__main__":
    iterator = MultiprocessIterator(
        list(range(8)), 4, n_processes=2, shuffle=False, context="forkserver"
    )
    done = threading.Event()
    thread = threading.Thread(target=kill_servers, daemon=True)
    thread.start()
    try:
        next(iterator)
    except ConnectionError as error:
        print("has not started a worker, twice" in str(error))
    done.set()
    thread.join()
    print(next(iterator))
"""


def test_a_fork_server_that_dies_again_and_again_is_told(tmp_path):
    assert run_script(tmp_path, SERVERS_DIE) == (0, "True\n[0, 1, 2, 3]\n", "")


EARLY = """
import multiprocessing, os
from fastiter import MultiprocessIterator

begun, found = multiprocessing.Event(), []

def begin(number):
    begun.set()

def before_fork():
    if multiprocessing.parent_process() is None:
        found.append(begun.wait(60) if found else None)

os.register_at_fork(before=before_fork)
options = {"n_processes": 2, "worker_init": begin, "context": "fork"}
with MultiprocessIterator(list(range(8)), 4, **options) as iterator:
    next(iterator)
print(found)
"""


def test_a_forked_worker_begins_while_others_are_forked(tmp_path):
    assert run_script(tmp_path, EARLY)[:2] == (0, "[None, True]\n")


# ---- what a fork takes along ---------------------------------------------------------------------

STATE = """
import multiprocessing, os, threading
from fastiter import MultiprocessIterator
from fastiter.reader import multiprocess_reader

SETTINGS = {"scale": 1}
NAMES = list({"cat", "dog", "horse", "frog", "ship", "truck", "bird", "deer"})
print("main", flush=True)

def facts():
    umask = os.umask(0)
    os.umask(umask)
    return SETTINGS["scale"], MODE, NAMES, os.environ.get("SET_LATE"), umask

def read():
    yield facts()

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    SETTINGS["scale"], MODE = 7, "train"
    os.umask(0o077)

    class Dataset:
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return facts()

    for value in ("first", "second"):
        os.environ["SET_LATE"] = value
        here = facts()
        for context in (None, multiprocessing):
            options = {"n_processes": 1, "repeat": False, "context": context}
            with MultiprocessIterator(Dataset(), 2, **options) as iterator:
                assert next(iterator) == [here, here]
            assert list(multiprocess_reader([read], context=context)()) == [here]
    assert multiprocessing.get_start_method(allow_none=True) is None
    print("same")
"""


@pytest.mark.skipif(
    multiprocessing.get_all_start_methods()[0] != "fork",
    reason="this interpreter's default is not to fork",
)
def test_workers_have_the_state_of_the_program_beside_a_thread(tmp_path):
    """Settings of the main block, a class of it, the order of a set, environment and umask; and
    the main module runs once."""
    status, out, err = run_script(tmp_path, STATE)
    assert (status, out) == (0, "main\nsame\n"), err

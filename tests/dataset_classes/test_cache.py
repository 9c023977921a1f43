"""Files made once and kept: by many at a time, by some that die, and where the disk is full."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scripted_server import Request, head, honest, serving

from fastiter.dataset import cache_or_load_file, cached_download

BODY = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("CHAINER_DATASET_ROOT", str(tmp_path))
    return tmp_path


def tree(directory: Path) -> set[str]:
    """All files and folders but lock files."""
    found = {str(path.relative_to(directory)) for path in directory.rglob("*")}
    return {name for name in found if not name.endswith(".lock")}


def writes(text: str):
    """A creator that writes a text and returns it."""

    def create(path: str) -> str:
        Path(path).write_text(text)
        return text

    return create


def read(path: object) -> str:
    return Path(str(path)).read_text()


def refuse(path: str) -> str:
    raise AssertionError(f"{path} is there already")


# One file


@pytest.mark.parametrize("name", ["file", "n" * 255])
def test_a_file_is_created_once(root, name):
    path = str(root / "new" / name)
    assert cache_or_load_file(path, writes("x"), read) == "x"
    assert cache_or_load_file(path, refuse, read) == "x"
    assert tree(root) == {"new", f"new/{name}"}


def test_the_loader_gets_the_path_as_it_was_given(root, monkeypatch):
    monkeypatch.chdir(root)
    for path in ("file", Path("file")):
        cache_or_load_file(path, writes("x"), read)
        assert cache_or_load_file(path, refuse, lambda found: found) is path


def test_the_temporary_path(root):
    found = []

    def create(path: str) -> None:
        found.append(Path(path))
        assert not os.path.exists(path)
        np.savez(path, x=[1])

    cache_or_load_file(root / "data.npz", create, None)
    assert found[0].name == "data.npz"
    assert found[0].parent.parent == root
    assert tree(root) == {"data.npz"}


def test_a_file_under_another_name_is_no_file(root):
    with pytest.raises(FileNotFoundError, match=r"'data'.*'data\.npz'"):
        cache_or_load_file(root / "data", lambda path: np.savez(path, x=[1]), None)
    assert tree(root) == set()


@pytest.mark.timeout(30)  # a pipe may block
def test_a_creator_may_leave_a_directory_with_what_cannot_be_synced(root):
    def create(path: str) -> str:
        os.makedirs(f"{path}/deep")
        Path(path, "deep", "file").write_text("x")
        os.symlink("gone", f"{path}/link")
        os.mkfifo(f"{path}/pipe")
        os.mknod(f"{path}/socket", stat.S_IFSOCK | 0o600)
        return "created"

    assert cache_or_load_file(root / "folder", create, None) == "created"
    content = {"deep", "link", "pipe", "socket"}
    assert set(cache_or_load_file(root / "folder", refuse, os.listdir)) == content
    assert tree(root) == {"folder", "folder/deep/file", *(f"folder/{name}" for name in content)}


@pytest.mark.parametrize("path", ["elsewhere", "root/file"])
def test_a_root_that_is_a_file(root, monkeypatch, path):
    monkeypatch.setenv("CHAINER_DATASET_ROOT", str(root / "root"))
    (root / "root").write_text("x")
    with pytest.raises(RuntimeError, match=r"dataset root '.*/root' is a file.*set_dataset_root"):
        cache_or_load_file(root / path, refuse, None)
    assert tree(root) == {"root"}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_creator_that_fails_leaves_nothing(root, kind):
    def create(path: str) -> None:
        Path(path).write_text("a part")
        raise kind("as it happens")

    with pytest.raises(kind, match="as it happens"):
        cache_or_load_file(root / "file", create, None)
    assert tree(root) == set()
    assert cache_or_load_file(root / "file", writes("x"), None) == "x"


# Creators that use the cache


def test_a_creator_may_use_the_cache(root):
    with serving(honest(BODY)) as server:

        def create(path: str) -> str:
            count = cache_or_load_file(root / "count", inner, read)
            return writes(count + "!")(path)

        def inner(path: str) -> str:
            return writes(str(len(Path(cached_download(server.url)).read_bytes())))(path)

        assert cache_or_load_file(root / "file", create, read) == "256000!"
    assert {"file", "count"} <= tree(root)


def test_a_creator_that_needs_its_own_file_is_told(root):
    def create(path: str) -> object:
        return cache_or_load_file(root / "a", create, read)

    def through_another(path: str) -> object:
        return cache_or_load_file(root / "b", create, read)

    for creator in (create, through_another):
        with pytest.raises(RuntimeError, match=r"creator of .*/a needs that file itself"):
            cache_or_load_file(root / "sub" / ".." / "a", creator, read)
        assert tree(root) <= {"sub"}


def test_a_fork_of_a_creator(root):
    def create(path: str) -> str:
        Path(path).write_text("x")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                cache_or_load_file(root / "other", lambda path: sys.exit(7), read)
            except SystemExit:
                code = 0
            if code == 0:
                raise ForkEnds
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert read(path) == "x"  # though the child has left its creator
        return "x"

    class ForkEnds(Exception):
        pass

    try:
        assert cache_or_load_file(root / "file", create, read) == "x"
    except ForkEnds:
        os._exit(0)
    assert tree(root) == {"file"}


# Many at a time


def run(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Another Python, which writes to us and may wait for us."""
    command = [*prefix, sys.executable, "-c", PREAMBLE + code, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


PREAMBLE = """
import os, sys, threading
from fastiter.dataset import cache_or_load_file, cached_download

def say(*words):
    print(*words, flush=True)

def hear():
    sys.stdin.readline()
"""

# What a file system does that grants every lock, or none.
LYING = """
import fcntl
fcntl.flock = lambda fd, operation: None
"""
REFUSING = """
import errno, fcntl
def flock(fd, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = flock
"""
MISSING = REFUSING.replace("ENOLCK", "ENOSYS")

ASK = """
def ask():
    found.append(open(cached_download(sys.argv[1]), "rb").read())

say("ready")
hear()
found = []
threads = [threading.Thread(target=ask) for _ in range(int(sys.argv[2]))]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert found == [bytes(range(256)) * 1000] * len(threads), [len(part) for part in found]
"""


def ask_at_once(locks: str, url: str, n_threads: int) -> None:
    processes = [run(locks + ASK, url, n_threads) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.communicate()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.communicate() == ("", "")
        assert process.returncode == 0


def test_processes_and_threads_that_ask_at_once_cause_one_download():
    with serving(honest(BODY)) as server:
        ask_at_once("", server.url, 4)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "locks",
    [
        pytest.param(LYING, id="lying"),
        pytest.param(REFUSING, id="refusing", marks=pytest.mark.stress),
        pytest.param(MISSING, id="missing", marks=pytest.mark.stress),
    ],
)
def test_locks_that_do_nothing_do_no_harm(root, locks):
    all_here = threading.Barrier(3)

    def script(request: Request) -> Iterator[bytes]:
        all_here.wait()  # each process downloads: none has waited for another
        half = len(BODY) // 2
        yield head(Content_Length=len(BODY)) + BODY[:half]
        all_here.wait()
        yield BODY[half:]

    with serving(script) as server:
        ask_at_once(locks, server.url, 1)
        assert len(server.requests) == 3
    assert len(tree(root)) == 2


CREATE = """
def create(path):
    open(path, "w").write("a part")
    say("creating")
    hear()
    open(path, "w").write(sys.argv[2])
    return sys.argv[2]

say(cache_or_load_file(sys.argv[1], create, None))
"""


def test_the_first_of_two_creators_counts_where_locks_do_nothing(root):
    processes = [run(LYING + CREATE, root / "file", text) for text in ("first", "second")]
    for process in processes:
        assert process.stdout.readline() == "creating\n"
    for process, text in zip(processes, ("first", "second"), strict=True):
        assert process.communicate("\n") == (f"{text}\n", "")
        assert read(root / "file") == "first"
    assert tree(root) == {"file"}


# Deaths


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_process_killed_while_it_downloads(root):
    sent = threading.Event()

    def script(request: Request) -> Iterator[bytes]:
        yield head(Content_Length=len(BODY))
        if request.number == 0:
            yield BODY[:1000]
            sent.set()
            request.server.ended.wait()
        yield BODY

    with serving(script) as server:
        process = run("cached_download(sys.argv[1])", server.url)
        assert sent.wait(60)
        kill(process)
        assert len(tree(root)) > 1  # no process could clear up
        path = cached_download(server.url)
        assert Path(path).read_bytes() == BODY
    assert tree(root) == {"_dl_cache", os.path.relpath(path, root)}


def test_who_waits_for_a_killed_process_goes_on(root):
    first = run(CREATE, root / "file", "x")
    assert first.stdout.readline() == "creating\n"
    second = run(CREATE, root / "file", "y")  # waits for the first, be it that it is there already
    kill(first)
    assert len(tree(root)) > 1
    assert second.communicate("\n") == ("creating\ny\n", "")
    assert tree(root) == {"file"}


def test_folders_of_other_machines_go_when_they_are_old(root):
    def create(path: str) -> None:
        Path(path).write_text("x")
        name = Path(path).parent.name
        here = name.split("-")[-4]
        for other in ("000000000000", "unknown"):
            there = root / name.replace(here, other)
            there.mkdir()
            (there / "file").write_text("a part")
            (there / "link").symlink_to("gone")
            found.append(there)

    found: list[Path] = []
    cache_or_load_file(root / "file", create, None)
    assert len(tree(root)) == 1 + 3 * len(found)
    week = 7 * 24 * 3600
    now = found[0].stat().st_mtime
    os.utime(found[0] / "file", (now - week - 9, now - week - 9))
    for path in (found[1], found[1] / "file", found[1] / "link"):
        os.utime(path, (now - week - 9, now - week - 9), follow_symlinks=False)
    (root / "file").unlink()
    cache_or_load_file(root / "file", writes("x"), None)
    left = found[0].name
    assert tree(root) == {"file", left, f"{left}/file", f"{left}/link"}


# Disks


REFUSED = """
except OSError as error:
    say(error.errno, error)
say(*(name for _, _, names in os.walk(sys.argv[1]) for name in names))
"""
DOWNLOAD = "try: cached_download(sys.argv[2])" + REFUSED
LARGE = """
def create(path):
    open(path, "wb").write(bytes(10**6))

try: cache_or_load_file(sys.argv[2], create, None)"""


def namespace(option: str) -> tuple[str, ...]:
    """Command that runs a program with a small file system of its own, at the path behind it."""
    script = f'mount -t tmpfs -o {option} none "$1" && shift && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")


@pytest.fixture
def disk(root: Path) -> Path:
    """A directory on which `namespace` can mount something."""
    (root / "disk").mkdir()
    with run("", prefix=(*namespace("ro"), str(root / "disk"))) as process:
        errors = process.communicate()[1]
    if process.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {errors.strip()}")
    return root / "disk"


def refused(code: str, directory: Path, target: object, disk_option: str = "") -> tuple[str, str]:
    """The error of a program that writes below a directory, and the names of the files there."""
    prefix = (*namespace(disk_option), str(directory)) if disk_option else ()
    with run(code, directory, target, prefix=prefix) as process:
        said, left = process.stdout.read().splitlines()
        assert process.stderr.read() == ""
    assert left == "" or (left.endswith(".lock") and " " not in left)
    return said, left


def test_a_full_disk(disk, monkeypatch):
    monkeypatch.setenv("CHAINER_DATASET_ROOT", str(disk))
    with serving(honest(BODY)) as server:
        said, left = refused(DOWNLOAD, disk, server.url, "size=128k")
    assert re.match(rf"28 {server.url}: .*No space left on device", said)
    assert left
    assert refused(LARGE + REFUSED, disk, disk / "file", "size=128k")[0].startswith("28 ")


def test_a_read_only_disk(disk, monkeypatch):
    monkeypatch.setenv("CHAINER_DATASET_ROOT", str(disk))
    said, left = refused(DOWNLOAD, disk, "http://127.0.0.1:1/", "ro")
    assert "Read-only file system" in said and "set_dataset_root" in said
    assert left == ""


def test_a_limit_for_files(root):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))\n"
    with serving(honest(BODY)) as server:
        said, _ = refused(limit + DOWNLOAD, root, server.url)
    assert re.match(rf"27 {server.url}: .*File too large", said)

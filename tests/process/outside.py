"""Looks at processes from outside: children, descriptors, mappings, and deadlines."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fastiter import kernels

#: Seconds after which something is taken to hang; no test asserts a speed. Builds with sanitizers
#: take longer for everything.
HANG = float(os.environ.get("FASTITER_TEST_HANG", "30"))
HERE = Path(__file__).parent
#: How /proc names fastiter's memory: on Linux, and on the portable path.
OUR_FILES = ("memfd:fastiter", "/dev/shm/fastiter-")


def wait_until(condition: Callable[[], Any], what: str, seconds: float = HANG) -> Any:
    """Polls until `condition` is true and returns its value; AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.005)


def children(pid: int | None = None) -> set[int]:
    """Pids of all descendants that have not ended; zombies count as ended."""
    found = set()
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found


def workers() -> set[int]:
    """Pids of living descendants, but for the servers that multiprocessing keeps."""
    servers = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie
            if any("resource_tracker" in word or "forkserver" in word for word in child.cmdline()):
                servers.add(child.pid)
    return children() - servers


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def sleeps(thread: int) -> bool:
    """Whether a thread, by its native id (the first one's is the pid), waits in the kernel."""
    stat = Path(f"/proc/{thread}/stat").read_text()
    return stat.rpartition(") ")[2][0] == "S"


def descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return {fd: link for fd, link in found.items() if not link.startswith("/proc/")}


def _our_mappings(pid: int | str) -> Iterator[tuple[int, str]]:
    """Bytes of each mapping of fastiter's memory in a process, and the file's device and number."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if any(name in line for name in OUR_FILES):
            place, _, _, device, number, *_ = line.split()
            begin, end = (int(address, 16) for address in place.split("-"))
            yield end - begin, f"{device} {number}"


def mapped_arenas(pid: int | str = "self") -> int:
    """Number of files of fastiter's memory that a process maps."""
    return len({file for _, file in _our_mappings(pid)})


def mapped_bytes(pid: int | str = "self") -> int:
    """Address space of a process that fastiter's memory takes."""
    return sum(nbytes for nbytes, _ in _our_mappings(pid))


def reserved() -> int:
    """Bytes of this process' anonymous files of fastiter that have pages."""
    ours = [fd for fd, link in descriptors().items() if "fastiter" in link]
    assert ours
    return sum(os.stat(fd).st_blocks * 512 for fd in ours)


def lies_in_dev_shm() -> bool:
    """Whether shared memory lies in /dev/shm: on the portable path, or without `memfd_create`."""
    memory = kernels.share(np.zeros(1))
    return OUR_FILES[1] in os.readlink(f"/proc/self/fd/{memory.fd}")


def memory_behind(array: Any, fd: int) -> int:
    """Bytes from an array's beginning to the next ones of its file that have no memory."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, _, offset, *_ = line.split()
        begin, end = (int(number, 16) for number in place.split("-"))
        if begin <= address < end:
            start = address - begin + int(offset, 16)
            return os.lseek(fd, start, os.SEEK_HOLE) - start
    raise AssertionError("the array lies in no mapping")


def is_shared(array: Any) -> bool:
    """Whether an array's first element lies in a mapping of fastiter's memory in this process."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.partition(" ")[0].split("-"))
        if begin <= address < end:
            return any(name in line for name in OUR_FILES)
    return False


def orphaned_names() -> set[str]:
    """Names in /dev/shm that no living process maps: leftovers of programs. Other programs, and
    tests that run beside this one, come and go there with names of their own, and have not mapped
    in the first moment what they will: only what stays for a while counts. On a full machine a look
    at all processes takes a second."""
    found = _unmapped_names()
    end = time.monotonic() + 2
    for turn in range(50):
        if found <= _stale_names or (turn >= 5 and time.monotonic() > end):
            break
        time.sleep(0.02)
        found &= _unmapped_names()
    _stale_names.update(found)
    return found


_stale_names: set[str] = set()  #: that stayed


def _unmapped_names() -> set[str]:
    before, mapped = set(os.listdir("/dev/shm")), set()
    for process in os.listdir("/proc"):
        if process.isdigit():
            with contextlib.suppress(OSError):
                maps = Path("/proc", process, "maps").read_text()
                mapped.update(re.findall(r"/dev/shm/([^ \n]+)", maps))
    return (before - mapped) & set(os.listdir("/dev/shm"))


def threads() -> int:
    """Native threads of this process."""
    return len(os.listdir("/proc/self/task"))


def resident(pid: int | None = None) -> int:
    """Resident bytes."""
    gc.collect()
    return psutil.Process(pid).memory_info().rss


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal to a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def in_child(function: Callable[[], Any]) -> int:
    """Runs `function` in a forked child; its exit status is 0 if that returned True."""
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(int(HANG))
        try:
            status = 0 if function() is True else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def openmp_library(directory: Path, source: str) -> str:
    """The path of a library of this C source, which gcc builds with OpenMP; skips without gcc."""
    import pytest  # not in the programs of tests, which import this module, too

    if platform.libc_ver()[0] != "glibc":
        pytest.skip("gcc's OpenMP is for glibc, which this Python does not use")
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build an OpenMP program with")
    (directory / "library.c").write_text(source)
    command = [compiler, "-O0", "-fopenmp", "-shared", "-fPIC", "library.c", "-o", "library.so"]
    built = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip(f"gcc cannot build an OpenMP program: {built.stderr}")
    return str(directory / "library.so")


@contextlib.contextmanager
def later(action: Callable[[], Any]) -> Iterator[threading.Thread]:
    """Runs `action` in a thread beside the body, and raises here what it raised there."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield thread
    thread.join(HANG)
    assert not thread.is_alive(), "the thread beside hangs"
    if raised:
        raise raised[0]


def environment() -> dict[str, str]:
    """For subprocesses: the package under test and these helpers are importable."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}


def start_script(tmp_path: Path, source: str, **options: Any) -> subprocess.Popen[str]:
    """Starts a program of its own, from a file, so that spawn can import it again. `prefix`: the
    command, if any, that runs it."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [
            *options.pop("prefix", ()),
            *(sys.executable, "-X", "faulthandler", "-W", "default::ResourceWarning", str(path)),
        ],
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        **options,
    )


def run_script(tmp_path: Path, source: str, **options: Any) -> tuple[int, str, str]:
    """Runs a program to its end: status, stdout, stderr."""
    program = start_script(tmp_path, source, **options)
    try:
        out, err = program.communicate(timeout=HANG)
    finally:
        program.kill()
        program.communicate()
    return program.returncode, out, err

"""At the limits of memory and processes, and in odd surroundings."""

from __future__ import annotations

import errno
import gc
import os
import platform
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
from examples_of import Blocks
from outside import (
    children,
    descriptors,
    lies_in_dev_shm,
    mapped_arenas,
    orphaned_names,
    reserved,
    run_script,
    wait_until,
)
from without_calls import NUMBERS

# -- memory -----------------------------------------------------------------------------------


def memory_available() -> int:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))


@pytest.mark.parametrize("times", [2, 2**12, 2**16])
def test_more_memory_than_there_is_is_refused(make, times):
    """With both numbers, again at each call, and before anything is reserved."""
    batch_size, per_example = 4, memory_available() * times // 4
    iterator = make(Blocks(40), batch_size, shared_mem=per_example)
    for _ in range(2):
        with pytest.raises(MemoryError, match=r"bytes needed.*shared_mem") as caught:
            next(iterator)
        need, have = [int(word) for word in str(caught.value).split() if word.isdigit()]
        assert need >= batch_size * per_example > have
        assert reserved() < 4 << 20
        assert iterator.current_position == 0
    iterator.finalize()


@pytest.mark.parametrize("shared_mem", [1 << 61, 1 << 63, 1 << 64, 10**40])
def test_more_memory_than_can_be_counted_is_refused_at_once(make, shared_mem):
    with pytest.raises(ValueError, match=rf"shared_mem.* 4: {shared_mem}\b"):
        make(Blocks(40), 4, shared_mem=shared_mem)


def test_an_example_larger_than_memory_is_an_error_of_its_batch(make):
    class OneIsHuge(Blocks):
        def __getitem__(self, index):
            if index == 9:
                return np.broadcast_to(np.zeros(1), (1 << 58,))  # no address space has room for it
            return np.full(5, float(index))

    iterator = make(OneIsHuge(24), 4)
    for number in range(12):
        if number % 6 == 2:
            with pytest.raises(MemoryError) as caught:
                next(iterator)
            assert "index 9," in str(caught.value.__cause__)
        else:
            first = 4 * number % 24
            assert [x[0] for x in next(iterator)] == list(range(first, first + 4))


class OneIsLarge:
    """Arrays of about 1000 bytes, and one of `large`."""

    def __init__(self, large: int):
        self.large = large

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return np.broadcast_to(np.uint8(index % 251), (self.size_of(index),))

    def size_of(self, index):
        return self.large if index == 41 else 1000 + index % 7


def test_a_large_example_takes_its_memory_once_and_gives_it_back(make):
    """Not in every slot from then on, where it would be missing for all batches after it."""
    dataset = OneIsLarge(48 << 20)
    iterator = make(dataset, 8)
    for number in range(50):
        batch = next(iterator)
        assert [x.size for x in batch] == [dataset.size_of(8 * number + r) for r in range(8)]
        assert [int(x[-1]) for x in batch] == [(8 * number + r) % 251 for r in range(8)]
        if number == 12:
            assert reserved() < 2 * dataset.large
    assert reserved() < dataset.large // 2


def test_an_example_that_gets_no_memory_takes_no_other_with_it(make):
    """Neither the others of its batch, nor the room for its own error."""
    dataset = OneIsLarge(2 * memory_available())
    iterator = make(dataset, 8, n_processes=1)
    for _ in range(5):
        next(iterator)
    with pytest.raises(MemoryError, match="bytes needed") as caught:
        next(iterator)
    need, have = [int(word) for word in str(caught.value).split() if word.isdigit()]
    assert dataset.large - need < 16 << 20 and need > have  # less what the slot has already
    assert "index 41," in str(caught.value.__cause__)
    iterator = make(dataset, 8, n_processes=1, on_error="skip")
    assert [len(next(iterator)) for _ in range(7)] == [8, 8, 8, 8, 8, 7, 8]
    assert [skipped.index for skipped in iterator.skipped] == [41]


def test_a_batch_size_beyond_the_dataset_reserves_what_there_is(make):
    dataset = Blocks(100)
    iterator = make(dataset, 1 << 28, repeat=False)
    for size in (100, 100, 150, 40):
        dataset.size = size
        iterator.reset()
        assert [[int(x[0]) // 64 for x in batch] for batch in iterator] == [[*range(size)]]
        assert reserved() < 16 << 20


LIMITED = """
    import gc, resource
    from pathlib import Path
    from examples_of import Blocks
    from fastiter import MultiprocessIterator
    from outside import children, descriptors

    def first(elements, **limits):
        before, old = descriptors(), {{}}
        for name, soft in limits.items():
            number = getattr(resource, name)
            old[number] = resource.getrlimit(number)
            resource.setrlimit(number, (soft, old[number][1]))
        iterator = MultiprocessIterator(
            Blocks(40, elements), 4, n_processes=2, shuffle=False, context="fork"
        )
        try:
            for number in range(12):
                batch = [int(x[0]) for x in next(iterator)]
                assert batch == [elements * (4 * number % 40 + row) for row in range(4)]
            found = "all"
        except MemoryError as error:
            found = str(error)
            del error
        for number, limit in old.items():
            resource.setrlimit(number, limit)
        if "smallest slots" in found:  # it has no memory yet: it works when there is some
            assert [int(x[0]) for x in next(iterator)] == [elements * row for row in range(4)]
        iterator.finalize()
        del iterator
        gc.collect()
        assert not children() and descriptors() == before
        return found

    if __name__ == "__main__":
        assert first(8) == "all"
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        {checks}
        print("done")
"""
LIMITS = {
    "address space": """
        found = [first(8, RLIMIT_AS=mapped + (room << 10)) for room in (64, 262144, 4 << 20)]
        assert "raise RLIMIT_AS" in found[0] and found[1:] == ["all", "all"], found
        found = first(1 << 21, RLIMIT_AS=mapped + (256 << 20))
        assert "bytes needed" in found and "raise RLIMIT_AS" in found, found
    """,
    "file size": """
        found = [first(8, RLIMIT_FSIZE=size) for size in (0, 4096, 1 << 20, 1 << 24, 1 << 30)]
        assert all("RLIMIT_FSIZE" in text for text in found[:3]), found
        assert found[3:] == ["all", "all"], found
        found = first(1 << 16, RLIMIT_FSIZE=1 << 24)
        assert "bytes needed" in found and "RLIMIT_FSIZE" in found, found
    """,
}


def test_no_room_for_the_tables_of_an_arena(output_of):
    """Whatever allocation fails: the descriptors that were opened before are closed."""
    out = output_of("""
    import resource
    from pathlib import Path
    from fastiter._ring.arena import Arena
    from outside import descriptors

    if __name__ == "__main__":
        n_slots, found = 60_000, set()
        Arena.create(n_slots, 1, 1, 1)
        before, limits = descriptors(), resource.getrlimit(resource.RLIMIT_AS)
        for room in range(0, 64, 2):
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + (room << 20), limits[1]))
            try:
                found.add(Arena.create(n_slots, 1, 1, 1).fd >= 0)
            except MemoryError:
                found.add(None)
            resource.setrlimit(resource.RLIMIT_AS, limits)
            assert descriptors() == before, room
        print(found == {None, True})
    """)
    assert out == "True\n"


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_of_memory(output_of, limit):
    """Slots take what there is; where that is too little, the error names the limit, nothing stays,
    and no process gets SIGXFSZ or SIGBUS."""
    checks = textwrap.dedent(LIMITS[limit]).strip().replace("\n", "\n" + " " * 8)
    assert output_of(LIMITED.format(checks=checks)) == "done\n"


# -- processes --------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, pytest.param(2, marks=pytest.mark.stress), 3])
@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EAGAIN, r"worker process.*ulimit -u.*fewer"), (errno.ENOMEM, "memory.*fewer workers")],
)
def test_a_fork_that_fails_leaves_nothing(make, monkeypatch, at, number, advice):
    """The system has no process, or no memory, when the first, second or third worker starts."""
    real, forks = os.fork, 0

    def fork():
        nonlocal forks
        forks += 1
        if forks == at:
            raise OSError(number, os.strerror(number))
        return real()

    with make(Blocks(40), 4) as warm:
        next(warm)
    gc.collect()
    before = descriptors(), mapped_arenas(), children()
    names = orphaned_names()
    iterator = make(Blocks(40, 1), 4, n_processes=3)
    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(OSError, match=advice) as caught:
        next(iterator)
    assert caught.value.errno == number
    del caught  # its traceback refers to the memory
    gc.collect()
    wait_until(lambda: children() == before[2], "the workers that did start end")
    assert (descriptors(), mapped_arenas(), children()) == before
    assert orphaned_names() <= names
    for number in range(20):
        batch = next(iterator)
        assert [int(x[0]) for x in batch] == [(4 * number + row) % 40 for row in range(4)]


def can_be_anybody() -> bool:
    """Whether this is root, in a user namespace with other users."""
    return os.getuid() == 0 and int(Path("/proc/self/uid_map").read_text().split()[2]) > 60_000


@pytest.mark.skipif(not can_be_anybody(), reason="cannot become another user")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.stress)])
def test_a_program_that_gives_up_its_rights(output_of, method):
    """It may send its workers no signal any more; hung ones end all the same."""
    out = output_of(f"""
        import os, time
        from examples_of import Blocks
        from fastiter import MultiprocessIterator
        from inside import pids_of
        from outside import is_alive

        class Hangs(Blocks):
            def __getitem__(self, index):
                if index >= 8:
                    time.sleep(1000)
                return super().__getitem__(index)

        if __name__ == "__main__":
            iterator = MultiprocessIterator(
                Hangs(40), 4, n_processes=2, shuffle=False, context={method!r}
            )
            next(iterator)
            pids = pids_of(iterator)
            os.setresuid(40_000, 40_000, 40_000)
            next(iterator)
            iterator.finalize()
            print(any(map(is_alive, pids)))
        """)
    assert out == "False\n"


@pytest.mark.blas
@pytest.mark.skipif(not can_be_anybody(), reason="cannot become a user without processes")
def test_a_limit_of_processes(tmp_path):
    """Whatever the limit stops, a worker or the thread in it: an error, or all batches; in time,
    and with nothing left. When the limit is lifted it works, and the program computes in as many
    threads as before: OpenBLAS sends SIGINT where it cannot start them, so it is not asked to."""
    status, out, err = run_script(
        tmp_path,
        """
        import ctypes, os, resource
        import numpy as np
        from examples_of import Blocks
        from fastiter import MultiprocessIterator
        from outside import children, descriptors, wait_until

        def limit_processes(soft):
            resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))

        def threads_with_blas():
            matrix = np.ones((300, 300))
            matrix @ matrix
            return len(os.listdir("/proc/self/task"))

        if __name__ == "__main__":
            with MultiprocessIterator(Blocks(40), 4, n_processes=3, context="fork") as iterator:
                next(iterator)
            user = 40_000 + os.getpid() % 20_000  # of no other test
            os.setresuid(user, user, user)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self is ours again
            hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            threads = threads_with_blas()
            before = descriptors()
            errors = 0
            for soft in range(1, 9):
                limit_processes(soft)
                iterator = MultiprocessIterator(
                    Blocks(40, 1), 4, n_processes=3, shuffle=False, context="fork"
                )
                try:
                    batch = next(iterator)
                except OSError as error:
                    assert type(error) is BlockingIOError, error
                    errors += 1
                else:
                    assert [int(x[0]) for x in batch] == [0, 1, 2, 3]
                limit_processes(hard)
                first = 4 * bool(iterator.current_position)
                batch = next(iterator)
                assert [int(x[0]) for x in batch] == list(range(first, first + 4))
                iterator.finalize()
                batch = None
                del iterator
                wait_until(lambda: not children(), "no child stays")
                assert descriptors() == before, (soft, before, descriptors())
            assert errors >= 3, errors
            assert threads_with_blas() == threads
            print("done")
        """,
    )
    assert status == 0, err  # where workers that could not start their thread say so
    assert out.endswith("done\n")


# -- surroundings -----------------------------------------------------------------------------

COUNT = """
    import os, sys
    {before}
    from examples_of import Blocks
    from fastiter import MultiprocessIterator, concat_examples

    def main():
        iterator = MultiprocessIterator(
            Blocks(96, 8), 4, n_processes={n}, shuffle=False, context={method!r},
            converter=concat_examples,
        )
        got = [int(i) for _ in range(72) for i in next(iterator)[:, 0] // 8]
        iterator.finalize()
        print(got == [*range(96)] * 3)

    if __name__ == "__main__":
        main()
"""

GONE = "a directory that is gone"  # of multiprocessing's start methods only fork can do without
ODD = {
    "no HOME, no TMPDIR": ({"HOME": None, "TMPDIR": None, "USER": None, "LOGNAME": None}, ""),
    "HOME and TMPDIR that are nowhere": ({"HOME": "/nowhere", "TMPDIR": "/nowhere"}, ""),
    GONE: ({}, "os.mkdir('d'); os.chdir('d'); os.rmdir('../d')"),
    "-OO": ({"PYTHONOPTIMIZE": "2"}, "assert False"),
    "-X dev -W error": ({"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "error"}, ""),
    "one processor, 24 workers": ({}, "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"),
}


@pytest.mark.parametrize(
    ("odd", "method"),
    [
        *((odd, "fork" if odd == GONE else None) for odd in ODD),
        *(
            pytest.param(odd, method, marks=pytest.mark.stress)
            for odd in ODD
            if odd != GONE
            for method in ("spawn", "forkserver")
        ),
    ],
)
def test_odd_surroundings(tmp_path, output_of, monkeypatch, odd, method):
    environment, before = ODD[odd]
    for name, value in environment.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    source = COUNT.format(before=before, n=24 if "24" in odd else 2, method=method)
    assert output_of(textwrap.dedent(source), cwd=tmp_path) == "True\n"


MEMORY = """
printf 'MemTotal: {total} kB\\nMemAvailable: {available} kB\\n' >meminfo
mount --bind meminfo /proc/meminfo"""
#: Shell commands in a mount namespace of the program's own; between which limits the memory is that
#: may be taken, in MiB.
MOUNTED = {
    "no /proc": ("mount -t tmpfs none /proc", (0, 1 << 50)),
    "no /dev/shm": (
        """
        mkdir devices; mount -t tmpfs none devices
        for name in null zero random urandom; do
            touch devices/$name; mount --bind /dev/$name devices/$name
        done
        mount --move devices /dev""",
        (0, 1 << 30),
    ),
    "a root that is read-only": (
        # A fork server's socket needs a folder.
        "mount -o remount,bind,ro /; export TMPDIR=/dev/shm",
        (0, 1 << 30),
    ),
    "1.6 GB of memory": (MEMORY.format(total=2 << 20, available=1_600_000), (1000, 1600)),
    "100 GB left of 2 TB": (MEMORY.format(total=2 << 30, available=100 << 20), (90_000, 102_400)),
    "a control group of version 2": (
        """
        mount -t tmpfs none /sys/fs/cgroup; cd /sys/fs/cgroup
        echo 536870912 >memory.max; echo 67108864 >memory.current
        echo 'inactive_file 0' >memory.stat""",
        (100, 448),
    ),
}


@pytest.fixture(scope="session")
def namespace():
    """Command that runs a program after a shell command in a mount namespace of its own."""
    user = () if os.getuid() == 0 else ("--user", "--map-root-user")
    prefix = ("unshare", *user, "--mount", "sh", "-euc")
    try:
        subprocess.run([*prefix, "mount -t tmpfs none /mnt"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    return prefix


@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(m, marks=pytest.mark.stress) for m in ("forkserver", "spawn"))],
)
@pytest.mark.parametrize("name", MOUNTED)
def test_other_file_systems_and_memory(tmp_path, output_of, namespace, name, method):
    command, (least, most) = MOUNTED[name]
    if name == "no /dev/shm" and lies_in_dev_shm():
        pytest.skip("the portable path, or a system that refuses memfd_create: /dev/shm is needed")
    source = f"""
{textwrap.dedent(COUNT.format(before="", n=2, method=method))}
    from fastiter._clib.status import memory_available
    print({least} <= memory_available() >> 20 <= {most} or memory_available() >> 20)
"""
    prefix = (*namespace, f'cd "$0"; {command}\ncd "$0"; exec "$@"', tmp_path)
    assert output_of(source, prefix=prefix, cwd=tmp_path) == "True\nTrue\n"


@pytest.mark.skipif(platform.machine() not in NUMBERS, reason="numbers of system calls")
def test_a_dev_shm_that_is_full_without_memfd_is_named(output_of, namespace):
    """There the memory has to lie in /dev/shm, however much the machine has left."""
    out = output_of(
        """
        import errno
        import numpy as np
        from examples_of import Blocks
        from fastiter import MultiprocessIterator, kernels
        from without_calls import refuse

        if __name__ == "__main__":
            refuse(["memfd_create"], errno.EPERM)
            for elements in (10, 100_000, 10):
                iterator = MultiprocessIterator(
                    Blocks(8, elements), 4, n_processes=1, shuffle=False, context="fork"
                )
                try:
                    print(len(next(iterator)))
                except MemoryError as error:
                    print("/dev/shm" in str(error), "available" in str(error))
                    del error
                iterator.finalize()
            try:
                kernels.share(np.zeros(100_000))
            except OSError as error:
                print("/dev/shm" in str(error))
        """,
        prefix=(*namespace, 'mount -t tmpfs -o size=256k none /dev/shm; exec "$@"', "sh"),
    )
    assert out == "4\nTrue False\n4\nTrue\n"


@pytest.mark.skipif(platform.machine() not in NUMBERS, reason="numbers of system calls")
def test_no_dev_shm_without_memfd_is_named(output_of, namespace, tmp_path):
    out = output_of(
        """
        import errno
        from examples_of import Blocks
        from fastiter import MultiprocessIterator
        from without_calls import refuse

        if __name__ == "__main__":
            refuse(["memfd_create"], errno.EPERM)
            try:
                next(MultiprocessIterator(Blocks(8), 4, n_processes=1, context="fork"))
            except OSError as error:
                print("/dev/shm" in str(error))
        """,
        prefix=(*namespace, f'cd "$0"; {MOUNTED["no /dev/shm"][0]}\ncd "$0"; exec "$@"', tmp_path),
        cwd=tmp_path,
    )
    assert out == "True\n"


FEW_PAGES = """
import errno
import fastiter
from examples_of import Blocks
from fastiter import MultiprocessIterator
from without_calls import refuse

if __name__ == "__main__":
    refuse(["memfd_create"], errno.EPERM)
    try:
        if {caches}:
            fastiter.cache(range(5000), memory=1 << 20)[4999]
        with MultiprocessIterator(
            Blocks(60, 1000), 6, n_processes=1, repeat=False, context="fork"
        ) as iterator:
            print(sum(map(len, iterator)))
    except (MemoryError, OSError) as error:
        print(isinstance(error, MemoryError) or "/dev/shm" in str(error))
"""


@pytest.mark.skipif(platform.machine() not in NUMBERS, reason="numbers of system calls")
@pytest.mark.parametrize(("size", "caches"), [("12k", False), ("20k", False), ("4k", True)])
def test_a_few_pages_without_memfd_kill_nobody(output_of, namespace, size, caches):
    """The ring's own words, and the index of a cache, have their pages before they are written."""
    mount = f'mount -t tmpfs -o size={size} none /dev/shm; TMPDIR=/dev/shm exec "$@"'
    out = output_of(FEW_PAGES.format(caches=caches), prefix=(*namespace, mount, "sh"))
    assert out == "True\n"


def test_a_directory_that_is_gone_is_named_where_it_is_needed(tmp_path):
    status, out, err = run_script(
        tmp_path,
        """
        import os
        from examples_of import Blocks
        from fastiter import MultiprocessIterator

        if __name__ == "__main__":
            home = os.getcwd()
            os.mkdir("d"), os.chdir("d"), os.rmdir("../d")
            for method in ("spawn", "forkserver"):
                iterator = MultiprocessIterator(
                    Blocks(8), 4, n_processes=1, shuffle=False, context=method
                )
                try:
                    next(iterator)
                except FileNotFoundError as error:
                    assert "current directory is gone" in str(error) and method in str(error)
                    print(method)
            os.chdir(home)
            print(len(next(iterator)))
        """,
        cwd=tmp_path,
    )
    assert (status, out, err) == (0, "spawn\nforkserver\n4\n", "")


def test_a_folder_whose_name_is_too_long_for_sockets_is_named(tmp_path):
    folder = tmp_path / ("d" * 100)
    folder.mkdir()
    status, out, err = run_script(
        tmp_path,
        f"""
        import sys, tempfile
        from examples_of import Blocks
        from fastiter import MultiprocessIterator

        if __name__ == "__main__":
            tempfile.tempdir = {str(folder)!r}
            try:
                next(MultiprocessIterator(Blocks(8), 4, n_processes=1, context="forkserver"))
                print(sys.version_info >= (3, 14))  # which takes a shorter one then
            except OSError as error:
                print(tempfile.tempdir in str(error) and "TMPDIR" in str(error))
        """,
    )
    assert (status, out, err) == (0, "True\n", "")


def test_a_storm_of_signals(output_of):
    """A timer of the program interrupts every wait, in whatever system call."""
    out = output_of("""
        import signal
        from examples_of import Blocks
        from fastiter import MultiprocessIterator
        from inside import pids_of
        from outside import kill

        if __name__ == "__main__":
            alarms = 0

            def handler(number, frame):
                global alarms
                alarms += 1

            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            while alarms < 500:
                iterator = MultiprocessIterator(
                    Blocks(60, 1), 4, n_processes=2, shuffle=False, context="fork"
                )
                for number in range(30):
                    got = [int(x[0]) for x in next(iterator)]
                    assert got == [(4 * number + row) % 60 for row in range(4)], (number, got)
                    if number == 20:
                        kill(pids_of(iterator)[0])
                iterator.finalize()
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert signal.getsignal(signal.SIGALRM) is handler
            print("done")
        """)
    assert out == "done\n"


# -- a parent whose orphans do not go to process 1 ---------------------------------------------


@pytest.mark.parametrize(
    ("method", "when"),
    [
        pytest.param("fork", "they wait", marks=pytest.mark.stress),
        ("fork", "they compute"),
        ("spawn", "they import"),
        pytest.param("forkserver", "they compute", marks=pytest.mark.stress),
    ],
)
def test_a_parent_killed_under_a_subreaper(output_of, method, when):
    """As under systemd --user, docker-init and tini: the orphans' new parent is not process 1."""
    out = output_of(f"""
        import ctypes, os, pathlib, subprocess, sys, time
        from examples_of import Blocks
        from fastiter import MultiprocessIterator
        from inside import pids_of
        from outside import is_alive, wait_until

        marks = pathlib.Path(sys.argv[0]).parent

        class Dataset(Blocks):
            def __getitem__(self, index):
                if {when!r} == "they compute":
                    (marks / str(os.getpid())).touch()
                    sum(range(10**12))  # one native call
                return super().__getitem__(index)

        def parent():
            iterator = MultiprocessIterator(
                Dataset(40), 4, n_processes=2, shuffle=False, context={method!r}
            )
            iterator.start()
            if {when!r} == "they wait":
                next(iterator)
            pids = pids_of(iterator)
            if {when!r} == "they compute":
                wait_until(lambda: all((marks / str(pid)).exists() for pid in pids), "they do")
            print(*pids, flush=True)
            time.sleep(60)

        def grandparent():
            assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
            program = subprocess.Popen(
                [sys.executable, __file__, "parent"], stdout=subprocess.PIPE, text=True
            )
            workers = {{int(pid) for pid in program.stdout.readline().split()}}
            program.kill()
            program.wait()
            program.stdout.close()
            wait_until(lambda: not any(map(is_alive, workers)), "they end with their parent", 10)
            orphans = set()
            try:
                while True:
                    orphans.add(os.wait()[0])
            except ChildProcessError:  # the last one has ended
                print("done" if orphans else "the orphans went elsewhere")

        if __name__ == "__main__":
            parent() if len(sys.argv) > 1 else grandparent()
        """)
    assert out == "done\n"

"""Order, waits and memory, whatever the pace of workers, consumers and clocks."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import textwrap
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import psutil
import pytest
from examples_of import Blocks, Numbered
from inside import ring_of
from outside import HANG, children, run_script, start_script, wait_until
from warned import make_warnings_errors

from fastiter import concat_examples

# -- order ------------------------------------------------------------------------------------


class LastFirst(Numbered):
    """The example `waits` takes until the one at `awaited` was fetched."""

    def __init__(self, size: int, marks: Path, waits: int, awaited: int):
        super().__init__(size)
        self.marks, self.waits, self.awaited = marks, waits, awaited

    def __getitem__(self, index):
        if index == self.awaited:
            (self.marks / "fetched").touch()
        if index == self.waits:
            wait_until((self.marks / "fetched").exists, "the other worker fetches the last one")
        return super().__getitem__(index)


@pytest.mark.no_stuck_rows("the first row waits for another one, in each worker that fetches it")
@pytest.mark.parametrize("converter", [None, concat_examples])
def test_a_slow_first_example_does_not_change_the_order(make, tmp_path, converter):
    """The last of the batches fetched ahead is there before the first."""
    iterator = make(LastFirst(32, tmp_path, 0, 15), 4, n_prefetch=3, converter=converter)
    for number in range(16):
        batch = next(iterator)
        arrays, indices = batch if converter else zip(*batch, strict=True)
        first = 4 * number % 32
        assert list(indices) == list(range(first, first + 4))
        assert np.array_equal(np.ravel(arrays), np.arange(first * 64, (first + 4) * 64))


def test_uneven_workers_keep_the_order(make):
    class Uneven(Numbered):
        def __getitem__(self, index):
            time.sleep(random.Random(index).choice([0, 0, 0, 0.001, 0.004, 0.02]))
            return super().__getitem__(index)

    order = np.random.RandomState(3).permutation(120)
    iterator = make(Uneven(120), 5, n_processes=4, order_sampler=lambda *_: order, shuffle=None)
    for number in range(24):
        expected = order[5 * number : 5 * number + 5]
        for (block, index), wanted in zip(next(iterator), expected, strict=True):
            assert index == wanted
            assert np.array_equal(block, np.arange(64) + 64 * wanted)


@pytest.mark.parametrize("repeat", [False, True])
def test_threads_that_share_an_iterator_get_each_batch_once(make, repeat):
    """All ask at once for the very first, too."""
    iterator = make(Numbered(404), 4, n_prefetch=3, repeat=repeat)
    together = threading.Barrier(4)
    parts: list[list[list[int]]] = [[] for _ in range(4)]
    errors = []

    def iterate(part):
        try:
            together.wait(HANG)
            for batch in iterator:
                for block, index in batch:
                    assert np.array_equal(block, np.arange(64) + 64 * index)
                part.append([index for _, index in batch])
                if repeat and len(part) == 101:
                    return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=iterate, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()
    assert errors == []
    epochs = 4 if repeat else 1
    batches = np.arange(404).reshape(101, 4).tolist() * epochs
    assert sorted(batch for part in parts for batch in part) == sorted(batches)
    for part in parts if not repeat else ():
        assert part == sorted(part)  # no thread is given a later one first


# -- sizes ------------------------------------------------------------------------------------


@pytest.mark.no_stuck_rows("its batches are too large for the limit")
@pytest.mark.parametrize("shared_mem", [None, 64])
@pytest.mark.parametrize("converter", [None, concat_examples])
def test_sizes_far_beyond_the_first_batch(make, shared_mem, converter):
    """Four times larger in each batch, up to a million times, and small again: no word of it."""

    class Growing(Blocks):
        def __getitem__(self, index):
            return np.full(2 * 4 ** (index // 4), index, np.uint8), index

    def sizes(batch):
        arrays, indices = batch if converter else zip(*batch, strict=True)
        for array, index in zip(arrays, indices, strict=True):
            assert array.shape == (2 * 4 ** (index // 4),)
            assert (array == index).all()
            yield index

    with warnings.catch_warnings():
        make_warnings_errors()
        iterator = make(Growing(44), 4, n_prefetch=2, shared_mem=shared_mem, converter=converter)
        for number in range(22):
            first = 4 * number % 44
            assert list(sizes(next(iterator))) == list(range(first, first + 4))


# -- waits ------------------------------------------------------------------------------------

WAITS = """
    import pathlib, sys
    from examples_of import Gated
    from fastiter import MultiprocessIterator

    if __name__ == "__main__":
        gate = pathlib.Path(sys.argv[0]).with_name("gate")
        with MultiprocessIterator(
            Gated(400, {{40}}, gate), 4, n_processes=3, n_prefetch=5, shuffle=False, context={!r}
        ) as iterator:
            got = [i for _ in range(2) for i in next(iterator)]
            print("slow", flush=True)
            sys.stdin.readline()
            got += [i for _ in range(8) for i in next(iterator)]
            print("waiting", flush=True)
            got += [i for _ in range(90) for i in next(iterator)]
            print(got == list(range(400)))
"""


def seconds_of_cpu(pids):
    """Processor time that these processes have used, in user and kernel mode."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(time.user + time.system for time in times)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.stress)])
def test_who_waits_uses_no_processor(tmp_path, method):
    """Workers with nothing to do while the consumer is slow, and a consumer whose batch is not
    there yet. One poller in a loop would use a second in each second."""
    program = start_script(tmp_path, WAITS.format(method), stdin=subprocess.PIPE)

    def used():
        family = [program.pid, *children(program.pid)]
        before = seconds_of_cpu(family)
        threading.Event().wait(0.5)
        return seconds_of_cpu(family) - before

    try:
        assert program.stdout.readline() == "slow\n", program.communicate()[1]
        wait_until(lambda: used() < 0.1, "workers whose ring is full come to rest")
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "waiting\n"
        wait_until((tmp_path / "gate.40").exists, "a worker waits at the gate")
        wait_until(lambda: used() < 0.1, "everybody else comes to rest")
        (tmp_path / "gate").touch()
        out, err = program.communicate(timeout=HANG)
    finally:
        program.kill()
        program.communicate()
    assert (program.returncode, out, err) == (0, "True\n", "")


CLOCK = """
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void)
{
    static atomic_ulong calls;
    return (atomic_fetch_add(&calls, 1) & 1 ? -1 : 1) * 1000000000l;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int status = (int)syscall(SYS_clock_gettime, clock, now); /* dlsym may ask for the time */
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += jump();
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec real;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &real);
    *now = (struct timeval){real.tv_sec, real.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture(scope="session")
def jumping_clock(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library before the C library: its wall clock goes 30 years forth or back at each look."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build another clock with")
    directory = tmp_path_factory.mktemp("clock")
    (directory / "clock.c").write_text(CLOCK)
    command = [compiler, "-shared", "-fPIC", "clock.c", "-o", "libclock.so"]
    subprocess.run(command, cwd=directory, check=True)
    return str(directory / "libclock.so")


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.stress)])
def test_a_wall_clock_that_jumps(tmp_path, monkeypatch, jumping_clock, method):
    """No false alarm of a healthy dataset, and the true one of a hung one."""
    others = os.environ.get("LD_PRELOAD", "")
    monkeypatch.setenv("LD_PRELOAD", f"{others} {jumping_clock}".strip())
    status, out, err = run_script(
        tmp_path,
        textwrap.dedent(
            f"""
            import os, pathlib, signal, sys, time
            from examples_of import Gated
            from fastiter import MultiprocessIterator
            from inside import pids_of, pool_of
            from outside import wait_until
            from warned import make_warnings_errors

            if __name__ == "__main__":
                year = 365 * 24 * 3600
                assert max(abs(time.time() - time.time()) for _ in range(4)) > 20 * year
                make_warnings_errors()
                gate = pathlib.Path(sys.argv[0]).with_name("gate")
                iterator = MultiprocessIterator(
                    Gated(40, {{30}}, gate), 4, n_processes=2, shuffle=False, context={method!r},
                    dataset_timeout=20,
                )
                got = [i for _ in range(7) for i in next(iterator)]
                wait_until(pathlib.Path(f"{{gate}}.30").exists, "a worker waits at the gate")
                pool_of(iterator)._timeouts.seconds = 0.3
                try:
                    next(iterator)
                except MultiprocessIterator.TimeoutWarning as warning:
                    print(str(warning).partition(" s (")[0])
                os.kill(pids_of(iterator)[0], signal.SIGKILL)
                gate.touch()
                pool_of(iterator)._timeouts.seconds = 20
                got += [i for _ in range(13) for i in next(iterator)]
                print(got == [*range(40), *range(40)])
                iterator.finalize()
            """
        ),
    )
    assert (status, err) == (0, "")
    first, last = out.splitlines()
    assert first.startswith("the dataset has been busy with index 30 for ")
    assert 0.3 <= float(first.rpartition(" ")[2]) < HANG
    assert last == "True"


def test_a_wait_tells_the_doorbell_from_what_else_it_waits_for(make):
    iterator = make(Numbered(4), 2)
    next(iterator)
    ring = ring_of(iterator)
    reads, writes = os.pipe()
    try:
        os.write(writes, b"x")
        for others, told in (([], [-1]), ([reads], [-1, 0])):
            ring.interrupt()
            assert ring.wait(lambda: False, False, others, HANG) == told
    finally:
        os.close(reads)
        os.close(writes)

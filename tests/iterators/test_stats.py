"""``stats()`` counts right, judges right, and its advice helps."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import pickle
import re
import sys
import threading
import time

import numpy as np
import pytest
from failing import Calling, Failing
from statistics_of import figures

import fastiter
from fastiter import IteratorStats, MultiprocessIterator, MultithreadIterator, SerialIterator
from fastiter._stats.stats import NodeStats
from fastiter._util.cpus import allowed_cpus, cgroup_quota, usable_cpus, whole_cpus
from fastiter.errors import SkipLimitError

BATCH = 8


class Sleeping:
    """Examples of 64 bytes and a number, each of which takes its time but no CPU."""

    def __init__(self, seconds, n=100_000):
        self.seconds = seconds
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if self.seconds:
            time.sleep(self.seconds)
        return np.full(16, index, np.float32), index


def failing(n=40, bad=(9,)):
    return Failing({index: ValueError("nine") for index in bad}, n)


def serial(dataset, **options):
    return SerialIterator(dataset, BATCH, **options)


def threads(dataset, n_threads=2, **options):
    return MultithreadIterator(dataset, BATCH, n_threads=n_threads, **options)


def processes(dataset, n_processes=2, **options):
    return MultiprocessIterator(dataset, BATCH, n_processes=n_processes, context="fork", **options)


def in_caller(dataset, **options):
    return MultiprocessIterator(dataset, BATCH, n_processes=0, **options)


KINDS = [serial, threads, processes, in_caller]


def take(iterator, batches, pause=0.0):
    """The statistics of this many batches, after those that were prefetched while workers began."""
    for _ in range(4):
        next(iterator)
    before = iterator.stats()
    for _ in range(batches):
        next(iterator)
        if pause:
            time.sleep(pause)
    return iterator.stats() - before


def at_some_scale(check):
    """Calls `check(scale)`, where all that takes time takes `scale` times as long, with larger and
    larger scales until it passes. What else the machine does disturbs short times more than long
    ones; what counts or judges wrongly does so at every scale."""
    for scale in (1, 4):
        try:
            return check(scale)
        except AssertionError:
            pass
    return check(16)


@pytest.mark.parametrize("make", KINDS)
def test_counts_what_was_delivered(make):
    with make(Sleeping(0, n=20), repeat=False, converter=fastiter.concat_examples) as iterator:
        assert iterator.stats().batches == iterator.stats().examples == 0
        assert iterator.stats().verdict == "unknown"
        next(iterator)
        first = iterator.stats()
        assert (first.batches, first.examples) == (1, 8)
        assert len(list(iterator)) == 2
        stats = iterator.stats()
        assert (stats.batches, stats.examples, stats.errors) == (3, 20, 0)
        assert (stats - first).examples == 12
        assert sum(worker.rows for worker in stats.workers) in (0, 20)
        assert len(stats.workers) == stats.n_workers == {threads: 2, processes: 2}.get(make, 0)
        assert stats.has_converter and stats.batch_size == 8
    after = iterator.stats()
    assert (after.batches, after.examples, after.ready) == (3, 20, 0)
    assert after.wait_seconds == stats.wait_seconds


@pytest.mark.parametrize("make", [threads, processes])
def test_a_wait_ends_before_the_program_is_asked_about_a_failure(make):
    def decide(index, error):
        waits.append(iterator.stats().wait_seconds)
        return "skip"

    waits = []
    with make(failing(40, [9]), shuffle=False, on_error=decide, skip_limit=None) as iterator:
        next(iterator)
        assert len(next(iterator)) == BATCH - 1
        assert waits == [iterator.stats().wait_seconds]


@pytest.mark.parametrize("make", KINDS)
def test_the_time_is_divided_without_a_rest(make):
    clock = time.perf_counter
    with make(Sleeping(0.002)) as iterator:
        times = [clock(), next(iterator) and clock()]
        before = iterator.stats()
        for _ in range(6):
            next(iterator)
            time.sleep(0.01)
        times += [clock(), next(iterator) and clock()]
        stats = iterator.stats() - before
    assert stats.start_seconds == 0
    assert 0 <= stats.wait_seconds <= stats.next_seconds
    assert stats.consumer_seconds >= 0.06
    # From the end of the first call to the end of the last one.
    assert times[2] - times[1] <= stats.seconds <= times[3] - times[0]


@pytest.mark.parametrize("make", KINDS)
def test_a_pause_after_the_end_a_reset_or_a_snapshot_is_no_part_of_the_loop(make):
    def check(scale):
        with make(Sleeping(0, n=8), repeat=False) as iterator:
            state = iterator.state_dict()
            for again in (iterator.reset, lambda: iterator.load_state_dict(state), lambda: None):
                for _ in iterator:
                    pass
                time.sleep(0.05 * scale)
                again()
            assert iterator.stats().consumer_seconds < 0.05 * scale

    at_some_scale(check)


@pytest.mark.parametrize("make", KINDS)
def test_errors_are_counted_beside_batches(make):
    with make(failing(), shuffle=False, repeat=False) as iterator:
        next(iterator)
        with pytest.raises(ValueError, match="nine"):
            next(iterator)
        assert len(list(iterator)) == 3
        stats = iterator.stats()
    assert (stats.batches, stats.examples, stats.errors) == (4, 32, 1)


@pytest.mark.parametrize("make", KINDS)
def test_skipped_examples_are_not_delivered(make):
    with make(failing(), shuffle=False, repeat=False, on_error="skip", skip_limit=5) as iterator:
        assert sum(map(len, iterator)) == 39
        stats = iterator.stats()
    assert (stats.batches, stats.examples, stats.skipped, stats.errors) == (5, 39, 1, 0)


@pytest.mark.parametrize("make", KINDS)
def test_the_end_is_no_part_of_the_loop_where_nothing_is_left_of_the_last_batch(make):
    skip = {"on_error": "skip", "skip_limit": None}
    with make(failing(16, range(8, 16)), shuffle=False, repeat=False, **skip) as iterator:
        assert len(list(iterator)) == 1
        stats = iterator.stats()
        with pytest.raises(StopIteration):
            next(iterator)
        assert iterator.stats().consumer_seconds == stats.consumer_seconds
    assert stats.skipped == len(iterator.skipped) == 8


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(("bad", "limit", "skipped"), [([1, 2, 3], 2, 2), (range(16), None, 16)])
def test_what_a_failing_batch_skipped_counts(make, bad, limit, skipped):
    with make(failing(16, bad), shuffle=False, on_error="skip", skip_limit=limit) as iterator:
        with pytest.raises(SkipLimitError):
            next(iterator)
        stats = iterator.stats()
        assert stats.skipped == sum(record.times for record in iterator.skipped) == skipped
        assert (stats.examples, stats.errors) == (0, 1)


@pytest.mark.parametrize("make", KINDS)
def test_copies_count_from_zero(make):
    with make(Sleeping(0)) as iterator:
        next(iterator)
        with copy.copy(iterator) as other, pickle.loads(pickle.dumps(iterator)) as third:
            assert other.stats().batches == third.stats().batches == 0
            next(other)
            assert (other.stats().batches, iterator.stats().batches) == (1, 1)


def test_statistics_are_plain_frozen_data():
    with processes(Sleeping(0)) as iterator:
        next(iterator)
        stats = iterator.stats()
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert IteratorStats(**{f.name: getattr(stats, f.name) for f in dataclasses.fields(stats)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.batches = 0
    with pytest.raises(ValueError, match="subtract the earlier one"):
        serial(Sleeping(0)).stats() - stats


def test_bytes_are_those_of_the_examples():
    with processes(Sleeping(0), n_processes=1, n_prefetch=1) as iterator:
        for _ in range(6):
            next(iterator)  # the first ones travel without columns
        before = iterator.stats().workers[0]
        for _ in range(20):
            next(iterator)
        worker = iterator.stats().workers[0] - before
    assert worker.spills == 0
    assert worker.bytes_written == worker.rows * (16 * 4 + 8)


def test_spills_and_copies_out_are_counted():
    dataset = Calling(lambda index: "odd" if index == 100 else np.zeros(4), 10_000)
    with processes(dataset, shuffle=False, n_prefetch=1) as iterator:
        held = [next(iterator) for _ in range(20)]
        stats = iterator.stats()
    assert stats.spills == 1
    assert stats.copied_out >= 20 - stats.slots
    assert len(held) == 20
    assert "spills" in str(stats) and "copied out" in str(stats)


def test_planned_replacements_are_no_deaths():
    with processes(Sleeping(0), n_processes=1, maxtasksperchild=8) as iterator:
        for _ in range(12):
            next(iterator)
        stats = iterator.stats()
    assert stats.replacements > 0
    assert stats.deaths == 0


def test_fetching_and_writing_are_told_apart():
    class Large(Sleeping):
        def __getitem__(self, index):
            return self.array

        array = np.zeros(1_000_000)

    def check(scale):
        with processes(Sleeping(0.005 * scale), converter=fastiter.concat_examples) as iterator:
            fetching = take(iterator, 10)
        with processes(Large(0), n_processes=1, converter=fastiter.concat_examples) as iterator:
            writing = take(iterator, 10 * scale)
        for worker in fetching.workers + writing.workers:
            assert abs(worker.fetch + worker.write + worker.finish - worker.busy) < 1e-6
            assert abs(worker.busy + worker.idle - 1) < 1e-6
        for worker in fetching.workers:
            assert worker.fetch > 0.5 and worker.fetch > 3 * worker.write
        for worker in writing.workers:
            assert worker.write > 3 * worker.fetch

    at_some_scale(check)


def test_padding_is_the_finish():
    def check(scale):
        def convert(examples, device):
            time.sleep(0.02 * scale)
            return len(examples)

        with processes(Sleeping(0), converter=convert) as iterator:
            stats = take(iterator, 10)
        assert sum(worker.finish for worker in stats.workers) > 0.5
        assert all(worker.finish > worker.fetch for worker in stats.workers)

    at_some_scale(check)


def test_a_worker_is_busy_with_the_row_that_it_fetches():
    released = multiprocessing.get_context("fork").Event()
    dataset = Calling(lambda index: released.wait(), 9)
    with processes(dataset, n_processes=1, shuffle=False) as iterator:
        iterator.start()
        while not iterator.stats().workers[0].busy_seconds:  # of no row that has ended
            pass
        released.set()
        assert len(next(iterator)) == BATCH


def test_asks_while_another_thread_waits():
    with processes(Sleeping(0.05)) as iterator:
        waiting = threading.Thread(target=next, args=(iterator,), daemon=True)
        waiting.start()
        while not (stats := iterator.stats()).start_seconds:
            pass
        assert stats.batches == 0  # so next() is under way, with the lock in its hands
        waiting.join()
        assert iterator.stats().batches == 1


# ---- the verdict ---------------------------------------------------------------------------------

VERDICTS = [
    (serial, 0.004, 0.0, "loader-bound"),
    (serial, 0.0, 0.02, "consumer-bound"),
    (threads, 0.004, 0.0, "loader-bound"),
    (threads, 0.0, 0.02, "consumer-bound"),
    (processes, 0.004, 0.0, "loader-bound"),
    (processes, 0.0, 0.02, "consumer-bound"),
    (in_caller, 0.004, 0.0, "loader-bound"),
]


@pytest.mark.parametrize(("make", "fetch", "pause", "verdict"), VERDICTS)
def test_tells_who_waits(make, fetch, pause, verdict):
    def check(scale):
        with make(Sleeping(fetch * scale)) as iterator:
            stats = take(iterator, 10, pause * scale)
        assert stats.verdict == verdict, str(stats)
        assert str(stats).startswith(f"{type(iterator).__name__}: {verdict}, ")
        assert bool(stats.change) == (verdict == "loader-bound")

    at_some_scale(check)


@pytest.mark.slow
@pytest.mark.parametrize("make", [threads, processes])
def test_what_it_says_to_change_helps(make):
    """Two workers need 80 ms for a batch of sleepers, and the loop takes 10 ms."""

    def check(scale):
        dataset = Sleeping(0.02 * scale)
        with make(dataset) as iterator:
            before = take(iterator, 6, 0.01 * scale)
        assert before.verdict == "loader-bound", str(before)
        (name, count), *others = before.change.items()
        assert not others and f"{name}={count}" in before.advice
        with make(dataset, **before.change) as iterator:
            after = take(iterator, 10, 0.01 * scale)
        assert count > 2
        assert after.wait_share < 0.7 * before.wait_share, f"{before}\n{after}"
        assert after.batches / after.seconds > before.batches / before.seconds

    at_some_scale(check)


def test_bursts_want_more_prefetch():
    """One batch in eight takes as long as eight loops; the workers have time enough on average."""

    class Bursts(Sleeping):
        def __getitem__(self, index):
            if index // BATCH % 8 == 0 and index % BATCH == 0:
                time.sleep(self.seconds)
            return index

    def check(scale):
        def run(**options):
            dataset = Bursts(0.08 * scale)
            with processes(dataset, shuffle=False, n_processes=1, **options) as iterator:
                return take(iterator, 28, 0.015 * scale)

        before = run()
        assert before.verdict == "loader-bound" and before.change == {"n_prefetch": 4}, str(before)
        after = run(n_prefetch=8)
        assert after.wait_share < before.wait_share / 2, f"{before}\n{after}"

    at_some_scale(check)


# A machine's load is not for a test to make, nor to rely upon: these judge figures.


def test_as_many_workers_as_the_loop_needs():
    assert figures().change == {"n_processes": 5}  # 19.6 s of work for 5 s of loop


def test_no_more_workers_than_cpus_for_those_that_compute():
    stats = figures(cpu=9.8)
    assert stats.change == {"n_processes": 4}
    assert figures(cpu=9.8, cpu_seconds=10.0).change == {"n_processes": 3}  # the loop computes, too
    assert figures(cpu=2.0, in_line=1.8, cpus=1.0).change == {"n_processes": 3}  # on a busy machine


def test_says_that_the_cpus_are_full():
    stats = figures(cpu=9.8, cpus=2.0)
    assert stats.verdict == "loader-bound" and stats.change == {}
    assert "CPUs are full (2.1 of 2 used)" in stats.advice


def test_says_that_other_programs_have_the_cpus():
    stats = figures(cpu=4.0, in_line=5.5)
    assert stats.change == {} and "other programs" in stats.advice


def test_threads_that_wait_for_one_another():
    values = {"workers_are": "threads", "iterator": "MultithreadIterator"}
    locked = figures(**values, cpu=4.9, cpu_seconds=10.0)
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        assert "MultiprocessIterator" in locked.advice
        assert re.search(r"time: use MultiprocessIterator with n_processes=\d\n", str(locked))
    else:
        assert locked.change == {"n_threads": 5}
    assert figures(**values, cpu=0.1, cpu_seconds=0.3).change == {"n_threads": 5}
    assert figures(**values, cpu=9.8, cpu_seconds=19.7, cpus=2.0).change == {}


@pytest.mark.parametrize(
    ("shards", "advice"),
    [
        ({"interleave": 1, "n_shards": 8, "busy": 5.0}, "1 of 8 shards .* interleave=2"),
        ({"interleave": 2, "n_shards": 8, "busy": 9.8}, "interleave=5 .* and set n_processes=5"),
        ({"interleave": 3, "n_shards": 4, "busy": 9.8}, "interleave=4 .* and set n_processes=4"),
        ({"interleave": 2, "n_shards": 2, "busy": 9.8}, "2 of 2 shards at a time: more shards"),
    ],
    ids=["idle workers", "few workers", "few shards", "all shards"],
)
def test_workers_beyond_the_shards_that_are_open_do_not_help(shards, advice):
    stats = figures(**shards)
    assert stats.verdict == "loader-bound" and stats.change == {}, str(stats)
    assert re.search(advice, stats.advice), stats.advice
    assert "n_processes" not in figures(**shards, iterator="DataLoader").advice


@pytest.mark.parametrize(
    ("rows", "advice"),
    [((950, 50), "worker 0 had 95% of the examples"), ((40, 960), "set n_prefetch=4")],
)
def test_uneven_workers_are_told_from_uneven_batches(rows, advice):
    """A worker is busy with most of the examples, or with few that take long."""
    workers = [
        dataclasses.replace(worker, number=number, busy_seconds=busy, rows=n)
        for number, (worker, busy, n) in enumerate(
            zip(figures().workers, (9.8, 1.0), rows, strict=True)
        )
    ]
    stats = figures(workers=tuple(workers))
    assert stats.verdict == "loader-bound" and advice in stats.advice, stats.advice


def test_a_stream_tells_how_many_shards_are_open():
    shards = [[shard] * 8 for shard in range(3)]
    stream = fastiter.datasets.StreamDataset(shards, iter, interleave=2)
    with MultiprocessIterator(stream, 4, repeat=False, n_processes=2) as iterator:
        assert len(list(iterator)) == 6
        stats = iterator.stats()
    assert sum(worker.rows for worker in stats.workers) == 24
    assert (stats.interleave, stats.n_shards) == (2, 3)
    assert ((stats - stats).interleave, (stats - stats).n_shards) == (2, 3)
    with in_caller(Sleeping(0)) as iterator:
        assert (iterator.stats().interleave, iterator.stats().n_shards) == (0, 0)


def test_balanced_and_costly_next():
    assert figures(wait_seconds=0.5, next_seconds=0.6, consumer_seconds=9.4).verdict == "balanced"
    costly = figures(wait_seconds=0.1, next_seconds=6.0, has_converter=False)
    assert "concat_examples" in costly.advice


NO_WORKERS = {"workers_are": "none", "n_workers": 0, "n_prefetch": 0, "workers": ()}
THREADS = {"workers_are": "threads", "iterator": "MultithreadIterator"}
NODE = NodeStats("a1b2", "10.0.0.1", workers=4, rows=1000, bytes=1 << 20)
LOOP = {"wait_seconds": 0.5, "next_seconds": 0.6, "consumer_seconds": 9.4}


@pytest.mark.parametrize(
    ("values", "change", "advice"),
    [
        ({"batches": 5}, {}, "5 batches in 10 s after the start; at least 6 batches"),
        ({"batches": 6}, {"n_processes": 5}, "set n_processes=5"),
        ({"batches": 2} | NO_WORKERS, {}, "at least 3 batches"),
        ({"wait_seconds": 0.02, "next_seconds": 0.02, "consumer_seconds": 0.02}, {}, "in 0.04 s"),
        ({"wait_seconds": 9.0} | NO_WORKERS, {"n_processes": 10}, "would fetch during the step"),
        ({"wait_seconds": 9.0, "cpu_seconds": 30.0} | NO_WORKERS, {"n_processes": 4}, "fetch"),
        ({"wait_seconds": 9.0, "interleave": 3} | NO_WORKERS, {"n_processes": 3}, "fetch"),
        ({"busy": 1.0, "n_prefetch": 20}, {"n_prefetch": 32}, "n_prefetch=32 to have more ready"),
        ({"busy": 1.0, "n_prefetch": 32}, {}, "smaller batches"),
        (LOOP | {"busy": 1.0}, {}, "90% idle; 1 of them would be enough"),
        (LOOP | {"busy": 4.5}, {}, "own work is the limit: it waits 5% of its time$"),
        ({"wait_seconds": 0.1, "next_seconds": 6.0}, {}, "make both faster"),
        ({"wait_seconds": 0.1, "next_seconds": 2.0, "has_converter": False}, {}, "both faster"),
        ({"in_line": 3.0}, {"n_processes": 5}, "set n_processes=5"),
        ({"wait_seconds": 9.9}, {"n_processes": 64}, "set n_processes=64"),
        ({"cpu": 9.8, "cpus": 3.6}, {"n_processes": 4}, "set n_processes=4"),
        ({"wait_seconds": 1.1, "busy": 7.2}, {"n_processes": 3}, "set n_processes=3"),
        (THREADS | {"cpu": 8.5, "cpu_seconds": 17.0}, {"n_threads": 5}, "releases the GIL"),
        (
            THREADS | {"busy": 7.2, "cpu": 5.5, "cpu_seconds": 12.0},
            {"n_threads": 4},
            "set n_threads=4",
        ),
        (THREADS, {"n_threads": 5}, "set n_threads=5"),
        ({"nodes": (NODE,)}, {"n_workers": 6}, "4 workers on the cluster are 98% busy"),
        ({"nodes": (NODE,), "busy": 1.0}, {"n_prefetch": 4}, "or set n_prefetch=4"),
        ({"nodes": (NODE,), "busy": 1.0, "n_prefetch": 32}, {}, "let examples be smaller$"),
    ],
)
def test_advice_for_what_was_measured(values, change, advice):
    stats = figures(**values)
    assert stats.change == change and re.search(advice, stats.advice), str(stats)
    assert ("GIL" in stats.advice) == ("GIL" in advice)


def test_only_workers_that_are_there_count_and_no_counter_is_below_zero():
    worker = figures().workers[0]
    left = dataclasses.replace(worker, number=1, busy_seconds=0.0, finish_seconds=5.0, rows=400)
    assert figures(n_workers=1, workers=(worker, left)).busy == worker.busy
    assert left.finish == left.fetch == 0
    later, earlier = figures(workers=(left,), changes=("one", "two")), figures(changes=("one",))
    difference = later - dataclasses.replace(earlier, examples=1001)
    assert (difference.examples, difference.changes) == (0, ("two",))
    assert (left - worker).rows == 0


# ---- how many CPUs -------------------------------------------------------------------------------


def test_the_quota_of_every_group_above_counts(tmp_path):
    mount = tmp_path / "cgroup"
    (mount / "a" / "b").mkdir(parents=True)
    (tmp_path / "cgroup_of").mkdir()
    (tmp_path / "cgroup_of" / "cgroup").write_text("0::/a/b\n")
    assert cgroup_quota(tmp_path / "cgroup_of", mount) == float("inf")
    (mount / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (mount / "a" / "cpu.max").write_text("150000 100000\n")
    assert cgroup_quota(tmp_path / "cgroup_of", mount) == 1.5
    assert usable_cpus(tmp_path / "cgroup_of", mount) == min(1.5, allowed_cpus())
    assert whole_cpus(tmp_path / "cgroup_of", mount) == min(2, allowed_cpus())
    (mount / "cpu" / "c").mkdir(parents=True)
    (mount / "cpu" / "c" / "cpu.cfs_quota_us").write_text("50000\n")
    (mount / "cpu" / "c" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cgroup_of" / "cgroup").write_text("4:cpu,cpuacct:/c\n3:memory:/a\n")
    assert cgroup_quota(tmp_path / "cgroup_of", mount) == 0.5
    assert whole_cpus(tmp_path / "cgroup_of", mount) == 1
    assert cgroup_quota(tmp_path / "nowhere", mount) == float("inf")
    assert 0 < usable_cpus() <= whole_cpus() <= 100_000
    assert MultiprocessIterator([1], 1).n_processes == whole_cpus()

"""Automatic settings: batches never change, and the settings follow the figures."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import time

import numpy as np
import pytest
from inside import group_of, pids_of, pool_of, tuner_of

import fastiter
import fastiter.random
from fastiter import MultiprocessIterator
from fastiter._clib import status
from fastiter._stats.autotune import Tuner, first_workers, most_workers

AUTO = {"n_processes": "auto", "n_prefetch": "auto", "context": "fork"}


class Dataset:
    """Examples by a number of their own, so that it shows who fetched which in which epoch."""

    def __init__(self, seconds=0.0, n=96):
        self.seconds, self.n = seconds, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if self.seconds:
            time.sleep(self.seconds)
        return np.full(index % 7 + 1, index), fastiter.random.example_rng().random()


def take(iterator, count):
    return [[(x.tolist(), r) for x, r in next(iterator)] for _ in range(count)]


def until(iterator, condition):
    """Iterates until the automatic settings are as told; the test's time limit is pytest's."""
    while not condition(iterator.stats()):
        next(iterator)


def by_hand(iterator):
    """The test itself changes the settings from here on."""
    tuner_of(iterator)._due = 1 << 62


def options(seed=3):
    return {"order_sampler": fastiter.ShuffleOrderSampler(seed)}


def test_batches_are_those_of_fixed_settings():
    """Workers come and go, and prefetch changes, during the epochs; also over a snapshot."""
    with MultiprocessIterator(
        Dataset(), 10, n_processes=1, context="fork", **options()
    ) as iterator:
        expected = take(iterator, 60)
    with MultiprocessIterator(Dataset(), 10, **AUTO, **options()) as iterator:
        found = []
        by_hand(iterator)
        for workers, prefetch in [(2, 2), (5, 9), (1, 1), (8, 16), (3, 4), (6, 2)]:
            found += take(iterator, 1)
            pool_of(iterator).set_workers(workers)
            pool_of(iterator).adjust("n_prefetch", prefetch)
            assert (iterator.n_processes, iterator.n_prefetch) == (workers, prefetch)
            found += take(iterator, 7)
        state = iterator.state_dict()
        assert found == expected[:48]
        stats = iterator.stats()
        assert stats.n_workers == 6 and stats.deaths == 0
    with MultiprocessIterator(Dataset(), 10, **AUTO, **options()) as iterator:
        iterator.load_state_dict(state)
        assert take(iterator, 12) == expected[48:]


def test_workers_that_are_too_many_leave():
    with MultiprocessIterator(Dataset(0.001), 4, **AUTO) as iterator:
        by_hand(iterator)
        take(iterator, 30)
        pool = pool_of(iterator)
        pool.set_workers(6)
        until(iterator, lambda stats: [w.rows > 0 for w in stats.workers] == 6 * [True])
        assert len(pids_of(iterator)) == 6
        pool.set_workers(1)
        first = pids_of(iterator)[0]
        workers = group_of(iterator).workers
        while sum(not worker.is_dead() for worker in list(workers.values())) > 1:
            next(iterator)
        pool.set_workers(3)  # while some of them may not have been reaped yet
        take(iterator, 20)
        stats = iterator.stats()
        assert stats.deaths == stats.replacements == 0
        assert stats.n_workers == 3 and len(stats.workers) == 6
        assert stats.workers[5].seconds < stats.workers[0].seconds
        assert {worker.pid for worker in stats.workers[:3]} >= {first}
        assert sum(worker.rows for worker in stats.workers) >= stats.examples


def test_a_worker_that_dies_while_few_are_wanted_is_replaced():
    with MultiprocessIterator(Dataset(0.001), 4, **AUTO) as iterator:
        by_hand(iterator)
        next(iterator)
        pool_of(iterator).set_workers(1)
        next(iterator)
        victim = pids_of(iterator)[0]
        os.kill(victim, 9)
        take(iterator, 10)
        assert iterator.stats().deaths == 1
        assert iterator.stats().workers[0].pid not in (0, victim)


@pytest.mark.no_stuck_rows("the dataset is to wait, not the rows that hang")
def test_more_workers_for_a_dataset_that_waits():
    """The loop takes no time at all, the dataset all of it, and no CPU."""
    with MultiprocessIterator(Dataset(0.03, n=10_000), 4, **AUTO) as iterator:
        first = iterator.n_processes
        until(iterator, lambda stats: stats.n_workers > first)
        assert iterator.n_processes == iterator.stats().n_workers > first
        change = iterator.stats().changes[0]
        assert change.startswith(f"n_processes from {first} to ")
        assert "waiting" in change and change in str(iterator.stats())
        assert iterator.n_processes <= most_workers(fastiter._util.cpus.usable_cpus())


def test_more_prefetch_for_bursts():
    class Bursts(Dataset):
        def __getitem__(self, index):
            time.sleep(0.05 if index % 32 == 0 else 0)
            return index

    with MultiprocessIterator(
        Bursts(n=64), 4, shuffle=False, n_processes=1, n_prefetch="auto", context="fork"
    ) as iterator:
        while iterator.n_prefetch == 2:
            next(iterator)
            time.sleep(0.012)
        assert iterator.stats().changes[0].startswith("n_prefetch from 2 to 4 after ")
        assert iterator.n_processes == 1


def test_copies_begin_anew():
    with MultiprocessIterator(Dataset(), 10, **AUTO) as iterator:
        next(iterator)
        pool_of(iterator).set_workers(7)
        for other in (copy.copy(iterator), pickle.loads(pickle.dumps(iterator))):
            assert other.n_processes == first_workers(fastiter._util.cpus.usable_cpus())
            assert other.n_prefetch == 2 and other.stats().changes == ()


@pytest.mark.parametrize("name", ["n_processes", "n_prefetch"])
def test_wrong_values(name):
    with pytest.raises(ValueError, match=f"{name} must be an integer or 'auto', not 'much'"):
        MultiprocessIterator(Dataset(), 10, **{name: "much"})
    with pytest.raises(TypeError, match=f"{name} must be an integer"):
        MultiprocessIterator(Dataset(), 10, **{name: 1.5})


# ---- what the tuner makes of figures -------------------------------------------------------------


class Figures:
    """A pool and its statistics, by formula: seconds of work in a batch, and of the loop."""

    def __init__(self, work, loop, cpus=64.0, uses_cpu=0.0):
        self.work, self.loop, self.cpus, self.uses_cpu = work, loop, cpus, uses_cpu
        self.workers, self.prefetch = 2, 2
        self.total = None
        self.steady = True

    def is_steady(self):
        return self.steady

    def adjust(self, name, count):
        setattr(self, {"n_processes": "workers", "n_prefetch": "prefetch"}[name], count)

    def bytes_each(self, name):
        return 1 << 20

    def step(self):
        """100 batches later."""
        useful = min(self.workers, self.cpus) if self.uses_cpu else self.workers
        period = max(self.loop, self.work / useful)
        seconds = 100 * period
        busy = seconds * min(1.0, self.work / (self.workers * period))
        worker = fastiter.WorkerStats(
            0, 1, 100, 0, 0, seconds, busy, busy, 0.0, 0.0, busy * self.uses_cpu, 0.0
        )
        waiting = seconds - 100 * self.loop
        none = ("errors", "skipped", "start_seconds", "cpu_seconds")
        one = fastiter.IteratorStats(
            iterator="MultiprocessIterator",
            **dict.fromkeys(("batches", "examples", "calls"), 100),
            **dict.fromkeys(none, 0),
            next_seconds=waiting,
            wait_seconds=waiting,
            consumer_seconds=100 * self.loop,
            workers_are="processes",
            batch_size=1,
            n_workers=self.workers,
            n_prefetch=self.prefetch,
            has_converter=True,
            cpus=self.cpus,
            slots=10,
        )
        return one, worker


def tune(figures, steps=30, most=64, least=1):
    """Actions of the tuner, window after window."""
    tuner = Tuner({"n_processes": most, "n_prefetch": 16}, least)
    tuner._due = 0
    batches = []
    for _ in range(steps):
        one, worker = figures.step()
        batches.append((one, worker))

        def ask(one=one, worker=worker):
            return Window(one, worker, figures.workers)

        tuner._marks = tuner._marks or [Window(one, worker, figures.workers)]
        tuner._due = 0
        tuner.tune(figures, ask)
    return tuner


class Window:
    """Statistics whose difference to zero is one step."""

    batches = 100
    seconds = 1.0

    def __init__(self, one, worker, count):
        self.one, self.worker, self.count = one, worker, count

    def __getattr__(self, name):
        return getattr(self.one, name)

    def __sub__(self, earlier):
        workers = tuple(self.worker for _ in range(self.count))
        return type(self.one)(
            **{
                name: workers if name == "workers" else getattr(self.one, name)
                for name in type(self.one).__dataclass_fields__
            }
        )


def test_as_many_as_the_loop_needs():
    figures = Figures(work=0.1, loop=0.01)
    tuner = tune(figures)
    assert 10 <= figures.workers <= 12
    assert len(tuner.changes) <= 5


def test_no_more_than_cpus():
    figures = Figures(work=0.1, loop=0.001, cpus=4.0, uses_cpu=1.0)
    tune(figures)
    assert figures.workers == 4


def test_no_more_than_memory_or_the_limit(monkeypatch):
    for memory, workers in [(6 << 20, 4), (1 << 20, 2)]:
        monkeypatch.setattr(status, "memory_available", lambda memory=memory: memory)
        figures = Figures(work=0.1, loop=0.001)
        tune(figures, steps=3)
        assert figures.workers == workers
    monkeypatch.undo()
    figures = Figures(work=0.1, loop=0.001)
    tune(figures, most=8)
    assert figures.workers == 8


class Contended(Figures):
    """Two workers do all that can be done; more of them are busy, or idle, for nothing."""

    idle = 1

    def step(self):
        workers, self.workers = self.workers, 2
        one, worker = super().step()
        self.workers = workers
        worker = dataclasses.replace(worker, busy_seconds=worker.busy_seconds / self.idle)
        return dataclasses.replace(one, n_workers=workers), worker


def test_what_does_not_help_is_taken_back():
    figures = Contended(work=0.1, loop=0.01)
    tuner = tune(figures, steps=6)
    assert figures.workers == 2
    assert "that did not help" in tuner.changes[1]
    assert len(tuner.changes) == 2


def test_busy_workers_have_it_tried_again_sooner_but_ever_more_rarely():
    often, seldom = Contended(work=0.1, loop=0.01), Contended(work=0.1, loop=0.01)
    seldom.idle = 1.3  # 77 % busy
    assert len(tune(often, steps=20).changes) == 4
    assert len(tune(seldom, steps=20).changes) == 2
    assert len(tune(often, steps=400).changes) <= 24


def test_one_slow_window_decides_nothing():
    """Each third one holds an example that takes long: at its very rate more workers seem worse."""

    class Outliers(Figures):
        count = 0

        def step(self):
            self.count += 1
            usual, self.work = self.work, self.work * (2.5 if self.count % 3 == 2 else 1)
            found = super().step()
            self.work = usual
            return found

    figures = Outliers(work=0.1, loop=0.01)
    tuner = tune(figures)
    assert figures.workers >= 10
    assert not any("did not help" in change for change in tuner.changes[:2])


def test_a_bottleneck_that_moves_is_followed_before_a_change_is_taken_back():
    """Each worker that finds a batch to fetch works: more workers help only with more batches."""

    class Starved(Figures):
        def step(self):
            workers, self.workers = self.workers, min(self.workers, self.prefetch)
            one, worker = super().step()
            busy = worker.busy_seconds * self.workers / workers
            self.workers = workers
            worker = dataclasses.replace(worker, busy_seconds=busy)
            return dataclasses.replace(one, n_workers=workers), worker

    figures = Starved(work=0.1, loop=0.01)
    tuner = tune(figures, steps=60)
    assert figures.workers >= 8 and figures.prefetch >= 8
    assert not any("did not help" in change for change in tuner.changes[:4])


def test_few_for_a_loop_that_is_slower():
    figures = Figures(work=0.01, loop=0.1)
    figures.workers = 32
    tuner = tune(figures)
    assert 1 <= figures.workers <= 4
    assert all("workers" in change for change in tuner.changes)
    figures.workers = 32
    tune(figures, least=3)
    assert figures.workers == 3


def test_a_few_workers_too_many_stay_and_many_for_some_windows():
    figures = Figures(work=0.16, loop=0.1)  # three would be enough
    figures.workers = 4
    assert tune(figures).changes == []
    figures.work, figures.workers = 0.01, 32
    assert tune(figures, steps=3).changes == []
    assert len(tune(figures, steps=4).changes) == 1


def test_waits_for_workers_that_start():
    figures = Figures(work=0.1, loop=0.01)
    figures.steady = False
    assert tune(figures).changes == []


def test_limits():
    assert [most_workers(cpus) for cpus in (0.5, 2, 8, 128)] == [8, 8, 32, 128]
    assert [first_workers(cpus) for cpus in (0.5, 2, 128)] == [1, 2, 4]

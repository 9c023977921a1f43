"""The first steps of a worker, and its facts about itself: seen from outside."""

from __future__ import annotations

import functools
import os
import pickle
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from inside import have_begun, n_restarts
from outside import wait_until

import fastiter
from fastiter import get_worker_info

METHODS = ["fork", "spawn", "forkserver"]


def leave_mark(directory, number):
    """A worker_init: a file for each call, and what the dataset gives from then on."""
    info = get_worker_info()
    assert info.id == number
    assert len(info.dataset) == 40
    Told.number = number
    Path(directory, f"{number}-{os.getpid()}").touch()


class Told:
    """Examples that say who fetched them."""

    number = -1

    def __len__(self):
        return 40

    def __getitem__(self, i):
        info = get_worker_info()
        assert info.dataset is self
        return i, os.getpid(), self.number, info.id, info.num_workers, info.seed


class Deadly(Told):
    """Kills each worker at its first look at example 7, twice in all."""

    def __init__(self, directory):
        self.directory = directory

    def __getitem__(self, i):
        deaths = os.listdir(self.directory)
        if i == 7 and len(deaths) < 2:
            Path(self.directory, f"{len(deaths)}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


def calls(directory):
    """Counts of initialisations, by number."""
    return Counter(int(name.partition("-")[0]) for name in os.listdir(directory))


@pytest.mark.parametrize("method", METHODS)
def test_each_worker_is_initialised_and_knows_itself(make, tmp_path, method):
    init = functools.partial(leave_mark, str(tmp_path))
    iterator = make(Told(), 20, n_processes=3, worker_init=init, context=method)
    assert iterator.worker_init is init
    rows = next(iterator) + next(iterator)
    assert [row[0] for row in rows] == list(range(40))
    for _, pid, number, id_, count, _ in rows:
        assert number == id_
        assert count == 3
        assert (tmp_path / f"{number}-{pid}").exists()
    assert set(calls(tmp_path)) <= {0, 1, 2}
    seeds = {row[3]: row[5] for row in rows}
    assert len(set(seeds.values())) == len(seeds)
    assert get_worker_info() is None


def test_without_worker_processes_nothing_is_initialised():
    fetched = []

    class Noting(Told):
        def __getitem__(self, i):
            fetched.append((os.getpid(), get_worker_info()))
            return i

    arguments = {"n_processes": 0, "shuffle": False, "worker_init": fail}
    with fastiter.MultiprocessIterator(Noting(), 4, **arguments) as iterator:
        assert next(iterator) == [0, 1, 2, 3]
    assert fetched == [(os.getpid(), None)] * 4


def test_workers_that_replace_others_are_initialised(make, tmp_path):
    marks, deaths = tmp_path / "marks", tmp_path / "deaths"
    marks.mkdir()
    deaths.mkdir()
    init = functools.partial(leave_mark, str(marks))
    iterator = make(Deadly(str(deaths)), 20, worker_init=init)
    rows = next(iterator) + next(iterator)
    assert [row[0] for row in rows] == list(range(40))
    assert all(row[2] == row[3] for row in rows)
    assert sum(calls(marks).values()) >= 3
    seeds = {row[1]: row[5] for row in rows}
    assert len(set(seeds.values())) == len(seeds)


def test_workers_that_have_done_their_tasks_are_followed_by_initialised_ones(make, tmp_path):
    init = functools.partial(leave_mark, str(tmp_path))
    iterator = make(Told(), 4, maxtasksperchild=2, worker_init=init)
    rows = [row for _ in range(30) for row in next(iterator)]
    assert all(row[2] == row[3] for row in rows)
    assert sum(calls(tmp_path).values()) > 4


def fail(number):
    raise LookupError(f"no device for worker {number}")


def leave(number):
    sys.exit(3)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_what_it_raises_is_raised_by_next_each_time(make, method):
    iterator = make(Told(), 4, worker_init=fail, context=method)
    iterator.start()
    for _ in range(2):
        with pytest.raises(LookupError, match=r"no device for worker [01]") as caught:
            next(iterator)
        cause = str(caught.value.__cause__)
        assert "worker_init" in cause
        assert "in fail" in cause  # the worker's traceback


def test_a_worker_that_leaves_is_an_error(make):
    iterator = make(Told(), 4, worker_init=leave)
    with pytest.raises(fastiter.DatasetError, match=r"SystemExit"):
        next(iterator)


def test_a_worker_has_not_begun_before_it_ends(make, tmp_path):
    gate = tmp_path / "gate"
    iterator = make(Told(), 4, worker_init=lambda number: wait_until(gate.exists, "the gate opens"))
    iterator.start()
    assert not have_begun(iterator)
    gate.touch()
    wait_until(lambda: have_begun(iterator), "the workers have begun")


def test_workers_that_die_in_it_are_an_error_after_three_deaths_each_time(make):
    iterator = make(Told(), 4, worker_init=lambda number: os._exit(3))
    for n_deaths in (6, 12):
        with pytest.raises(fastiter.WorkerDiedError, match="before they have loaded the dataset"):
            next(iterator)
        assert n_restarts(iterator) == n_deaths


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_one_that_does_not_pickle_is_named(make, monkeypatch, method):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # as if it were not installed
    iterator = make(Told(), 4, worker_init=lambda number: None, context=method)
    with pytest.raises(TypeError, match=r"worker_init.*module level"):
        iterator.start()


def test_one_that_is_none(make):
    with pytest.raises(TypeError, match="worker_init"):
        make(Told(), 4, worker_init=3)


def test_copies_and_pickles_keep_it(make, tmp_path):
    init = functools.partial(leave_mark, str(tmp_path))
    iterator = pickle.loads(pickle.dumps(make(Told(), 4, worker_init=init)))
    assert all(row[2] == row[3] for row in next(iterator))
    iterator.finalize()


class Draws:
    """The next number of each global generator."""

    def __len__(self):
        return 400

    def __getitem__(self, i):
        return os.getpid(), random.random(), np.random.random_sample()


@pytest.mark.parametrize(("method", "claims"), [("fork", None), ("fork", 3), ("spawn", None)])
def test_no_worker_draws_what_another_has_drawn(make, method, claims):
    iterator = make(Draws(), 40, n_processes=2, maxtasksperchild=claims, context=method)
    rows = [row for _ in range(10) for row in next(iterator)]
    for column in (1, 2):
        assert len({row[column] for row in rows}) == len(rows)
    if claims is not None:
        assert len({row[0] for row in rows}) > 3


def take_over(number):
    np.random.seed(number)


@pytest.mark.no_stuck_rows("a worker that replaces another draws anew")
def test_its_own_seeds_last(make):
    iterator = make(Draws(), 40, n_processes=1, worker_init=take_over)
    expected = np.random.RandomState(0).random_sample(40)
    assert [row[2] for row in next(iterator)] == expected.tolist()

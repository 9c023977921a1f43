"""Rows that are only gathered are gathered by workers or by the caller, whichever is faster."""

from __future__ import annotations

import os

import numpy as np
import pytest

import fastiter
from fastiter._engine.choosing import GatherTrial
from fastiter.datasets import ArrowDataset, TupleDataset

N = 1000
OPTIONS = {"n_processes": 2, "context": "fork", "converter": fastiter.concat_examples}


def columns():
    return TupleDataset(np.arange(4 * N, dtype=np.int32).reshape(N, 4), np.arange(N))


def lists():
    pa = pytest.importorskip("pyarrow")
    offsets = pa.array(np.append(0, np.cumsum(np.arange(N) % 7)), pa.int32())
    values = pa.array(np.arange(offsets[-1].as_py()))
    return ArrowDataset(pa.table({"x": pa.ListArray.from_arrays(offsets, values)}), padding=-1)


def equal(found, expected):
    if isinstance(expected, (tuple, dict)):
        values = expected.values() if isinstance(expected, dict) else expected
        others = found.values() if isinstance(found, dict) else found
        return all(map(equal, others, values))
    return found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("make", [columns, lists])
def test_batches_and_states_are_the_same_wherever_they_are_gathered(make):
    """More batches than a trial begins with, so that both ways are taken."""
    order = fastiter.ShuffleOrderSampler
    options = {**OPTIONS, "order_sampler": order(1), "n_prefetch": 1}
    serial = fastiter.SerialIterator(
        make(), 7, order_sampler=order(1), converter=fastiter.concat_examples
    )
    with fastiter.MultiprocessIterator(make(), 7, **options) as iterator:
        for _ in range(600):
            assert equal(next(iterator), next(serial))
            assert iterator.step == serial.step and iterator.epoch == serial.epoch
        stats = iterator.stats()
        assert 0 < stats.gathered_here < stats.batches == 600
        assert f"{stats.gathered_here} batches by the caller" in str(stats)
        state = iterator.state_dict()
        iterator.load_state_dict(state)
        assert equal(next(iterator), next(serial))


def test_a_forked_child_is_refused_as_ever():
    with fastiter.MultiprocessIterator(columns(), 7, n_prefetch=1, **OPTIONS) as iterator:
        while not iterator.stats().gathered_here:
            next(iterator)
        pid = os.fork()
        if not pid:
            try:
                next(iterator)
            except RuntimeError as error:
                os._exit(7 if "iterate over a copy" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        next(iterator)


def test_all_batches_come_once_out_of_order():
    with fastiter.MultiprocessIterator(
        columns(), 5, in_order=False, n_prefetch=1, shuffle=False, **OPTIONS
    ) as iterator:
        for _ in range(3):
            rows = np.concatenate([next(iterator)[1] for _ in range(N // 5)])
            assert np.array_equal(np.sort(rows), np.arange(N)) and iterator.is_new_epoch
        assert iterator.stats().gathered_here


def test_examples_and_other_converters_are_left_to_workers():
    options = {**OPTIONS, "converter": lambda batch, device: os.getpid()}
    with fastiter.MultiprocessIterator(columns(), 7, n_prefetch=1, **options) as iterator:
        assert os.getpid() not in {next(iterator) for _ in range(300)}
        assert not iterator.stats().gathered_here


class Loop:
    """The clock of a loop whose ``next()`` takes the given times, by workers and in the caller."""

    def __init__(self, workers, caller):
        self.took = {False: workers, True: caller}
        self.batches = 0
        self.seconds = 0.0

    def read(self):
        return 0.0, self.seconds, 0.0, 0.0, 0.0

    def run(self, trial, n):
        """Number of n batches that the caller has gathered."""
        here = 0
        for _ in range(n):
            trial.n_left -= 1
            if trial.n_left < 0:
                trial.end_round(self, 2)
            here += trial.in_caller
            self.batches += 1
            self.seconds += self.took[trial.in_caller]
        return here


def test_the_faster_way_is_taken_and_a_change_is_noticed():
    loop, trial = Loop(workers=2e-5, caller=1e-5), GatherTrial()
    loop.run(trial, 2000)
    assert trial.in_caller and len(trial.changes) == 1 and "10 us in next()" in trial.changes[0]
    assert loop.run(trial, 100_000) > 95_000  # trials are rare
    loop.took = {False: 1e-5, True: 2e-5}
    loop.run(trial, 100_000)
    assert not trial.in_caller and len(trial.changes) == 2
    assert loop.run(trial, 100_000) < 5_000


def test_a_way_that_has_become_slow_is_left_at_once():
    loop, trial = Loop(workers=2e-5, caller=1e-5), GatherTrial()
    loop.run(trial, 100_000)  # the next trial is far away
    loop.took = {False: 2e-5, True: 9e-5}
    assert loop.run(trial, 1000) < 500
    assert not trial.in_caller


def test_workers_go_on_unless_the_caller_is_clearly_faster():
    loop, trial = Loop(workers=1e-5, caller=0.98e-5), GatherTrial()
    assert 0 < loop.run(trial, 100_000) < 6_000
    assert not trial.in_caller and not trial.changes

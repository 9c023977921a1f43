"""hedge=: rows that are slow are fetched by a second worker, and what ends first is delivered."""

from __future__ import annotations

import os
import random
import signal
import time
import uuid

import numpy as np
import pytest
from outside import wait_until, workers

from fastiter import ShuffleOrderSampler, concat_examples
from fastiter.random import example_rng


class Slow:
    """Pairs of an array and the index; rows of `slow` take long at their first touch."""

    def __init__(self, rows, slow, folder, how="sleep"):
        self.rows, self.slow, self.folder, self.how = rows, set(slow), folder, how

    def __len__(self):
        return self.rows

    def touch(self, index):
        """Whether this is the first fetch of the index. Each leaves a file."""
        first = self.folder / f"{index}.first"
        try:
            first.touch(exist_ok=False)
        except FileExistsError:
            (self.folder / f"{index}.{os.getpid()}.{uuid.uuid4().hex}").touch()
            return False
        return True

    def __getitem__(self, index):
        index = int(index)
        if self.touch(index) and index in self.slow:
            if self.how == "fail":
                time.sleep(0.3)
                raise OSError("too late")
            if self.how == "die":
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60 if self.how == "hang" else 0.3)
        return np.full(5, index, np.int64), index


class SlowCalls(Slow):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Texts(Slow):
    """Rows that fit no column."""

    def __getitem__(self, index):
        return {"index": str(Slow.__getitem__(self, index)[1])}


class Random(Slow):
    def __getitem__(self, index):
        values = example_rng().random(), np.random.random(), random.random()
        return np.array([Slow.__getitem__(self, index)[1], *values])


def indices(batches):
    for batch in batches:
        for array, index in batch:
            assert (array == index).all()
    return [index for batch in batches for _, index in batch]


@pytest.mark.parametrize("how", ["sleep", "fail", "die", "hang"])
@pytest.mark.parametrize("kind", [Slow, SlowCalls])
def test_slow_rows_are_fetched_twice_and_written_once(make, tmp_path, kind, how):
    """The second fetch ends first and is delivered; that the first one fails, dies or never ends
    tells nobody anything."""
    slow = {3, 21, 40, 58}
    iterator = make(
        kind(64, slow, tmp_path, how), 8, n_processes=6, repeat=False, shuffle=False, hedge=1
    )
    kept = list(iterator)
    assert indices(kept) == list(range(64))
    stats = iterator.stats()
    assert stats.errors == 0
    assert 4 <= stats.won <= stats.hedged <= 64
    fetched = [path.name.split(".")[0] for path in tmp_path.iterdir()]
    assert set(fetched) == {str(index) for index in range(64)}
    for index in slow:
        assert fetched.count(str(index)) >= 2
    begun = time.monotonic()
    iterator.finalize()
    assert time.monotonic() - begun < 30
    assert indices(kept) == list(range(64))  # whatever the slow ones did later
    assert workers() == set()


def test_a_share_of_the_rows_is_hedged(make, tmp_path):
    iterator = make(
        Slow(40, range(20), tmp_path), 8, n_processes=8, repeat=False, shuffle=False, hedge=0.05
    )
    assert indices(list(iterator)) == list(range(40))
    assert iterator.stats().hedged <= 2  # 0.05 x 40
    assert len(list(tmp_path.iterdir())) <= 40 + 2


def test_random_numbers_and_converters_are_as_without(make, tmp_path):
    epochs = []
    for number, hedge in enumerate([None, 0.5]):
        folder = tmp_path / str(number)
        folder.mkdir()
        iterator = make(
            Random(48, {5, 20, 33}, folder),
            8,
            n_processes=5,
            repeat=False,
            shuffle=None,
            order_sampler=ShuffleOrderSampler(7),
            seed_examples=True,
            hedge=hedge,
            converter=concat_examples,
        )
        epochs.append(list(iterator))
        assert (iterator.stats().won > 0) == (hedge is not None)
    np.testing.assert_array_equal(epochs[0], epochs[1])


def test_rows_without_columns(make, tmp_path):
    iterator = make(
        Texts(32, {2, 17}, tmp_path), 8, n_processes=4, repeat=False, shuffle=False, hedge=0.5
    )
    found = [example["index"] for batch in iterator for example in batch]
    assert found == [str(index) for index in range(32)]
    assert iterator.stats().won >= 2


def test_resets_amid_hedges(make, tmp_path):
    iterator = make(
        Slow(4000, range(0, 4000, 7), tmp_path), 8, n_processes=5, shuffle=False, hedge=1
    )
    for _ in range(5):
        assert indices([next(iterator)]) == list(range(8))
        iterator.reset()
    snapshot = iterator.state_dict()
    following = indices([next(iterator)])
    iterator.load_state_dict(snapshot)
    assert indices([next(iterator)]) == following


def test_hung_rows_that_were_won_cost_no_worker(make, tmp_path):
    """With 'retry' the losers that hang are ended, and their end counts for nothing."""
    iterator = make(
        Slow(64, {3, 21, 40, 58}, tmp_path, "hang"),
        8,
        n_processes=5,
        repeat=False,
        shuffle=False,
        hedge=0.5,
        on_timeout="retry",
        dataset_timeout=1,
        n_retries=0,
    )
    assert indices(list(iterator)) == list(range(64))
    wait_until(lambda: iterator._pool.look() or iterator.stats().timeouts >= 4, "losers are ended")
    stats = iterator.stats()
    assert (stats.deaths, stats.errors) == (0, 0)


def test_the_trace_shows_attempts(make, tmp_path):
    iterator = make(
        Slow(32, {10}, tmp_path), 8, n_processes=4, repeat=False, shuffle=False, hedge=0.5
    )
    lanes = iterator._worker_traces
    with iterator.trace() as trace:
        assert indices(list(iterator)) == list(range(32))
        wait_until(  # not for one of the others, which may be late on a busy machine
            lambda: any(
                kind == "lost" and index == 10
                for lane in lanes().values()
                for kind, _, _, index, *_ in lane
            ),
            "the loser has ended",
        )
    events = [event for event in trace.events() if event.get("args", {}).get("index") == 10]
    assert {"hedge", "lost"} <= {event["name"] for event in events}
    assert len({event["tid"] for event in events}) == 2


@pytest.mark.parametrize(
    ("hedge", "error"), [(0, ValueError), (1.5, ValueError), ("5 %", TypeError), (True, TypeError)]
)
def test_a_share_is_a_number(make, hedge, error):
    with pytest.raises(error, match="hedge must be"):
        make(list(range(4)), 2, hedge=hedge)


def test_the_argument_is_kept(make):
    assert make(list(range(4)), 2, hedge=0.05).hedge == 0.05
    assert make(list(range(4)), 2).hedge is None

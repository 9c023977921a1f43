"""hedge=: rows that are slow are fetched by a second worker, and what ends first is delivered."""

from __future__ import annotations

import os
import random
import signal
import time
import uuid

import numpy as np
import pytest
from inside import executor_of, pool_of
from outside import wait_until, workers

from fastiter import ShuffleOrderSampler, WorkerDiedError, concat_examples
from fastiter._workers.crash_counts import MOST_DEATHS
from fastiter.random import example_rng


class Slow:
    """Pairs of an array and the index. Of the rows of `slow` the first fetch takes long, or
    (`how` is another than "sleep") ends when the row has been delivered."""

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
            if self.how in ("sleep", "hang"):
                time.sleep(60 if self.how == "hang" else 0.3)
            else:
                wait_until((self.folder / f"delivered.{index}").exists, f"{index} is delivered")
            if self.how == "fail":
                raise OSError("too late")
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
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


def delivered(iterator, folder, index_of=lambda example: example[1]):
    """All batches; the rows of each leave files."""
    batches = []
    for batch in iterator:
        for example in batch:
            (folder / f"delivered.{int(index_of(example))}").touch()
        batches.append(batch)
    return batches


def indices(batches):
    for batch in batches:
        for array, index in batch:
            assert (array == index).all()
    return [index for batch in batches for _, index in batch]


@pytest.mark.parametrize("how", ["return", "fail", "die", "hang"])
@pytest.mark.parametrize("kind", [Slow, SlowCalls])
def test_slow_rows_are_fetched_twice_and_written_once(make, tmp_path, kind, how):
    """The second fetch ends first and is delivered; that the first one fails, dies or never ends
    tells nobody anything. On a busy machine a hedger may touch a row before whom it hedges, whose
    fetch is then the second one, and nothing is won."""
    slow = {3, 21, 40, 58}
    iterator = make(
        kind(64, slow, tmp_path, how), 8, n_processes=6, repeat=False, shuffle=False, hedge=1
    )
    kept = delivered(iterator, tmp_path)
    assert indices(kept) == list(range(64))
    stats = iterator.stats()
    assert stats.errors == 0
    assert 4 <= stats.hedged <= 64 and 0 < stats.won <= stats.hedged
    fetched = [path.name.split(".")[0] for path in tmp_path.glob("[0-9]*")]
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
            Random(48, {5, 20, 33}, folder, "return" if hedge else "sleep"),
            8,
            n_processes=5,
            repeat=False,
            shuffle=None,
            order_sampler=ShuffleOrderSampler(7),
            seed_examples=True,
            hedge=hedge,
            converter=concat_examples,
        )
        epochs.append(delivered(iterator, folder, lambda example: example[0]))
        assert (iterator.stats().hedged > 0) == (hedge is not None)
    np.testing.assert_array_equal(epochs[0], epochs[1])


def test_rows_without_columns(make, tmp_path):
    iterator = make(
        Texts(32, {2, 17}, tmp_path, "return"),
        8,
        n_processes=4,
        repeat=False,
        shuffle=False,
        hedge=0.5,
    )
    batches = delivered(iterator, tmp_path, lambda example: example["index"])
    found = [example["index"] for batch in batches for example in batch]
    assert found == [str(index) for index in range(32)]
    assert iterator.stats().hedged >= 2


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
    wait_until(
        lambda: pool_of(iterator).check() or iterator.stats().timeouts >= 4, "losers are ended"
    )
    stats = iterator.stats()
    assert (stats.deaths, stats.errors) == (0, 0)


class Deadly:
    """Its indices, at once; row 700 takes a while and then kills its worker, always."""

    def __init__(self, pids):
        self.pids = pids

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        if index == 700:
            (self.pids / f"{os.getpid()}").touch()
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_row_that_kills_those_who_hedge_it_is_given_up(make, tmp_path):
    """Cheap rows are not promised by their word: a worker that dies of one which somebody else has
    taken over leaves no trace. Each such death goes with one that counts for the index."""
    iterator = make(Deadly(tmp_path), 256, n_processes=4, shuffle=False, hedge=1)
    for _ in range(2):
        following = [next(iterator) for _ in range(2)]
        with pytest.raises(WorkerDiedError, match="index 700 has killed"):
            next(iterator)
        following += [next(iterator) for _ in range(13)]
        expected = [index for index in range(4096) if not 512 <= index < 768]
        assert [index for batch in following for index in batch] == expected
    assert iterator.stats().hedged >= 1
    died = len(list(tmp_path.iterdir()))
    assert MOST_DEATHS + 1 <= died <= 2 * (MOST_DEATHS + 1)  # in the second epoch one is enough


def test_the_trace_shows_attempts(make, tmp_path):
    iterator = make(
        Slow(32, {10}, tmp_path, "return"), 8, n_processes=4, repeat=False, shuffle=False, hedge=0.5
    )
    lanes = executor_of(iterator).traces

    def attempts():
        return {kind for lane in lanes().values() for kind, _, _, index, *_ in lane if index == 10}

    with iterator.trace() as trace:
        assert indices(delivered(iterator, tmp_path)) == list(range(32))
        wait_until(  # not for one of the others, which may be late on a busy machine
            lambda: attempts() >= {"hedge", "lost"},
            "both attempts have ended",
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


@pytest.mark.no_stuck_rows("it is given then")
def test_the_argument_is_kept(make):
    assert make(list(range(4)), 2, hedge=0.05).hedge == 0.05
    assert make(list(range(4)), 2).hedge is None

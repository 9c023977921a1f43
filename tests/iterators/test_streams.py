"""`StreamDataset`: one order for any workers, ranks and batch sizes, and states inside of it."""

from __future__ import annotations

import codecs
import contextlib
import copy
import itertools
import json
import os
import pickle
import signal
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw_examples
from hypothesis import given
from hypothesis import strategies as st
from support.serializers import Loader, Saver

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator, concat_examples
from fastiter.datasets import StreamDataset

SIZES = [40, 3, 0, 100, 1, 17, 0, 64, 33, 5, 2, 71]


def numbers(shard: int) -> Iterator[tuple[int, int]]:
    for i in range(SIZES[shard]):
        yield shard, i


def stream(**arguments: Any) -> StreamDataset:
    return StreamDataset(range(len(SIZES)), numbers, **{"seed": 5, **arguments})


def rows_of(iterator: Any, n_batches: int) -> list[Any]:
    return [row for _ in range(n_batches) for row in next(iterator)]


KINDS = {
    "serial": (SerialIterator, {}),
    "threads": (MultithreadIterator, {"n_threads": 3, "n_prefetch": 3}),
    "processes": (MultiprocessIterator, {"n_processes": 2, "n_prefetch": 2, "context": "fork"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": None},
        {"interleave": 4},
        {"interleave": 3, "window": 50},
        {"interleave": 99, "window": 5000, "lengths": SIZES},
    ],
    ids=str,
)
def test_the_order_is_the_same_for_all_kinds(kind: str, arguments: dict[str, Any]) -> None:
    dataset, n = stream(**arguments), sum(SIZES)
    expected = rows_of(SerialIterator(dataset, 1), 3 * n)
    every = sorted(row for shard in range(len(SIZES)) for row in numbers(shard))
    for epoch in range(3):
        assert sorted(expected[epoch * n : (epoch + 1) * n]) == every
    assert (expected[:n] == every) is ("seed" in arguments)
    iterator_class, settings_of = KINDS[kind]
    iterator = iterator_class(dataset, 10, **settings_of)
    assert rows_of(iterator, 3 * n // 10) == expected[: 3 * n // 10 * 10]
    iterator.finalize()


@draw_examples(60)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any),
    st.integers(1, 5),
    st.sampled_from([1, 2, 7, 100]),
    st.booleans(),
    st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([1, 2, 3, 5]),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(0, 12),
)
def test_ranks_and_batch_sizes_may_change_anywhere(
    sizes: list[int],
    interleave: int,
    window: int,
    is_known: bool,
    before: int,
    after: int,
    size: int,
    later_size: int,
    cut: int,
) -> None:
    dataset = StreamDataset(
        range(len(sizes)),
        lambda shard: iter([(shard, i) for i in range(sizes[shard])]),
        seed=1,
        interleave=interleave,
        window=window,
        lengths=sizes if is_known else None,
    )
    expected = rows_of(SerialIterator(dataset, 1), cut * before * size + 9 * after * later_size)
    found, states = [], []
    first = [SerialIterator(dataset, size, rank=r, num_ranks=before) for r in range(before)]
    for _ in range(cut):
        found += [row for iterator in first for row in next(iterator)]
    states = [iterator.state_dict() for iterator in first]
    assert all(state == states[0] for state in states)
    then = [SerialIterator(dataset, later_size, rank=r, num_ranks=after) for r in range(after)]
    for iterator in then:
        iterator.load_state_dict(json.loads(json.dumps(states[0])))
        assert iterator.epoch_detail == first[0].epoch_detail
    for _ in range(9):
        found += [row for iterator in then for row in next(iterator)]
    assert found == expected


@pytest.mark.parametrize("kind", ["serial", "threads"])
@pytest.mark.parametrize("window", [1, 30])
@pytest.mark.parametrize("lengths", [None, SIZES])
@pytest.mark.parametrize("tail", ["pad", "mask", "drop"])
def test_an_epoch_ends_with_a_step_of_all_ranks(
    tail: Any, lengths: list[int] | None, window: int, kind: str
) -> None:
    iterator_class, settings_of = KINDS[kind]
    dataset, n = stream(interleave=3, lengths=lengths, window=window), sum(SIZES)
    expected = rows_of(SerialIterator(dataset, 1), n)
    batches = []
    for rank in range(5):
        with iterator_class(
            dataset, 7, repeat=False, rank=rank, num_ranks=5, tail=tail, **settings_of
        ) as iterator:
            batches.append([(batch, iterator.valid) for batch in iterator])
            assert iterator.is_new_epoch
            assert iterator.epoch == 1
    m = n % 35
    share = m // 5 if tail == "drop" else -(-m // 5)
    assert [len(each) for each in batches] == [n // 35 + (share > 0)] * 5
    rows = [row for step in zip(*batches, strict=True) for batch, _ in step for row in batch]
    n_filled = share * 5 - m
    assert rows == (expected + expected[:n_filled] if n_filled >= 0 else expected[:n_filled])
    valid = [flag for step in zip(*batches, strict=True) for _, flags in step for flag in flags]
    assert valid == [tail != "mask" or i < n for i in range(len(rows))]


def test_each_loop_is_another_epoch_and_drop_last_leaves_out_the_rest() -> None:
    dataset, n = stream(interleave=2), sum(SIZES)
    expected = rows_of(SerialIterator(dataset, 1), 2 * n)
    iterator = SerialIterator(dataset, 50, repeat=False, drop_last=True)
    for epoch in range(2):
        whole = n // 50 * 50
        assert list(itertools.chain(*iterator)) == expected[epoch * n :][:whole]
    endless = SerialIterator(dataset, 50, drop_last=True)
    for epoch in range(2):
        assert rows_of(endless, n // 50) == expected[epoch * n :][:whole]
        assert (endless.epoch, endless.is_new_epoch) == (epoch + 1, True)
    with pytest.raises(ValueError, match=rf"an epoch of {n} examples has no full batch"):
        next(SerialIterator(dataset, n + 1, drop_last=True))


@pytest.mark.parametrize("window", [1, 3, 50, 5000])
@pytest.mark.parametrize("arguments", [{"drop_last": True}, {"tail": "drop", "repeat": False}])
def test_an_epoch_ends_with_its_last_step_if_what_is_left_is_dropped(
    window: int, arguments: dict[str, Any]
) -> None:
    n_ranks, size = 5, 7
    ranks = [
        SerialIterator(stream(window=window), size, rank=rank, num_ranks=n_ranks, **arguments)
        for rank in range(n_ranks)
    ]
    n_full, left = divmod(sum(SIZES), n_ranks * size)
    n_steps = n_full + (left >= n_ranks and "tail" in arguments)
    for iterator in ranks:
        ends = [iterator.is_new_epoch for _ in range(n_steps) if next(iterator)]
        assert ends == [False] * (n_steps - 1) + [True] and iterator.epoch == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_epochs_first_example_may_be_another_ranks(kind: str) -> None:
    make, more = KINDS[kind]

    def open_shard(shard: int) -> list[int]:
        return list(range(23))

    def on_rank(rank: int, num_ranks: int, size: int, which: Any, **options: Any) -> Any:
        only = StreamDataset(range(1), open_shard, lengths=[23])
        return which(only, size, rank=rank, num_ranks=num_ranks, **options)

    rows = rows_of(on_rank(0, 1, 4, SerialIterator), 12)
    for rank in range(2):
        with on_rank(rank, 2, 2, make, **more) as iterator:
            for k in range(12):
                start = 4 * k + 2 * rank
                assert next(iterator) == rows[start : start + 2]


def test_a_stream_has_no_length_and_no_addresses() -> None:
    dataset = stream()
    iterator = SerialIterator(dataset, 2)
    for ask in (
        lambda: len(dataset),
        lambda: len(iterator),
        lambda: iterator.step,
        lambda: iterator.address,
        lambda: iterator.batch_at(0),
        lambda: iterator.seek(0),
    ):
        with pytest.raises(TypeError, match=r"StreamDataset"):
            ask()
    for argument in (
        {"shuffle": True},
        {"skip_steps": [(0, 1)]},
    ):
        with pytest.raises(ValueError, match=rf"{next(iter(argument))}.*StreamDataset"):
            SerialIterator(dataset, 2, **argument)
    with pytest.raises(ValueError, match=r"batch_sampler.*StreamDataset"):
        SerialIterator(dataset, batch_sampler=lambda epoch: [])
    with pytest.raises(ValueError, match="hedge needs"):
        MultiprocessIterator(dataset, 2, hedge=0.05)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"shards": "abc"}, TypeError),
        ({"shards": []}, ValueError),
        ({"shards": ["a", "b", "a"]}, ValueError),
        ({"open_shard": None}, TypeError),
        ({"open_shard": 3}, TypeError),
        ({"window": 0}, ValueError),
        ({"window": 2}, ValueError),
        ({"interleave": 0}, ValueError),
        ({"lengths": [1]}, ValueError),
        ({"lengths": [0, 0]}, ValueError),
        ({"seed": -1}, ValueError),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    given_: dict[str, Any] = {"shards": ["a", "b"], "open_shard": list, **arguments}
    with pytest.raises(error, match=r"shards|open_shard|window|interleave|lengths|seed"):
        StreamDataset(given_.pop("shards"), given_.pop("open_shard"), **given_)


def test_epoch_detail_counts_shards() -> None:
    dataset = StreamDataset(list("abcd"), lambda shard: range(5))
    iterator = SerialIterator(dataset, 4)
    details = []
    for _ in range(6):
        next(iterator)
        details.append(iterator.epoch_detail)
    assert details == [0, 0.25, 0.5, 0.75, 1, 1]


class _Seeking:
    """A source that notes what was taken."""

    def __init__(self, shard: int) -> None:
        self.shard, self.at = shard, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 1000:
            TAKEN.append(self.at)
            self.at += 1
            yield self.at - 1


class _BySeek(_Seeking):
    def seek(self, n: int) -> None:
        self.at = n


class _ByState(_Seeking):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


TAKEN: list[int] = []


@pytest.mark.parametrize("source", [_Seeking, _BySeek, _ByState])
def test_a_source_that_can_is_not_read_again_from_its_start(source: Any) -> None:
    iterator = SerialIterator(StreamDataset(range(3), source), 10)
    rows_of(iterator, 70)
    state = json.loads(json.dumps(iterator.state_dict()))
    TAKEN.clear()
    other = SerialIterator(StreamDataset(range(3), source), 10)
    other.load_state_dict(state)
    assert next(other) == list(range(700, 710))
    assert min(TAKEN) == 0 if source is _Seeking else min(TAKEN) >= 600


def test_sequences_are_not_read_again_either() -> None:
    class Rows(list):  # type: ignore[type-arg]
        def __getitem__(self, i: Any) -> Any:
            TAKEN.append(i)
            return super().__getitem__(i)

    TAKEN.clear()
    iterator = SerialIterator(StreamDataset(range(2), lambda shard: Rows(range(1000))), 8)
    rows_of(iterator, 100)
    other = copy.copy(iterator)
    TAKEN.clear()
    assert next(other) == list(range(800, 808))
    assert min(TAKEN) == 800


@pytest.mark.parametrize("interleave", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_each_shard_is_opened_once_in_an_epoch(kind: str, interleave: int, tmp_path: Path) -> None:
    """Also where parts behind its end, or its failure, are asked for before that is known."""

    def open_shard(shard: int) -> Iterator[int]:
        with open(tmp_path / str(shard), "a") as note:
            note.write("x")
        yield from range(64 + shard)
        if shard == 1:
            raise OSError

    cls, arguments = KINDS[kind]
    dataset = StreamDataset(range(3), open_shard, interleave=interleave)
    with cls(dataset, 8, repeat=False, on_error="skip", **arguments) as iterator:
        assert sum(map(len, iterator)) == 195
    assert [(tmp_path / str(shard)).read_text() for shard in range(3)] == ["x"] * 3


def test_a_file_is_read_by_lines(tmp_path: Path) -> None:
    """Its ``seek`` counts bytes."""
    for name in "ab":
        (tmp_path / name).write_text("".join(f"{name}{i}\n" for i in range(100)))
    dataset = StreamDataset([tmp_path / "a", tmp_path / "b"], open, interleave=2)
    iterator = SerialIterator(dataset, 10)
    rows_of(iterator, 7)
    other = SerialIterator(dataset, 10)
    other.load_state_dict(iterator.state_dict())
    assert next(other) == [f"{name}{i}\n" for i in range(35, 40) for name in "ab"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_raises_is_told_and_ended(kind: str) -> None:
    def open_shard(shard: int) -> Iterator[tuple[int, int]]:
        for i in range(20):
            if (shard, i) == (2, 7):
                raise OSError(f"broken at {i}")
            yield shard, i
        if shard == 3:
            raise StopIteration

    iterator_class, settings_of = KINDS[kind]
    dataset = StreamDataset(range(5), open_shard, interleave=2)
    iterator = iterator_class(dataset, 6, repeat=False, **settings_of)
    rows, errors = [], []
    while len(errors) < 3:
        try:
            rows += next(iterator)
        except StopIteration:
            break
        except Exception as error:
            errors.append(error)
            state = iterator.state_dict()
    assert sorted(rows) == [(s, i) for s in range(5) for i in range(7 if s == 2 else 20)]
    assert [type(error) for error in errors] == [OSError, RuntimeError]
    notes = [f"{getattr(error, '__notes__', '')}{error.__cause__}" for error in errors]
    assert "shard 2, example 7" in notes[0]
    if hasattr(errors[1], "add_note"):  # Python 3.10 has none, and the cause is taken
        assert "shard 3, example 20" in notes[1]
    assert state["epoch"] == 0
    iterator.finalize()


def test_a_shard_with_another_length_is_told() -> None:
    for lengths, place, message in (
        ([3, 4], "shard 'b', example 3", "only 3 examples.*says 4"),
        ([2, 3], "shard 'a', example 2", "more.*says 2"),
    ):
        dataset = StreamDataset(["a", "b"], lambda shard: iter(range(3)), lengths=lengths)
        iterator = SerialIterator(dataset, 2, repeat=False)
        rows: list[int] = []
        with pytest.raises(ValueError, match=message) as caught:
            for batch in iterator:
                rows += batch
        assert place in f"{getattr(caught.value, '__notes__', '')}{caught.value.__cause__}"
        for batch in iterator:
            rows += batch
        assert rows == [*range(min(3, lengths[0])), *range(3)]


def test_a_shard_fails_again_where_a_state_from_before_was_loaded() -> None:
    def open_shard(shard: int) -> Iterator[int]:
        yield from range(10)
        raise OSError(shard)

    iterator = SerialIterator(StreamDataset(range(2), open_shard), 4, repeat=False)
    state = iterator.state_dict()
    for _ in range(2):
        iterator.load_state_dict(state)
        assert rows_of(iterator, 2) == [*range(8)]
        with pytest.raises(OSError, match="0"):
            next(iterator)


def test_what_a_shard_gives_counts_after_a_state_was_loaded() -> None:
    """Also within a window that had been shuffled without the examples behind a failure."""
    fails = [True]

    def open_shard(shard: int) -> Iterator[int]:
        for i in range(10):
            if i == 5 and fails[0]:
                raise OSError(shard)
            yield i

    dataset = StreamDataset(range(1), open_shard, seed=1, window=10)
    iterator = SerialIterator(dataset, 5, repeat=False, on_error="skip", skip_limit=None)
    state = iterator.state_dict()
    assert sorted(next(iterator)) == [*range(5)]
    fails[0] = False
    iterator.load_state_dict(state)
    assert sorted(rows_of(iterator, 2)) == [*range(10)] and not iterator.skipped


def test_shards_that_are_left_in_their_midst_are_closed() -> None:
    opened: list[Iterator[int]] = []

    def open_shard(shard: int) -> Iterator[int]:
        def examples() -> Iterator[int]:
            try:
                yield from range(1000)
            finally:
                is_open.remove(shard)

        is_open.append(shard)
        opened.append(examples())  # which would close it, if nothing had it
        return opened[-1]

    is_open: list[int] = []
    iterator = SerialIterator(StreamDataset(range(3), open_shard, interleave=2), 4)
    for _ in range(20):
        next(iterator)
        iterator.reset()
    assert len(opened) == 40 and len(is_open) <= 5


def test_an_epoch_without_examples_is_an_error() -> None:
    iterator = SerialIterator(StreamDataset([1, 2], lambda shard: ()), 2)
    with pytest.raises(ValueError, match=r"all 2 shards has no example"):
        next(iterator)


def test_with_lengths_a_rank_takes_only_what_is_its_own() -> None:
    class Rows(list):  # type: ignore[type-arg]
        def __getitem__(self, i: Any) -> Any:
            TAKEN.append(i)
            return super().__getitem__(i)

    TAKEN.clear()
    dataset = StreamDataset(
        range(4), lambda shard: Rows(range(100)), seed=1, window=64, interleave=2, lengths=[100] * 4
    )
    for rank in range(4):
        taken = len(TAKEN)
        iterator = SerialIterator(dataset, 5, repeat=False, rank=rank, num_ranks=4)
        assert sum(len(next(iterator)) for _ in range(10)) == 50
        other = copy.copy(iterator)  # whose examples do not follow from where the first one is
        assert sum(map(len, iterator)) == 50
        assert len(TAKEN) - taken <= 110
        taken = len(TAKEN)
        assert sum(map(len, other)) == 50
        assert len(TAKEN) - taken <= 110


def test_examples_that_were_delivered_are_forgotten_where_ranks_look_ahead() -> None:
    class Example:
        pass

    living: weakref.WeakSet[Example] = weakref.WeakSet()

    def open_shard(shard: int) -> Iterator[Example]:
        for _ in range(500):
            example = Example()
            living.add(example)
            yield example

    dataset = StreamDataset(range(4), open_shard, lengths=[500] * 4)
    iterator = SerialIterator(dataset, 5, repeat=False, rank=0, num_ranks=2)
    assert max(len(living) for _ in iterator) < 200


def test_a_state_of_another_stream_is_refused() -> None:
    state = SerialIterator(stream(), 2).state_dict()
    for arguments, name in (({"seed": 6}, "seed"), ({"interleave": 3}, "interleave")):
        with pytest.raises(ValueError, match=name):
            SerialIterator(stream(**arguments), 2).load_state_dict(state)
    with pytest.raises(ValueError, match=r"n_shards is 12, here it is 2"):
        SerialIterator(StreamDataset([1, 2], numbers), 2).load_state_dict(state)
    with pytest.raises(ValueError, match=r"StreamDataset"):
        SerialIterator(stream(), 2).load_state_dict(SerialIterator(range(9), 2).state_dict())
    damaged = {**state, "stream": {**state["stream"], "lanes": [[50, 1]]}}
    with pytest.raises(ValueError, match=r"'stream' cannot be read"):
        SerialIterator(stream(), 2).load_state_dict(damaged)


@pytest.mark.parametrize("kind", KINDS)
def test_serializers_copies_and_pickles_go_on(kind: str) -> None:
    iterator_class, settings_of = KINDS[kind]
    dataset = stream(interleave=3, window=20)
    iterator = iterator_class(dataset, 8, **settings_of)
    rows_of(iterator, 21)
    saver = Saver()
    iterator.serialize(saver)
    others = [copy.copy(iterator), pickle.loads(pickle.dumps(iterator))]
    others.append(iterator_class(dataset, 8, **settings_of))
    others[-1].serialize(Loader(saver.stored))
    expected = rows_of(iterator, 30)
    for other in [*others, iterator]:
        if other is iterator:
            other.load_state_dict(saver.stored)
        assert rows_of(other, 30) == expected
        other.finalize()


def test_batches_are_converted_in_the_caller() -> None:
    dataset = StreamDataset(range(3), lambda shard: np.full((5, 2), shard))
    iterator = SerialIterator(dataset, 4, converter=concat_examples)
    np.testing.assert_array_equal(next(iterator), np.zeros((4, 2)))
    np.testing.assert_array_equal(next(iterator)[:, 0], [0, 1, 1, 1])


def test_an_interrupt_within_a_shard_loses_nothing() -> None:
    calls = itertools.count()

    def open_shard(shard: int) -> Iterator[tuple[int, int]]:
        for row in numbers(shard):
            if next(calls) in (22, 23, 90, 91, 200, 230):
                raise KeyboardInterrupt
            yield row

    iterator = SerialIterator(stream(window=1), 6)
    expected = rows_of(iterator, 30)
    broken = SerialIterator(StreamDataset(range(len(SIZES)), open_shard, seed=5), 6)
    rows: list[Any] = []
    n_interrupts = 0
    while len(rows) < len(expected):
        try:
            rows += next(broken)
        except KeyboardInterrupt:
            n_interrupts += 1
    assert rows == expected
    assert n_interrupts == 6


def test_a_worker_that_is_killed_is_replaced() -> None:
    dataset = stream(interleave=4)
    expected = rows_of(SerialIterator(dataset, 8), 120)
    iterator = MultiprocessIterator(dataset, 8, n_processes=3, context="fork")
    rows: list[Any] = []
    for step in range(120):
        rows += next(iterator)
        if step % 40 == 20:
            worker = iterator.stats().workers[step % 3]
            os.kill(worker.pid, signal.SIGKILL)
    assert rows == expected
    assert iterator.stats().deaths >= 1
    iterator.finalize()


def test_an_example_that_kills_its_workers_ends_its_shard() -> None:
    def open_shard(shard: int) -> Iterator[tuple[int, int]]:
        for row in numbers(shard):
            if row == (3, 50):
                os._exit(3)
            yield row

    dataset = StreamDataset(range(len(SIZES)), open_shard)
    iterator = MultiprocessIterator(dataset, 10, repeat=False, n_processes=2, context="fork")
    rows: list[Any] = []
    with pytest.raises(Exception, match=r"shard 3, example \d+ or after"):
        for batch in iterator:
            rows += batch
    for batch in iterator:
        rows += batch
    assert len(rows) >= sum(SIZES) - 100 + 20
    iterator.finalize()


# -- files that are wrapped, shards that are told apart, other iterators ---------------------------


def _in_codecs(path: str) -> Any:
    return codecs.open(path, encoding="utf8")


def _in_tempfile(path: str) -> Any:
    copied = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115
    copied.write(Path(path).read_text())
    copied.seek(0)
    return copied


@pytest.mark.filterwarnings("ignore:codecs.open:DeprecationWarning")
@pytest.mark.parametrize("opener", [open, _in_codecs, _in_tempfile])
def test_a_wrapper_of_a_file_is_no_source_that_seeks_examples(opener: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {i}\n" for i in range(200)))
    with contextlib.ExitStack() as stack:
        stream = StreamDataset([str(path)], lambda name: stack.enter_context(opener(name)))
        iterator, resumed = SerialIterator(stream, 8), SerialIterator(stream, 8)
        rows_of(iterator, 5)
        resumed.load_state_dict(iterator.state_dict())
        assert next(resumed) == next(iterator) == [f"line {i}\n" for i in range(40, 48)]


def test_large_arrays_as_shards_are_told_apart() -> None:
    first, second = np.zeros(2000), np.zeros(2000)
    second[1000] = 1
    stream = StreamDataset([first, second], iter)
    assert next(SerialIterator(stream, 2001))[2000] == 0
    with pytest.raises(ValueError, match="comes more than once"):
        StreamDataset([{"rows": first}, {"rows": first.copy()}], iter)
    StreamDataset([{"rows": first}, {"rows": second}], iter)
    with pytest.raises(ValueError, match="comes more than once"):  # equal objects at two addresses
        StreamDataset([np.array([int("1000")], object) for _ in range(2)], iter)
    states = [SerialIterator(StreamDataset([each], iter), 4) for each in (first, second)]
    again = SerialIterator(StreamDataset([first.copy()], iter), 4)
    again.load_state_dict(states[0].state_dict())
    with pytest.raises(ValueError, match="another stream: its shards"):
        again.load_state_dict(states[1].state_dict())
    objects = [SerialIterator(StreamDataset([object()], lambda _: range(9)), 4) for _ in range(2)]
    objects[0].load_state_dict(objects[1].state_dict())  # its text names its address alone


@pytest.mark.parametrize("shuffle", [False, None])
def test_a_state_of_a_stream_does_not_load_into_an_iterator_over_a_map(shuffle: Any) -> None:
    stream = SerialIterator(StreamDataset(range(5), lambda s: range(10 * s, 10 * s + 8)), 4)
    rows_of(stream, 5)
    other, stored = SerialIterator(range(100), 4, shuffle=shuffle), {}
    stream.serialize(stored.__setitem__)
    with pytest.raises(ValueError, match="StreamDataset"):
        other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    with pytest.raises(ValueError, match="StreamDataset"):
        other.serialize(lambda key, value: stored[key])
    assert other.current_position == 0

"""Exceptions of the dataset, of examples that do not travel, and of the converter."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import pickle
import queue
import re
import resource
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from comparison import same
from examples_of import (
    Blocks,
    ForeignText,
    Liar,
    LoadsNot,
    Misfits,
    Mute,
    NoText,
    OneArgument,
    OwnBase,
    Sealed,
    Unpicklable,
)
from inside import pids_of

from fastiter import DatasetError, MultiprocessIterator, concat_examples


class Raises:
    """Raises what `make` makes at index 5, and writes into `note` which process does."""

    def __init__(self, make, size=16, note=os.devnull):
        self.make, self.size, self.note = make, size, note

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == 5:
            Path(self.note).write_text(str(os.getpid()))
            raise self.make()
        return np.full(3, index)


def indices(batch):
    return [int(example[0]) for example in batch]


def failing(make, error, **arguments):
    """The exception of the batch with index 5; checks the batches before and after."""
    with tempfile.NamedTemporaryFile("r") as note:
        iterator = make(Raises(error, note=note.name), 4, n_prefetch=3, **arguments)
        assert indices(next(iterator)) == [0, 1, 2, 3]
        with pytest.raises(Exception) as caught:
            next(iterator)
        pid = note.read()
        assert (iterator.epoch, iterator.current_position) == (0, 8)
        assert indices(next(iterator)) == [8, 9, 10, 11]
        assert indices(next(iterator)) == [12, 13, 14, 15]
        assert indices(next(iterator)) == [0, 1, 2, 3]
        iterator.finalize()  # a worker that fetched on would make the file anew
    error = caught.value
    cause = str(error.__cause__)
    assert re.search(r"\bindex 5\b", cause)
    assert "epoch 0, batch 1" in cause
    assert int(pid) != os.getpid()
    assert re.search(rf"\b{pid}\b", cause)
    assert "__getitem__" in cause or "raise self.make()" in cause
    if sys.version_info >= (3, 11):
        assert any("index 5" in note for note in error.__notes__)
    return error


ORDINARY = {
    "ValueError": lambda: ValueError("a broken file"),
    "KeyError": lambda: KeyError("a/b"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "OSError": lambda: FileNotFoundError(2, "No such file", "/a/b"),
    "MemoryError": lambda: MemoryError(),
    "AssertionError": lambda: AssertionError(),
    "StopAsyncIteration": lambda: StopAsyncIteration("a"),
    "TimeoutError": lambda: multiprocessing.TimeoutError("of the dataset"),
    "Empty": lambda: queue.Empty(),
    "Full": lambda: queue.Full(),
    "InterruptedError": lambda: InterruptedError(4, "of the dataset"),
    "BlockingIOError": lambda: BlockingIOError(11, "of the dataset"),
    "ConnectionResetError": lambda: ConnectionResetError(104, "of the dataset"),
    "EOFError": lambda: EOFError("of the dataset"),
    "BrokenPipeError": lambda: BrokenPipeError(32, "of the dataset"),
    "TimeoutWarning": lambda: MultiprocessIterator.TimeoutWarning("of the dataset"),
    "RecursionError": lambda: RecursionError("deep"),
    "PicklingError": lambda: pickle.PicklingError("of the dataset"),
    "NoText": lambda: NoText(),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_exceptions_arrive_as_themselves(make, name):
    original = ORDINARY[name]()
    error = failing(make, ORDINARY[name])
    assert type(error) is type(original)
    assert error.args == original.args
    assert type(original).__name__ in str(error.__cause__)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
def test_an_exception_group(make):
    group = builtins.ExceptionGroup
    error = failing(make, lambda: group("two", [ValueError("a"), KeyError("b")]))
    assert type(error) is group
    assert [type(part) for part in error.exceptions] == [ValueError, KeyError]


def test_stop_iteration_does_not_end_the_epoch(make):
    error = failing(make, lambda: StopIteration(3))
    assert type(error) is RuntimeError
    assert "StopIteration(3)" in str(error)


FOREIGN = {
    "KeyboardInterrupt": lambda: KeyboardInterrupt(),
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": lambda: GeneratorExit(),
    "OwnBase": lambda: OwnBase("own"),
    "OneArgument": lambda: OneArgument("a/b", 7),
    "Unpicklable": lambda: Unpicklable("reason"),
    "ForeignText": lambda: ForeignText("reason"),
    "local": lambda: type("Local", (Exception,), {})("reason"),
    "loads nowhere else": lambda: Liar("raises"),
    "loads as a class elsewhere": lambda: Liar("a class"),
    "loads as a text elsewhere": lambda: Liar("no exception"),
    "loads as an end elsewhere": lambda: Liar("an end"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_cannot_arrive_as_itself_is_a_dataset_error(make, name):
    original = FOREIGN[name]()
    error = failing(make, FOREIGN[name])
    assert type(error) is DatasetError
    text = str(error)
    assert type(original).__name__ in text
    assert str(original) in text
    assert re.search(r"\bindex 5\b", text)
    assert "epoch 0, batch 1" in text


def test_an_exception_that_takes_no_attributes(make):
    iterator = make(Raises(lambda: Sealed("of the dataset")), 4)
    next(iterator)
    with pytest.raises(Sealed, match="of the dataset") as caught:
        next(iterator)
    assert "index 5" in str(caught.value.__cause__)
    assert indices(next(iterator)) == [8, 9, 10, 11]


def test_an_exception_that_tells_nothing_is_an_error_of_its_batch(make):
    iterator = make(Raises(Mute), 4)
    next(iterator)
    with pytest.raises(DatasetError, match=r"left no reason.*index 5\b"):
        next(iterator)
    assert indices(next(iterator)) == [8, 9, 10, 11]


class NoRoom(Blocks):
    """Example 4 raises in a process that has no address space left for a slot."""

    def __getitem__(self, index):
        if index == 4:
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            self.limits = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (mapped + (512 << 10), self.limits[1]))
            raise ValueError("of the dataset")
        if index == 5:
            resource.setrlimit(resource.RLIMIT_AS, self.limits)
        return np.full(3, index)


def test_an_exception_without_memory_to_report_it(make):
    """Its place and what was missing are told; the next batch comes."""
    iterator = make(NoRoom(16), 4, n_processes=1)
    next(iterator)
    with pytest.raises(MemoryError, match=r"index 4\b.* bytes needed in its slot.*RLIMIT_AS"):
        next(iterator)
    assert indices(next(iterator)) == [8, 9, 10, 11]


@pytest.mark.no_stuck_rows("no worker is to end")
def test_sys_exit_in_the_dataset(make):
    class Exits(Blocks):
        def __getitem__(self, index):
            if index == 5:
                sys.exit("the licence has expired")
            return np.full(3, index)

    iterator = make(Exits(16), 4)
    pids = (next(iterator), pids_of(iterator))[1]
    with pytest.raises(DatasetError, match="SystemExit: the licence has expired"):
        next(iterator)
    assert indices(next(iterator)) == [8, 9, 10, 11]
    assert pids_of(iterator) == pids


def test_a_text_of_ten_megabytes_is_cut(make):
    error = failing(make, lambda: ValueError("x" * 10_000_000))
    assert type(error) is DatasetError
    assert len(str(error)) < 200_000
    assert len(str(error.__cause__)) < 200_000


def test_a_chain_of_causes_arrives_as_text(make):
    def error():
        try:
            try:
                raise KeyError("the first")
            except KeyError as first:
                raise OSError("the second") from first
        except OSError as second:
            return second

    cause = str(failing(make, error).__cause__)
    assert "the first" in cause
    assert "the second" in cause


def test_the_first_of_several_failures_of_a_batch(make):
    class Fails(Blocks):
        def __getitem__(self, index):
            raise ValueError(f"at {index}")

    iterator = make(Fails(32), 8)
    for number in range(6):
        with pytest.raises(ValueError, match=r"^at ") as caught:
            next(iterator)
        assert caught.value.args == (f"at {8 * number % 32}",)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_errors_under(make, method):
    iterator = make(Misfits(16, {5}, "bad deed"), 4, context=method)
    assert indices(next(iterator)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="bad deed") as caught:
        next(iterator)
    assert "index 5" in str(caught.value.__cause__)
    assert indices(next(iterator)) == [8, 9, 10, 11]


# -- examples that do not travel --------------------------------------------------------------


def odd_examples(example):
    class Odd(Blocks):
        def __getitem__(self, index):
            return example(index) if index % 16 == 5 else (np.full(3, index), index)

    return Odd(64)


def test_an_example_that_cannot_be_pickled(make):
    iterator = make(odd_examples(lambda index: (lambda: index, 1)), 4)
    for number in range(32):
        if number % 4 == 1:
            with pytest.raises((pickle.PicklingError, AttributeError, TypeError)) as caught:
                next(iterator)
            assert f"index {number * 4 % 64 + 1}," in str(caught.value.__cause__)
        else:
            assert next(iterator)[0][1] == number * 4 % 64


@pytest.mark.parametrize("share", [16, 1])
@pytest.mark.parametrize("converter", [None, concat_examples, "callable"])
def test_an_example_that_cannot_be_loaded(make, share, converter):
    class Odd(Blocks):
        def __getitem__(self, index):
            odd = LoadsNot(index) if index % share == 5 % share else 0
            return np.full(3, index), odd

    if converter == "callable":
        converter = _stacked
    iterator = make(Odd(64), 4, converter=converter)
    for number in range(32):
        first = number * 4 % 64
        bad = [index for index in range(first, first + 4) if index % share == 5 % share]
        if bad:
            with pytest.raises(DatasetError, match=rf"index {bad[0]}\b.*epoch") as caught:
                next(iterator)
            assert isinstance(caught.value.__cause__, KeyError)
        else:
            batch = next(iterator)
            assert len(batch) in (2, 4)


def _stacked(batch, device):
    return np.stack([example[0] for example in batch]), len(batch)


def test_examples_none_of_which_can_be_loaded(make):
    """All examples are such that load raises: in columns from the second batch on."""

    class Local(Blocks):
        def __getitem__(self, index):
            return _leaver(index)

    iterator = make(Local(8), 4)
    for _ in range(3):
        with pytest.raises(DatasetError, match=r"index [04]\b"):
            next(iterator)


class _Leaver:
    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        raise ValueError("wrong version")


def _leaver(index):
    return _Leaver(index)


# -- converters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "arrives"),
    [
        (ValueError("no such class"), ValueError),
        (OneArgument("a", 1), DatasetError),
        (SystemExit(1), DatasetError),
        (StopIteration(), RuntimeError),
    ],
)
def test_a_converters_exception_belongs_to_its_batch(make, error, arrives):
    def convert(batch, device):
        assert device is None
        if int(batch[0][0]) == 4:
            raise error
        return np.stack(batch)

    iterator = make([np.full(3, index) for index in range(16)], 4, converter=convert)
    for _ in range(3):
        assert next(iterator)[0, 0] == 0
        with pytest.raises(arrives) as caught:
            next(iterator)
        cause = str(caught.value.__cause__)
        assert "converter" in cause
        assert "batch 1" in cause
        assert "in convert" in cause
        assert next(iterator)[0, 0] == 8
        assert next(iterator)[0, 0] == 12


def test_a_converters_batch_with_a_failed_row_is_the_rows_error(make, tmp_path):
    def total(batch, device):
        (tmp_path / f"{len(batch)} examples").touch()
        return int(sum(example.sum() for example in batch))

    iterator = make(Raises(lambda: KeyError("of the row")), 4, converter=total)
    assert next(iterator) == 3 * 6
    with pytest.raises(KeyError, match="of the row"):
        next(iterator)
    assert next(iterator) == 3 * 38
    assert [path.name for path in tmp_path.iterdir()] == ["4 examples"]


class Converters:
    """Callables that do what they should not mind doing."""

    def in_place(batch, device):
        for example in batch:
            example[0] *= -1
            example[1].sort()
        return batch

    def views(batch, device):
        return {"first": batch[0][0], "parts": [example[0][1:] for example in batch]}

    def stored(batch, device):
        _kept.append(batch)
        return [kept[0][0].copy() for kept in _kept][-1], len(batch)

    def nothing(batch, device):
        return None

    def same(batch, device):
        return batch

    def unpicklable(batch, device):
        return lambda: [example[0].tolist() for example in batch]

    def shrinks(batch, device):
        del batch[1:]
        return tuple(batch)


_kept = []


@pytest.mark.parametrize("name", [n for n in vars(Converters) if n[0] != "_"])
@pytest.mark.parametrize("kind", ["columns", "objects"])
def test_converters_that_change_keep_or_return_examples(make, name, kind):
    convert = getattr(Converters, name)

    class Data(Blocks):
        def __getitem__(self, index):
            return [np.arange(4.0) + index, [3, index, 1] if kind == "objects" else np.arange(2)]

    dataset = Data(24)
    iterator = make(dataset, 4, converter=convert)
    held = []
    for number in range(30):
        result = next(iterator)
        expected = convert([dataset[(4 * number + row) % 24] for row in range(4)], None)
        if name == "unpicklable":
            result, expected = result(), expected()
        held.append((result, expected))
    for result, expected in held:
        same(result, expected)


@pytest.mark.parametrize("error", [KeyboardInterrupt, LookupError])
def test_interrupts_in_the_parents_own_part_lose_nothing(make, error):
    """A handler raises while the parent loads a batch: the next call gives that batch."""

    def handler(*_):
        raise error

    former = signal.signal(signal.SIGUSR1, handler)
    parent = os.getpid()
    iterator = make([_Interrupts(index, parent) for index in range(12)], 3)
    got = []
    interrupts = 0
    while len(got) < 8:
        _Interrupts.armed = interrupts % 2 == 0
        try:
            batch = next(iterator)
        except error:
            interrupts += 1
            continue
        interrupts += 1
        got.append([example.number for example in batch])
        assert iterator.current_position == 3 * len(got) % 12
    assert got == [[(3 * number + row) % 12 for row in range(3)] for number in range(8)]
    assert interrupts > 8
    signal.signal(signal.SIGUSR1, former)


class _Interrupts:
    armed = False

    def __init__(self, number, parent):
        self.number, self.parent = number, parent

    def __setstate__(self, state):
        self.__dict__.update(state)
        if os.getpid() == self.parent and _Interrupts.armed and self.number % 3 == 1:
            signal.raise_signal(signal.SIGUSR1)

"""Threads several batches ahead: what each thread fetches, and what errors and stops leave."""

from __future__ import annotations

import collections
import functools
import pickle
import random
import sys
import threading
import time
from itertools import chain
from typing import Any

import numpy as np
import pytest
from comparison import assert_same
from drawn import seeds
from failing import Calling, Failing, FailingTogether
from test_multithread import PATIENCE, Gated, no_thread_is_left, our_threads, run

from fastiter import MultithreadIterator, SerialIterator, concat_examples
from fastiter.dataset import TabularDataset

__all__ = ["no_thread_is_left"]  # the fixture


class Noting:
    """Notes which index was asked for how often, and by which thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.asked: collections.Counter[int] = collections.Counter()
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        with self._lock:
            self.asked[index] += 1
            self.threads.add(threading.current_thread().name)
        return index


def wait_until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.001)


@pytest.mark.parametrize("n_prefetch", [1, 2, 5])
def test_so_many_batches_are_fetched_ahead_and_no_more(n_prefetch):
    dataset = Noting(1000)
    with MultithreadIterator(
        dataset, 3, shuffle=False, n_threads=2, n_prefetch=n_prefetch
    ) as iterator:
        assert iterator.n_prefetch == n_prefetch
        for n in range(1, 8):
            next(iterator)
            wait_until(lambda n=n: sum(dataset.asked.values()) == 3 * (n + n_prefetch))
            assert iterator.current_position == 3 * n
    assert set(dataset.asked.values()) == {1}
    assert all(name.startswith("fastiter-") for name in dataset.threads)


def test_threads_are_as_many_as_asked_for_and_gone_after_finalize():
    before = our_threads()
    iterator = MultithreadIterator(range(100), 2, n_threads=5, n_prefetch=3)
    assert our_threads() == before
    for n in range(60):
        next(iterator)
        assert len(our_threads() - before) == 5
        if n % 20 == 0:
            iterator.reset()
    started = our_threads() - before
    iterator.finalize()
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("n_prefetch", [1, 4])
def test_every_index_exactly_once_an_epoch(n_prefetch):
    size, epochs = 97, 5
    dataset = Noting(size)
    with MultithreadIterator(dataset, 10, n_threads=4, n_prefetch=n_prefetch) as iterator:
        given: collections.Counter[int] = collections.Counter()
        while sum(given.values()) < size * epochs:
            given.update(next(iterator))
        done = sum(given.values())
    assert set(given.values()) <= {epochs, epochs + 1}
    assert done - size * epochs < 10


# -- errors -------------------------------------------------------------------------------------


def facts_of(error: BaseException) -> str:
    notes = getattr(error, "__notes__", None)
    return " ".join(notes) if notes else str(error.__cause__)


@pytest.mark.parametrize("kind", [Failing, FailingTogether])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_error_tells_index_epoch_batch_and_thread_and_the_next_call_goes_on(kind, n_threads):
    dataset = kind({7: ValueError("seven"), 6: LookupError("six")}, 12)
    with MultithreadIterator(
        dataset, 4, shuffle=False, n_threads=n_threads, n_prefetch=3
    ) as iterator:
        for epoch in range(3):
            assert next(iterator) == [0, 1, 2, 3]
            with pytest.raises(LookupError, match="six") as caught:
                next(iterator)
            facts = facts_of(caught.value)
            assert facts.startswith(f"dataset index 6, epoch {epoch}, batch 1, worker thread fast")
            assert iterator.current_position == 8
            assert next(iterator) == [8, 9, 10, 11]


def test_error_of_a_converter_tells_the_batch():
    def convert(batch, device):
        raise LookupError(batch)

    with MultithreadIterator(range(4), 2, shuffle=False, converter=convert) as iterator:
        for n in range(2):
            with pytest.raises(LookupError) as caught:
                next(iterator)
            facts = facts_of(caught.value)
            assert facts.startswith(f"converter, epoch 0, batch {n}, worker thread fastiter-")


def test_converter_runs_in_the_threads_and_several_at_a_time():
    meeting = threading.Barrier(3, timeout=PATIENCE)

    def convert(batch, device):
        meeting.wait()
        return threading.current_thread().name

    with MultithreadIterator(
        range(9), 1, repeat=False, converter=convert, n_threads=3, n_prefetch=2
    ) as iterator:
        assert all(name.startswith("fastiter-") for name in iterator)


# -- waiting, stopping ----------------------------------------------------------------------------


PLACES = ("fastiter/iterators", "fastiter/_engine")


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th line that this thread runs in our modules."""

    def __init__(self, n: int) -> None:
        self._left = n

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if not any(place in frame.f_code.co_filename for place in PLACES):
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_line_of_next_loses_nothing():
    expected = [[i, i + 1] for i in range(0, 24, 2)]
    n, is_through = 0, False
    while not is_through:
        n += 1
        iterator = MultithreadIterator(range(24), 2, repeat=False, shuffle=False, n_prefetch=2)
        found = [next(iterator), next(iterator)]
        old = sys.gettrace()
        sys.settrace(InterruptAt(n))
        try:
            batch = next(iterator)
            is_through = True
        except KeyboardInterrupt:
            batch = None
        finally:
            sys.settrace(old)
        is_delivered = iterator.current_position == 6
        rest = list(iterator)
        if batch is not None:
            found.append(batch)
        elif is_delivered and rest[0] != [4, 5]:  # the caller did not get hold of it
            found.append([4, 5])
        assert found + rest == expected, f"interrupted at line {n}"
        iterator.finalize()
    assert n > 30


@pytest.mark.slow
def test_a_hanging_example_delays_finalize_by_a_second_and_no_more():
    dataset = Gated(3, size=100)
    iterator = MultithreadIterator(dataset, 2, shuffle=False, n_threads=2, n_prefetch=4)
    assert next(iterator) == [0, 1]
    assert dataset.is_waiting.wait(PATIENCE)
    begin = time.monotonic()
    iterator.finalize()
    iterator.finalize()
    assert time.monotonic() - begin < 4
    dataset.gate.set()
    iterator.reset()
    assert [next(iterator), next(iterator)] == [[0, 1], [2, 3]]
    iterator.finalize()


def test_finalize_does_not_wait_for_rows_that_were_only_taken():
    size = 4000
    asked = []
    first = threading.Event()

    def slow(index):
        asked.append(index)
        if len(asked) > size // 2:
            first.set()
            threading.Event().wait(0.01)
        return index

    iterator = MultithreadIterator(Calling(slow, size), size // 2, shuffle=False)
    next(iterator)  # the thread has learnt that rows are quick, so it takes many at a time
    assert first.wait(PATIENCE)
    iterator.finalize()
    n_asked = len(asked)
    assert n_asked < size
    assert not our_threads()


def test_reset_and_snapshots_with_batches_ahead(save, load):
    with MultithreadIterator(range(50), 3, n_threads=3, n_prefetch=7) as iterator:
        for _ in range(5):
            next(iterator)
        stored = save(iterator)
        future = [next(iterator) for _ in range(10)]
        with MultithreadIterator(range(50), 3, n_threads=1, n_prefetch=2) as other:
            load(other, stored)
            assert [next(other) for _ in range(10)] == future
        iterator.reset()
        assert (iterator.current_position, iterator.epoch) == (0, 0)
        assert pickle.loads(pickle.dumps(iterator)).n_prefetch == 7
        again = [next(iterator) for _ in range(16)]
        assert len(set(chain(*again))) == 48


BUSY = """
    import numpy, threading, zlib
    from fastiter import MultithreadIterator, concat_examples

    class Busy:
        data = zlib.compress(bytes(300_000))

        def __len__(self):
            return 1000

        def __getitem__(self, index):
            return numpy.frombuffer(zlib.decompress(self.data), dtype=numpy.uint8), index

    iterator = MultithreadIterator(
        Busy(), 16, shuffle=False, n_threads=4, n_prefetch=4, converter=concat_examples
    )
    for _ in range(3):
        next(iterator)
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        pytest.param("import builtins; builtins.kept = iterator", marks=pytest.mark.stress),
        "iterator.itself = iterator; del iterator",
        pytest.param("import sys; sys.exit(0)", marks=pytest.mark.stress),
        "import atexit; atexit.register(iterator.finalize)",
        "threading.Thread(target=lambda: [None for _ in iterator], daemon=True).start()",
    ],
)
def test_program_ends_silently_amid_the_work_of_threads(end):
    assert run(BUSY + "\n    " + end) == (0, "", "")


# -- content ------------------------------------------------------------------------------------


class Columns(TabularDataset):
    """Columns in several parts; the second one as numbers, a list or strings."""

    keys = ("x", "y")
    mode = tuple

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 40

    def get_examples(self, indices: Any, key_indices: Any) -> Any:
        rows = list(range(40)) if indices is None else indices
        self.asked.append(rows)
        numbers = np.array(rows)
        second = {
            "array": numbers * 2,
            "list": [3 * row for row in rows],
            "other dtypes": numbers.astype("f4" if 7 in rows else "f8"),
        }[self._kind]
        return np.repeat(numbers, 3).reshape(-1, 3), second


@pytest.mark.parametrize("kind", ["array", "list", "other dtypes"])
def test_columns_are_fetched_in_parts_by_the_threads(kind):
    dataset = Columns(kind)
    arguments = {"repeat": False, "shuffle": False, "converter": concat_examples}
    expected = list(SerialIterator(dataset, 12, **arguments))
    dataset.asked.clear()
    with MultithreadIterator(dataset, 12, n_threads=3, n_prefetch=2, **arguments) as iterator:
        for batch, other in zip(iterator, expected, strict=True):
            if kind == "other dtypes":  # which rows are asked for together decides
                batch, other = ((x, y.astype("f8")) for x, y in (batch, other))
            assert_same(batch, other)
    assert len(dataset.asked) > len(expected)  # the first batch is in parts: its cost is not known
    assert sorted(chain(*dataset.asked)) == list(range(40))


class Mixed:
    """Examples of most kinds: usual ones, and now and then one that is unlike the others."""

    def __init__(self, seed: int) -> None:
        choices = random.Random(seed)
        self._container = choices.choice(["bare", "tuple", "dict"])
        self._shape = choices.choice([(), (3,), (40, 50), (200, 400)])
        self._odd = choices.choice([0, 0, 0.02, 0.5])
        self._seed = seed

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        choices = random.Random(1000 * self._seed + index)
        array = np.full(self._shape, index, dtype=np.int32)
        number: Any = index
        if choices.random() < self._odd:
            array = choices.choice([array.astype(np.float64), array.T.copy().T, array[..., :2]])
            number = choices.choice([index / 2, np.float32(index), index])
        if self._container == "bare":
            return array
        if self._container == "tuple":
            return array, number, float(index)
        return {"x": array, "y": number}


def outcomes(iterator: Any) -> list[Any]:
    found: list[Any] = []
    with iterator:
        while True:
            try:
                found.append(next(iterator))
            except StopIteration:
                return found
            except (ValueError, TypeError, IndexError) as error:
                found.append((type(error), str(error)))


@pytest.mark.parametrize("seed", seeds(12, 24))
def test_batches_are_those_of_the_serial_iterator(seed):
    choices = random.Random(seed)
    converter = choices.choice(
        [
            concat_examples,
            concat_examples,
            functools.partial(concat_examples, padding=0),
            functools.partial(concat_examples, copy=True),
            functools.partial(concat_examples, padding=-1, max_length=30),
        ]
    )
    arguments: dict[str, Any] = {"repeat": False, "shuffle": False, "converter": converter}
    batch_size = choices.choice([1, 4, 7, 60])
    expected = outcomes(SerialIterator(Mixed(seed), batch_size, **arguments))
    n_threads, n_prefetch = choices.randint(1, 4), choices.randint(1, 5)
    found = outcomes(
        MultithreadIterator(
            Mixed(seed), batch_size, n_threads=n_threads, n_prefetch=n_prefetch, **arguments
        )
    )
    for batch, other in zip(found, expected, strict=True):
        if isinstance(other, tuple) and isinstance(other[0], type):
            assert batch == other
        else:
            assert_same(batch, other)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
def test_under_load_each_thread_that_iterates_gets_batches_of_its_own(seed):
    choices = random.Random(seed)
    size, batch_size = 5_000, choices.choice([1, 7, 32])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    given: collections.Counter[int] = collections.Counter()
    lock = threading.Lock()
    iterator = MultithreadIterator(
        Noting(size),
        batch_size,
        repeat=False,
        n_threads=choices.randint(1, 6),
        n_prefetch=choices.randint(1, 6),
        converter=choices.choice([None, concat_examples]),
    )

    def consume() -> None:
        for batch in iterator:
            with lock:
                given.update(map(int, batch))

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    try:
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()
    finally:
        sys.setswitchinterval(interval)
        iterator.finalize()
    assert given == dict.fromkeys(range(size), 1)

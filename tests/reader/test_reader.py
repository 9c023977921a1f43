"""The decorators of readers: their meaning, their errors, and that they leave nothing behind."""

from __future__ import annotations

import gc
import itertools
import pickle
import random
import threading

import numpy as np
import pytest
from programs import run

from fastiter import reader as readers
from fastiter.reader import (
    ComposeNotAligned,
    _ahead,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    shuffle,
    xmap_readers,
)

HANG = 30.0


class Counting:
    """Reader of 0 to n - 1, that counts what was read of it and which passes were closed."""

    def __init__(self, n, error=None):
        self.n, self.error = n, error
        self.read = self.passes = self.closed = 0

    def __call__(self):
        self.passes += 1
        try:
            for number in range(self.n):
                self.read += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed += 1


def numbers(n):
    return Counting(n)


def count_up():
    yield from range(5)


def double(x):
    return 2 * x


def our_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("fastiter-reader")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    assert our_threads() == []


def test_the_names_are_all_there():
    assert sorted(readers.__all__) == readers.__all__
    for name in readers.__all__:
        assert getattr(readers, name).__doc__


# ---- each one's meaning --------------------------------------------------------------------------


def test_batch():
    assert list(batch(numbers(5), 2)()) == [[0, 1], [2, 3], [4]]
    assert list(batch(numbers(5), 2, drop_last=True)()) == [[0, 1], [2, 3]]
    assert list(batch(numbers(4), 2, True)()) == [[0, 1], [2, 3]]
    assert list(batch(numbers(0), 2)()) == []
    assert list(batch(numbers(3), np.int64(8))()) == [[0, 1, 2]]


@pytest.mark.parametrize("size", [0, -1])
def test_batch_refuses_sizes_at_once(size):
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, not {size}"):
        batch(numbers(5), size)


def test_map_readers():
    assert list(map_readers(double, numbers(3))()) == [0, 2, 4]
    assert list(map_readers(lambda a, b: (a, b), numbers(3), numbers(2))()) == [(0, 0), (1, 1)]


def test_a_function_that_raises_stop_iteration_does_not_end_the_pass_in_silence():
    def stop(x):
        raise StopIteration

    for reader in (map_readers(stop, numbers(3)), xmap_readers(stop, numbers(3), 2, 2)):
        with pytest.raises(RuntimeError):
            list(reader())


def test_shuffle_is_by_blocks_and_by_the_random_module():
    random.seed(5)
    found = list(shuffle(numbers(25), 10)())
    assert sorted(found) == list(range(25))
    assert sorted(found[:10]) == list(range(10))
    assert sorted(found[20:]) == list(range(20, 25))
    assert found != list(range(25))
    random.seed(5)
    expected = []
    for block in (range(10), range(10, 20), range(20, 25)):
        block = list(block)
        random.shuffle(block)
        expected += block
    assert found == expected


@pytest.mark.parametrize("size", [0, 1])
def test_shuffle_of_no_buffer_keeps_the_order(size):
    assert list(shuffle(numbers(5), size)()) == list(range(5))


def test_chain_opens_readers_as_they_are_reached():
    first, second = numbers(2), numbers(2)
    samples = chain(first, second)()
    assert next(samples) == 0
    assert second.passes == 0
    assert list(samples) == [1, 0, 1]
    assert list(chain()()) == []


def test_compose_joins_tuples():
    pairs = map_readers(lambda i: (i, -i), numbers(2))
    assert list(compose(numbers(2), pairs, numbers(2))()) == [(0, 0, 0, 0), (1, 1, -1, 1)]
    assert list(compose()()) == []


def test_compose_takes_none_and_lists_for_samples():
    nothing = map_readers(lambda i: None, numbers(2))
    lists = map_readers(lambda i: [i], numbers(2))
    assert list(compose(nothing, lists)()) == [(None, [0]), (None, [1])]


@pytest.mark.parametrize("lengths", [(3, 2), (2, 3)])
def test_compose_checks_alignment(lengths):
    reader = compose(*map(numbers, lengths))
    samples = reader()
    assert [next(samples), next(samples)] == [(0, 0), (1, 1)]
    with pytest.raises(ComposeNotAligned, match="after 2 samples") as caught:
        next(samples)
    assert isinstance(caught.value, ValueError)
    assert list(compose(*map(numbers, lengths), check_alignment=False)()) == [(0, 0), (1, 1)]
    with pytest.raises(TypeError):
        compose(numbers(1), check_aligment=False)


def test_firstn_reads_no_more_than_it_gives():
    source = numbers(10)
    assert list(firstn(source, 3)()) == [0, 1, 2]
    assert source.read == 3
    assert list(firstn(source, 0)()) == []
    assert list(firstn(source, 20)()) == list(range(10))
    with pytest.raises(ValueError, match="n must be at least 0, not -1"):
        firstn(source, -1)


def test_cache_reads_once_and_only_when_it_must():
    source = numbers(4)
    reader = cache(source)
    assert source.passes == 0
    early = reader()
    assert [next(early), next(early)] == [0, 1]
    assert source.read == 2
    assert list(reader()) == list(range(4))
    assert list(early) == [2, 3]
    assert list(reader()) == list(range(4))
    assert (source.passes, source.read) == (1, 4)


def test_cache_gives_the_very_same_objects():
    reader = cache(lambda: (np.zeros(2) for _ in range(3)))
    assert all(a is b for a, b in zip(reader(), reader(), strict=True))


def test_cache_does_not_take_a_failed_pass_for_all():
    source = Counting(2, error=OSError("gone"))
    reader = cache(source)
    with pytest.raises(OSError, match="gone"):
        list(reader())
    source.error = None
    assert list(reader()) == [0, 1]
    assert source.passes == 2


def test_cache_is_shared_by_threads():
    source = numbers(2000)
    reader = cache(source)
    found = []
    threads = [threading.Thread(target=lambda: found.append(list(reader()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert found == [list(range(2000))] * 4
    assert source.read == 2000


# ---- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 19, 1000])
def test_buffered(size):
    reader = buffered(numbers(200), size)
    for _ in range(2):
        assert list(reader()) == list(range(200))


def test_buffered_reads_ahead_and_no_further():
    at_the_limit, too_far = threading.Event(), threading.Event()
    marks = {3: at_the_limit, 4: too_far}

    def source():
        for number in range(6):
            if number in marks:
                marks[number].set()
            yield number

    samples = buffered(source, 3)()
    assert next(samples) == 0
    assert at_the_limit.wait(HANG)  # 1, 2 and 3 are read before they are requested
    assert not too_far.is_set()
    assert next(samples) == 1
    assert too_far.wait(HANG)
    assert list(samples) == [2, 3, 4, 5]


def test_arrays_are_honest_samples_of_buffered():
    arrays = [np.zeros(0), np.arange(3), np.zeros((2, 2))]
    found = list(buffered(lambda: iter(arrays), 2)())
    assert all(a is b for a, b in zip(found, arrays, strict=True))


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("process_num", [1, 2, 8])
@pytest.mark.parametrize("buffer_size", [0, 1, 16])
def test_xmap_readers(order, process_num, buffer_size):
    reader = xmap_readers(double, numbers(100), process_num, buffer_size, order)
    for _ in range(2):
        found = list(reader())
        assert (found if order else sorted(found)) == list(range(0, 200, 2))


def test_xmap_readers_maps_in_threads_at_once():
    together = threading.Barrier(3)
    reader = xmap_readers(lambda x: together.wait(HANG) and x, numbers(9), 3, 1)
    assert len(list(reader())) == 9


def test_order_waits_for_the_slow_one_only():
    first_may_end = threading.Event()
    later_ones = []

    def mapper(x):
        if x == 0:
            assert first_may_end.wait(HANG)
        else:
            later_ones.append(x)
            if len(later_ones) == 3:
                first_may_end.set()
        return x

    assert list(xmap_readers(mapper, numbers(8), 2, 2, order=True)()) == list(range(8))


ERRORS = [ValueError("broken"), KeyError("key"), SystemExit(3), KeyboardInterrupt()]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("where", ["reader", "mapper", "opening"])
@pytest.mark.parametrize("order", [False, True])
def test_what_is_raised_in_a_thread_arrives(error, where, order):
    def fail(x):
        if where == "mapper" and x == 5:
            raise error
        return x

    def not_open():
        raise error

    source = Counting(5 if where == "reader" else 10, error if where == "reader" else None)
    if where == "opening":
        source = not_open
    for reader in (buffered(map_readers(fail, source), 2), xmap_readers(fail, source, 3, 4, order)):
        found = []
        with pytest.raises(type(error)) as caught:
            for sample in reader():
                found.append(sample)
        assert caught.value is error
        if order and where != "opening":
            assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("make", [buffered, lambda r, n: xmap_readers(double, r, n, n, order=True)])
def test_a_thread_that_finds_no_memory_for_its_own_work_ends_no_pass_in_silence(monkeypatch, make):
    put, calls = _ahead.Ahead._put, itertools.count()

    def put_once_less(self, number, sample):
        if next(calls) == 5:
            raise MemoryError("none is left")
        put(self, number, sample)

    monkeypatch.setattr(_ahead.Ahead, "_put", put_once_less)
    samples = make(numbers(100), 3)()
    with pytest.raises(MemoryError, match="none is left"):
        list(samples)


@pytest.mark.parametrize("make", [buffered, lambda r, n: xmap_readers(double, r, n, n)])
def test_leaving_early_ends_threads_and_closes_the_reader(make):
    source = numbers(1000)
    for _ in make(source, 3)():
        break
    gc.collect()
    assert our_threads() == []
    assert source.closed == source.passes == 1
    assert source.read < 20
    samples = make(source, 3)()
    next(samples)
    samples.close()
    assert our_threads() == []
    assert source.closed == source.passes == 2


def printed_by(program):
    """The output of a program, which must end well, in time and without a word on stderr."""
    done = run("-c", program, timeout=HANG)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_program_ends_with_passes_under_way():
    program = """
import itertools, threading
from fastiter.reader import buffered, xmap_readers

def hang():
    yield 0
    threading.Event().wait()

a = buffered(itertools.count, 5)()
b = xmap_readers(abs, itertools.count, 3, 5, True)()
c = [buffered(hang, 5)() for _ in range(60)]
print(next(a), next(b), sum(map(next, c)))
"""
    assert printed_by(program) == "0 0 0\n"


def test_the_exit_does_not_end_the_pass_of_a_daemon_thread():
    program = """
import itertools, threading
from fastiter.reader import buffered

def consume():
    for sample in buffered(itertools.count, 5)():
        if sample == 100:
            is_running.set()
    print("the samples ended", flush=True)

is_running = threading.Event()
threading.Thread(target=consume, daemon=True).start()
is_running.wait()
"""
    assert printed_by(program) == ""


def test_a_collection_in_a_thread_of_the_pass_that_it_ends():
    program = """
import gc, threading, weakref
from fastiter.reader import buffered, xmap_readers

class Node:
    pass

def source():
    while True:
        yield [0]

# The reader threads, which make samples without end, do nearly all collections.
gc.collect()
gc.freeze()
gc.set_threshold(5, 0, 0)  # without a GIL another second figure waits for a quarter more objects
for reader in (buffered(source, 10**6), xmap_readers(list, source, 2, 10**6, True)):
    for _ in range(20):
        node, is_collected = Node(), threading.Event()
        node.itself, node.samples = node, reader()
        next(node.samples)
        weakref.finalize(node, is_collected.set)
        threads = [t for t in threading.enumerate() if t.name.startswith("fastiter-reader")]
        del node
        assert is_collected.wait(10)
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
print("all collected")
"""
    assert printed_by(program) == "all collected\n"


# ---- all of them ---------------------------------------------------------------------------------

DECORATED = {
    "batch": lambda r: batch(r, 2),
    "map_readers": lambda r: map_readers(double, r),
    "shuffle": lambda r: shuffle(r, 3),
    "chain": lambda r: chain(r, r),
    "compose": lambda r: compose(r, r),
    "firstn": lambda r: firstn(r, 3),
    "cache": cache,
    "buffered": lambda r: buffered(r, 2),
    "not buffered": lambda r: buffered(r, 0),
    "xmap_readers": lambda r: xmap_readers(double, r, 1, 2, True),
}


@pytest.fixture(params=DECORATED)
def decorate(request):
    return DECORATED[request.param]


def test_they_travel(decorate):
    reader = decorate(count_up)
    random.seed(1)
    expected = list(reader())
    copy = pickle.loads(pickle.dumps(reader))
    random.seed(1)
    assert list(copy()) == expected


def test_nothing_is_read_before_the_first_sample_is_asked_for(decorate):
    source = numbers(5)
    reader = decorate(source)
    samples = reader()
    assert source.read == 0
    del samples


def test_readers_are_checked_at_once(decorate):
    with pytest.raises(TypeError, match=r"reader 0 is a generator.*pass the function itself"):
        decorate(count_up())
    with pytest.raises(TypeError, match="reader 0 is a list"):
        decorate([1, 2])


def test_a_reader_that_gives_no_samples_is_named(decorate):
    with pytest.raises(TypeError, match="returned a NoneType when it was called"):
        list(decorate(lambda: None)())


def test_leaving_early_closes_the_reader(decorate):
    source = numbers(100)
    samples = decorate(source)()
    next(samples)
    samples.close()
    del samples
    gc.collect()
    if decorate is not cache:  # it goes on in the next pass
        assert source.closed == source.passes


def test_a_failing_reader_leaves_nothing_open(decorate):
    source = Counting(2, error=LookupError("it"))
    with pytest.raises(LookupError, match="it"):
        list(decorate(source)())
    assert source.closed == source.passes


@pytest.mark.parametrize(
    ("name", "instead"), [("creator", "yield from array"), ("PipeReader", "Popen"), ("Fake", "n")]
)
def test_names_of_paddles_that_are_missing_say_what_to_write(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{instead}"):
        getattr(readers, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = readers.nothing

"""multiprocess_reader: samples, errors, and what it leaves behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import mmap
import multiprocessing
import os
import pickle
import resource
import signal
import threading

import numpy as np
import pytest
from comparison import same
from examples_of import fork_one_that_stays
from outside import (
    HANG,
    descriptors,
    is_alive,
    kill,
    mapped_arenas,
    resident,
    wait_until,
    workers,
)
from readers_of import (
    Failing,
    Images,
    Numbers,
    Unloadable,
    nothing,
    pids,
    plain_samples,
    samples_of_every_kind,
)
from scribbler import memory_of

from fastiter import DatasetError, OverwrittenError, WorkerDiedError
from fastiter.reader import _group, batch, multiprocess_reader, shuffle, xmap_readers

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(params=[True, False], ids=["pipe", "queue"])
def use_pipe(request):
    return request.param


@pytest.fixture(scope="module", autouse=True)
def servers_run():
    """They start once, and stay."""
    for method in METHODS:
        assert list(multiprocess_reader([nothing], context=method)()) == []


@pytest.fixture(autouse=True)
def nothing_is_left(servers_run):
    gc.collect()
    before = descriptors(), mapped_arenas()
    threads = set(threading.enumerate())  # those of tests before may be about to end
    yield
    gc.collect()
    assert workers() == set()
    assert (descriptors(), mapped_arenas()) == before
    assert set(threading.enumerate()) <= threads


def forked(readers, *arguments, **keywords):
    return multiprocess_reader(readers, *arguments, **keywords, context="fork")


# ---- samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_all_samples_come_once_and_each_readers_in_order(method, use_pipe):
    readers = [Numbers(k, 300 * k) for k in range(4)]
    reader = multiprocess_reader(readers, use_pipe, 50, context=method)
    for _ in range(1 if method == "spawn" else 2):
        found = list(reader())
        for k, one in enumerate(readers):
            assert [sample for sample in found if sample[0] == k] == list(one())
        assert len(found) == 1800


@pytest.mark.parametrize("queue_size", [0, 1, 3, 1000, False, True])
def test_every_kind_of_sample_arrives_as_it_was(use_pipe, queue_size):
    expected = list(samples_of_every_kind())
    found = list(forked([samples_of_every_kind], use_pipe, queue_size)())
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        same(a, b)


def test_plain_tuples_arrive_as_they_were():
    def reader():
        yield from itertools.islice(itertools.cycle(plain_samples()), 1000)

    found = list(forked([reader])())
    assert len(found) == 1000
    for a, b in zip(found, reader(), strict=True):
        assert list(map(type, a)) == list(map(type, b))
        assert repr(a) == repr(b)


def whole_samples():
    """Samples that fit no columns, each of another kind, so that each is packed as a whole."""
    yield {"x": [np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]]}
    yield [{"texts": ["a" * 40_000, b"b" * 9, "\u20ac"]}]
    yield {"numbers": list(range(100)), "deep": {"none": [None]}}
    yield {(1, "key"): (True, 2j), 2.5: [np.float32(3), np.datetime64("2026-01-02", "D")]}
    yield [[], {}, ((),)]


def test_samples_of_no_columns_arrive_as_they_were():
    for a, b in zip(forked([whole_samples])(), whole_samples(), strict=True):
        same(a, b)


def test_tensors_in_containers_are_no_more_than_themselves():
    torch = pytest.importorskip("torch")

    def reader():
        stored = torch.arange(100_000)
        for i in range(10):
            yield {"part": [stored[i : i + 2]], "wide": {"n": stored[i : i + 2].to(torch.uint16)}}

    for found, expected in zip(forked([reader])(), reader(), strict=True):
        assert found["part"][0].equal(expected["part"][0])
        assert found["part"][0].untyped_storage().nbytes() < 1000
        assert found["wide"]["n"].equal(expected["wide"]["n"])


def test_images_keep_their_alpha():
    image_module = pytest.importorskip("PIL.Image")

    def reader():
        for alpha in range(3):
            image = image_module.new("P", (4, 4))
            image.putpalette(bytes([1, 2, 3, alpha]) * 256, "RGBA")
            yield [{"image": image}]

    palettes = [found[0]["image"].getpalette("RGBA") for found in forked([reader])()]
    assert palettes == [[1, 2, 3, alpha] * 256 for alpha in range(3)]


def test_arrays_are_writable_and_nobody_elses(use_pipe):
    found = list(forked([Images(0, 400), Images(1, 400)], use_pipe, 100)())
    for image, i in found:
        assert image.min() % 1000 == image.max() % 1000 == i
        image[...] = -1 - i
    for image, i in found:
        assert (image == -1 - i).all()


def test_the_first_sample_does_not_wait_for_more():
    go_on = multiprocessing.get_context("fork").Event()

    def slow():
        yield "first"
        assert go_on.wait(HANG)
        yield "second"

    samples = forked([slow])()
    assert next(samples) == "first"
    go_on.set()
    assert list(samples) == ["second"]


def test_a_slow_reader_holds_nobody_up():
    go_on = multiprocessing.get_context("fork").Event()

    def slow():
        assert go_on.wait(HANG)
        yield "slow"

    samples = forked([slow, Numbers(1, 500)], True, 10)()
    assert list(itertools.islice(samples, 500)) == list(Numbers(1, 500)())
    go_on.set()
    assert list(samples) == ["slow"]


def test_readers_without_samples(use_pipe):
    assert list(forked([nothing, nothing], use_pipe)()) == []
    assert list(forked([nothing, Numbers(1, 3), nothing], use_pipe, 1)()) == list(Numbers(1, 3)())


def test_each_pass_has_fresh_processes_one_for_each_reader():
    reader = forked([pids, pids])
    first, second = set(reader()), set(reader())
    assert len(first) == len(second) == 2
    assert not first & second
    assert os.getpid() not in first | second


def test_two_passes_at_a_time():
    reader = forked([Numbers(0, 500)], True, 20)
    assert list(zip(reader(), reader(), strict=True)) == [(s, s) for s in Numbers(0, 500)()]


def test_decorators_of_it():
    reader = forked([Images(0, 90), Images(1, 70)], False, 7)
    mapped = xmap_readers(lambda sample: sample[1], shuffle(reader, 50), 2, 4)
    groups = list(batch(mapped, 32)())
    assert [len(group) for group in groups] == [32] * 5
    assert sorted(itertools.chain(*groups)) == sorted([*range(90), *range(70)])


def test_no_more_in_flight_than_queue_size(use_pipe):
    read = np.frombuffer(mmap.mmap(-1, 24), np.int64)  # shared with forked processes

    def counting(k):
        def reader():
            for i in range(300):
                read[k] += 1
                yield i

        return reader

    for queue_size in (1, 5, 40):
        read[:] = 0
        merged = forked([counting(k) for k in range(3)], use_pipe, queue_size)
        for taken, _ in enumerate(merged(), 1):
            # Each reader may hold one more, which it could not publish.
            assert read.sum() <= taken + queue_size + 3
            if taken % 50 == 0:
                # What was taken counts until this process has used a part of it.
                ahead = min(900, taken + queue_size - queue_size // 4)
                wait_until(lambda least=ahead: read.sum() >= least, "readers read ahead")
        assert read.sum() == 900


def test_without_a_limit_memory_limits_what_is_in_flight(use_pipe):
    read = np.frombuffer(mmap.mmap(-1, 8), np.int64)

    def endless():
        while True:
            read[0] += 1
            yield np.zeros(100_000, np.uint8)

    merged = forked([endless], use_pipe, 0)()
    for taken in range(1, 1001):
        assert len(next(merged)) == 100_000
        assert (read[0] - taken) * 100_000 <= 3 * 2**23  # in flight, and as much held here
    merged.close()


def test_holding_samples_costs_what_they_are(use_pipe):
    before = resident()
    held = [image for image, _ in forked([Images(0, 400, (100, 250))], use_pipe, 16)()]
    kept = sum(image.nbytes for image in held)
    assert resident() - before < 3 * kept + (64 << 20)
    assert [int(image[7, 9]) for image in held] == list(range(400))


def test_one_sample_of_many_does_not_keep_the_others():
    kept = []
    for image, i in forked([Images(0, 2000, (100, 250))], True, 16)():
        if i % 100 == 0:
            kept.append(image)
    assert [int(image[3, 3]) for image in kept] == list(range(0, 2000, 100))


def test_large_samples_and_a_small_budget():
    held = []
    for image, i in forked([Images(0, 12, (3 << 20,))], True, 100)():  # 12 MiB each
        held.append(image)
        assert image[0] == image[-1] == i
    assert [int(image[5]) for image in held] == list(range(12))


class Ring:
    """Refers to itself, and to bytes in shared memory."""

    def __init__(self, data):
        self.data, self.itself = data, self

    def __reduce_ex__(self, protocol):
        return Ring, (pickle.PickleBuffer(self.data),)


def test_samples_in_garbage_give_their_memory_back():
    def read():
        return (Ring(bytearray(b"%064d" % i)) for i in range(500))

    samples = multiprocess_reader([read], context="fork")()
    for number in range(500):
        assert int(bytes(next(samples).data)) == number
    (group,) = [
        one for one in gc.get_objects() if type(one) is _group.ReaderGroup and not one._released
    ]
    gc.collect()
    # Except the current block, which goes when its end is seen.
    wait_until(
        lambda: not group._ring.take_samples(1) and not group._ring.has_views, "no slot is lent"
    )
    assert next(samples, None) is None


def test_a_fork_of_the_program_keeps_what_it_holds():
    samples = forked([Images(0, 600)], True, 50)()
    held = list(itertools.islice(samples, 40))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with pytest.raises(RuntimeError, match="forked"):
                for _ in range(100):
                    next(samples)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert [i for _, i in samples] == list(range(40, 600))
    assert [int(image[0, 0]) for image, _ in held] == list(range(40))


# ---- errors --------------------------------------------------------------------------------------


def test_arguments_are_checked_at_once():
    for wrong in ([], ()):
        with pytest.raises(ValueError, match="readers is empty"):
            multiprocess_reader(wrong)
    with pytest.raises(ValueError, match="queue_size must be at least 0, not -3"):
        multiprocess_reader([nothing], True, -3)
    with pytest.raises(TypeError, match="reader 1 is a list"):
        multiprocess_reader([nothing, [1]])
    with pytest.raises(ValueError, match="context must be one of"):
        multiprocess_reader([nothing], context="thread")


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_arrives_as_itself(method, use_pipe):
    reader = multiprocess_reader([nothing, Failing("raise")], use_pipe, context=method)
    found = []
    with pytest.raises(LookupError) as caught:
        found.extend(reader())
    samples = reader()
    assert [next(samples) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError):
        next(samples)
    assert type(caught.value) is LookupError
    assert caught.value.args == ("no such record", 17)
    told = str(caught.value.__cause__)
    assert "reader 1 of 2 (Failing), after 3 samples, worker process" in told
    assert "readers_of.py" in told
    assert list(samples) == []


WAYS = {
    "none": (ValueError, "yielded None"),
    "kill": (
        WorkerDiedError,
        r"reader 0 of 2 \(Failing\) .* was killed by SIGKILL after 3 samples",
    ),
    "exit": (WorkerDiedError, r"reader 0 of 2 \(Failing\) .* exited with status 0 after 3 samples"),
    "sys.exit": (DatasetError, r"SystemExit: 5 .*reader 0 of 2 \(Failing\)"),
    "unpicklable": ((pickle.PicklingError, AttributeError), "lambda"),
    "unloadable": (DatasetError, "it cannot be loaded"),
}


@pytest.mark.parametrize("how", WAYS)
def test_a_reader_that_ends_badly_ends_the_pass(how, use_pipe):
    kinds, text = WAYS[how]
    found = []
    with pytest.raises(kinds, match=text):
        for sample in forked([Failing(how), itertools.count], use_pipe, 20)():
            found.append(sample)
            assert len(found) < 10**6, "no error comes"
    assert len(found) >= 3


def test_a_reader_killed_from_outside():
    samples = forked([itertools.count, itertools.count], True, 10)()
    next(samples)
    victim = min(workers())
    kill(victim)
    with pytest.raises(WorkerDiedError, match=f"pid {victim}.* was killed by SIGKILL"):
        for _ in samples:
            pass


@pytest.mark.parametrize("kind", [tuple, list])  # the one without pickle, the other with it
def test_scribbles_over_samples(tmp_path, kind):
    def scribbled():
        for i in range(100):
            if i == 1:
                wait_until((tmp_path / "first").exists, "the first sample is taken, and no other")
            if i == 50:
                (tmp_path / "half").touch()
                wait_until((tmp_path / "go").exists, "the scribbling")
            yield kind((f"needle {i:03}", i))

    samples = multiprocess_reader([scribbled], context="fork")()
    taken = [next(samples)]
    (tmp_path / "first").touch()
    wait_until((tmp_path / "half").exists, "samples lie in memory")
    (reader,) = workers()
    with open(memory_of(reader), "r+b", buffering=0) as file:
        assert overwrite(file.fileno(), b"needle", b"noodle") > 0
    (tmp_path / "go").touch()
    with pytest.raises(OverwrittenError, match="shared memory was overwritten"):
        taken.extend(samples)
    assert taken == [kind((f"needle {i:03}", i)) for i in range(len(taken))]
    assert not workers()


def overwrite(fd, old, new):
    """Replaces what is found in a sparse file; how often."""
    count = position = 0
    with contextlib.suppress(OSError):  # no data any more
        while True:
            start = os.lseek(fd, position, os.SEEK_DATA)
            position = os.lseek(fd, start, os.SEEK_HOLE)
            content = os.pread(fd, position - start, start)
            at = content.find(old)
            while at >= 0:
                count += os.pwrite(fd, new, start + at) == len(new)
                at = content.find(old, at + len(old))
    return count


@pytest.mark.parametrize("has_pidfds", [True, False])
def test_what_a_reader_has_forked_outlives_it(monkeypatch, tmp_path, has_pidfds):
    def dies():
        yield from range(3)
        fork_one_that_stays(tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)

    if not has_pidfds:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    try:
        with pytest.raises(WorkerDiedError, match="was killed by SIGKILL after 3 samples"):
            list(forked([dies, nothing])())
        (child,) = [int(path.suffix[1:]) for path in tmp_path.glob("child.*")]
        assert is_alive(child)
    finally:
        (tmp_path / "end").touch()
    wait_until(lambda: not is_alive(child), "what the reader had forked ends")


def test_a_reader_that_closes_descriptors_ends_the_pass():
    """It has lost the memory's, too, and can get no more of it.

    Whether it can still say so depends on what was read by then.
    """

    def closes():
        for number in range(100_000):
            if number == 100:
                os.closerange(3, 1000)
            yield np.full(1000, number)

    found = []
    with pytest.raises((WorkerDiedError, OSError), match=r"closes\)") as raised:
        for sample in forked([closes])():
            found.append(int(sample[0]))
    assert found == list(range(len(found)))
    if isinstance(raised.value, OSError):
        assert raised.value.errno == errno.EBADF
    else:
        assert "exited with status 1" in str(raised.value)


def test_a_reader_without_memory_for_its_second_block_says_so():
    """That block has columns, and is begun before their schema is written into it."""

    def grows():
        yield np.zeros(1000)
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
        yield np.zeros(1000)

    with pytest.raises(MemoryError, match="after 1 samples"):
        list(forked([grows])())


def test_a_reader_that_cannot_be_opened():
    with pytest.raises(TypeError, match="returned a int when it was called"):
        list(forked([lambda: 3])())


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_reader_that_cannot_travel_is_named(method):
    class Locked(Numbers):
        def __init__(self):
            super().__init__(0, 3)
            self.lock = (i for i in ())

    with pytest.raises(TypeError, match=r"reader 1 \(.*Locked\).* context='fork'.*xmap_readers"):
        list(multiprocess_reader([nothing, Locked()], context=method)())


def test_what_cannot_be_loaded_in_a_process_is_told():
    with pytest.raises(OSError, match="it cannot be loaded"):
        list(multiprocess_reader([Travelling()], context="spawn")())


class Travelling(Unloadable):
    """A reader that fails to load."""

    def __call__(self):
        return iter(())


# ---- ends ----------------------------------------------------------------------------------------


def one_array_for_ever():
    while True:
        yield np.zeros(1000)


@pytest.mark.parametrize("source", [itertools.count, one_array_for_ever])
@pytest.mark.parametrize("way", ["break", "close", "del", "raise"])
def test_leaving_early_ends_the_processes(way, source):
    reader = forked([source, source], True, 10)
    if way == "raise":
        with pytest.raises(ZeroDivisionError):
            for _ in reader():
                1 / 0  # noqa: B018
    elif way == "break":
        for _ in reader():
            break
    else:
        samples = reader()
        next(samples)
        assert len(workers()) == 2
        samples.close() if way == "close" else None
        del samples
    gc.collect()
    assert workers() == set()


def test_leaving_early_runs_the_finally_clauses_of_a_reader(tmp_path):
    def careful():
        try:
            yield from itertools.count()
        finally:
            (tmp_path / "closed").touch()

    for _ in forked([careful], True, 5)():
        break
    assert (tmp_path / "closed").exists()


def test_a_reader_that_hangs_does_not_hold_up_the_end():
    def hangs():
        yield 1
        threading.Event().wait()

    samples = forked([hangs])()
    next(samples)
    samples.close()
    assert workers() == set()

"""Address space that loaders take, memory of workers, and what a kept batch costs."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator

import numpy as np
import pytest
from examples_of import Blocks, Collected
from inside import pids_of
from outside import (
    OUR_FILES,
    descriptors,
    mapped_arenas,
    mapped_bytes,
    memory_behind,
    reserved,
    wait_until,
)

from fastiter import MultiprocessIterator, concat_examples
from fastiter.reader import multiprocess_reader

MIB = 1 << 20
CONTROL = MIB  # what a kept batch may cost besides its bytes: words, and records of slots


class Arrays:
    """Arrays of as many bytes as `sizes` says in turn, filled with their index."""

    def __init__(self, length: int, *sizes: int):
        self.length = length
        self.sizes = sizes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(self.sizes[index % len(self.sizes)], index % 251, np.uint8)


class Fields(Arrays):
    """The same in columns of one shape, where all sizes are one."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return super().__getitem__(index), index


@pytest.fixture
def memory() -> Iterator[list[int]]:
    """Takes descriptors of the memory that is there: `allocated` counts its pages afterwards."""
    kept: list[int] = []
    yield kept
    for fd in kept:
        os.close(fd)


def watch(memory: list[int]) -> None:
    for fd, link in descriptors().items():
        if any(name in link for name in OUR_FILES):
            memory.append(os.dup(fd))


def allocated(memory: list[int]) -> int:
    return sum(os.fstat(fd).st_blocks * 512 for fd in memory)


# -- address space ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_loader_takes_a_small_multiple_of_its_batches(make, method):
    """In the program and in its workers, whatever the method."""
    size = 6 * MIB
    before = mapped_bytes()
    iterator = make(Fields(40, size), 2, context=method)
    for number in range(30):
        batch = next(iterator)
        assert [int(x[-1]) for x, _ in batch] == [2 * number % 40, (2 * number + 1) % 40]
    slots = iterator.stats().slots
    for taken in [mapped_bytes() - before, *map(mapped_bytes, pids_of(iterator))]:
        assert taken <= slots * 4 * (2 * size) + 32 * MIB


def test_collections_in_workers_of_a_fork_server_do_not_copy_modules(make):
    iterator = make(Collected(), 1, n_processes=1, context="forkserver")
    (taken,) = next(iterator)
    assert taken < 3 * MIB


def test_a_batch_size_that_no_batch_has_takes_no_memory(make):
    iterator = make(Fields(40, MIB // 4), 10_000, repeat=False)
    for _ in range(3):
        assert [len(batch) for batch in iterator] == [40]
        assert reserved() < 64 * MIB  # 10,000 rows have 2.5 GB
        iterator.reset()


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Arrays, "fork"),
        (Fields, "spawn"),
        pytest.param(Arrays, "spawn", marks=pytest.mark.stress),
        pytest.param(Fields, "fork", marks=pytest.mark.stress),
    ],
)
def test_batches_that_grow(make, kind, method):
    """By new mappings, in the program and in workers; what is held from before stays."""
    sizes = [1000, 2 * MIB, 30_000, 9 * MIB, 100, 5 * MIB, 40 * MIB, 7]
    dataset = kind(len(sizes), *sizes)
    iterator = make(dataset, 2, context=method)
    held = []
    for number in range(3 * len(sizes) // 2):
        batch = next(iterator)
        rows = [row if kind is Arrays else row[0] for row in batch]
        for row, array in enumerate(rows):
            index = (2 * number + row) % len(sizes)
            assert array.size == sizes[index] and (array == index).all()
        held.append((number, rows[0][:50]))
    for number, view in held:
        assert (view == 2 * number % len(sizes)).all()


def test_a_converter_in_workers_reads_rows_of_others(make):
    """Each worker maps what the other has written, for the batch that it finishes."""
    iterator = make(Arrays(64, 3 * MIB, MIB, 2 * MIB, 5 * MIB), 8, converter=padded)
    for number in range(12):
        batch = next(iterator)
        assert batch.shape == (8, 5 * MIB)
        assert batch[:, 0].tolist() == [(8 * number + row) % 64 for row in range(8)]
        assert batch[:, -1].tolist() == [
            (8 * number + row) % 64 if row % 4 == 3 else 255 for row in range(8)
        ]


def padded(examples, device=None):
    return concat_examples(examples, device, padding=255)


HEAD = """
    import resource
    import numpy as np
    from pathlib import Path
    from fastiter import MultiprocessIterator

    class Images:
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return np.full(3 << 18, index)  # 6 MiB

    def limit(nbytes):
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + nbytes,) * 2)

    def make():
        return MultiprocessIterator(
            Images(), 1, n_processes=1, n_prefetch=1, shuffle=False, context="fork"
        )
"""


def test_many_loaders_at_once_in_a_small_address_space(output_of):
    """A thousandth of what 39 bits give; and the program can go on to allocate."""
    out = output_of("""
        if __name__ == "__main__":
            limit(2 << 30)
            made = [make() for _ in range(16)]
            for iterator in made:
                assert [int(next(iterator)[0][5]) for _ in range(6)] == [0, 1, 2, 3, 0, 1]
            np.empty(512 << 20, np.uint8)
            for iterator in made:
                iterator.finalize()
            print("done")
        """)
    assert out == "done\n"


def test_many_kept_batches_in_a_small_address_space(output_of):
    out = output_of("""
        if __name__ == "__main__":
            limit(1 << 30)
            kept = []
            for epoch in range(24):
                with make() as iterator:
                    batches = [next(iterator) for _ in range(3)]
                    kept.append(batches[epoch % 3][0])
                del batches
            assert [int(x[9]) for x in kept] == [epoch % 3 for epoch in range(24)]
            print("done")
        """)
    assert out == "done\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's heap")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_does_not_fault_in_what_each_example_works_with_anew(output_of, method):
    """Arrays that the heap would give back with each example. In a program of its own: nothing
    has raised the limits of the heap there before."""
    out = output_of(f"""
        class Decoded:
            def __len__(self):
                return 400
            def __getitem__(self, index):
                steps = [np.full(600_000, index % 251, np.uint8) for _ in range(5)]
                return steps[4][:1000], resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        if __name__ == "__main__":
            with MultiprocessIterator(Decoded(), 1, n_processes=1, shuffle=False, repeat=False,
                                      context={method!r}) as iterator:
                faults = [batch[0][1] for batch in iterator]
            assert len(faults) == 400
            print((faults[-1] - faults[-201]) // 200)
        """)
    assert int(out) < 40  # of the 730 pages that an example works with


# -- kept batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Arrays, Fields])
def test_a_kept_batch_costs_its_own_bytes(make, memory, kind):
    gc.collect()
    before = descriptors(), mapped_arenas()
    size = 3 * MIB
    iterator = make(kind(40, size), 2)
    kept = []
    for number in range(9):
        batch = next(iterator)
        if number in (4, 7):
            kept.append([row if kind is Arrays else row[0] for row in batch])
    del batch
    watch(memory)
    assert allocated(memory) > 3 * 2 * size
    iterator.finalize()
    assert descriptors().keys() - set(memory) <= before[0].keys()  # an earlier test's may close
    assert allocated(memory) <= 2 * 2 * size + CONTROL
    assert [[int(x[-1]) for x in batch] for batch in kept] == [[8, 9], [14, 15]]
    del kept[0]
    gc.collect()
    assert allocated(memory) <= 2 * size + CONTROL
    assert [int(x[-1]) for x in kept[0]] == [14, 15]
    assert mapped_arenas() == before[1] + 1
    assert mapped_bytes() < 4 * 2 * size + 16 * MIB
    del kept
    gc.collect()
    assert allocated(memory) <= CONTROL
    del iterator, make
    gc.collect()


def test_a_small_batch_does_not_keep_what_its_slot_has_beyond(make, memory):
    """Its slot held a larger batch before."""
    iterator = make(Arrays(60, 12 * MIB, 1000, 1000), 1)
    kept = [next(iterator) for _ in range(60)][-1][0]
    gc.collect()
    watch(memory)
    iterator.finalize()
    assert allocated(memory) <= CONTROL
    assert kept.size == 1000 and (kept == 59).all()


def test_a_kept_batch_gives_back_what_its_slot_has_beyond_meanwhile(make, memory):
    large, small = 12 * MIB, 4 * MIB
    iterator = make(Arrays(10_000, large, large, small), 1, n_processes=1, n_prefetch=2)
    for _ in range(12):
        next(iterator)
    held = []
    for number in range(12, 30):
        array = next(iterator)[0]
        if array.size == small and len(held) < 2:
            held.append((number, array))
    watch(memory)
    for _ in range(8 * (iterator.stats().slots + 40)):  # in turn, one slot in eight batches
        next(iterator)
    for number, array in held:
        assert memory_behind(array, memory[-1]) <= small + 2 * MIB
        assert (array == number % 251).all()


def test_thousands_of_kept_batches(make):
    """Of one iterator: those beyond its slots are copies. No descriptor is kept for any."""
    before = len(descriptors())
    iterator = make(Blocks(64), 4)
    kept = [next(iterator) for _ in range(3000)]
    during = len(descriptors())
    iterator.finalize()
    assert len(descriptors()) == before < during < before + 20
    for number in range(0, 3000, 7):
        assert int(kept[number][0][0]) // 64 == 4 * number % 64


def test_a_child_keeps_a_batch_that_its_parent_has_dropped(make, memory):
    """The parent gives nothing back that the child may still read, before and after the end."""
    dataset = Fields(40, MIB)
    iterator = make(dataset, 2)
    early, late = next(iterator), next(iterator)
    watch(memory)
    request, answer = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(request[0], 1)
            sums = [[int(x.sum()) for x, _ in batch] for batch in (early, late)]
            code = 0 if sums == [[0, MIB], [2 * MIB, 3 * MIB]] else 2
            del early, late
            gc.collect()
        finally:
            os._exit(code)
    try:
        del early
        gc.collect()
        for _ in range(20):
            next(iterator)
        iterator.finalize()
        own = next(iter(late))[0]
        del late
        gc.collect()
        assert (own == 2).all()
        del own
        gc.collect()
        os.write(request[1], b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        for fd in (*request, *answer):
            os.close(fd)


def test_a_child_that_ends_takes_nothing_from_its_parent(make):
    """It has inherited a batch of an iterator that had ended, and drops it."""
    iterator = make(Fields(40, MIB), 2)
    batch = next(iterator)
    iterator.finalize()
    pid = os.fork()
    if pid == 0:
        try:
            del batch
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [int(x.sum()) for x, _ in batch] == [0, MIB]


def samples_of_a_reader():
    for number in range(400):
        yield np.full(64 << 10, number % 251, np.uint8)


def test_samples_of_a_reader_that_are_kept(memory):
    kept = []
    passing = multiprocess_reader([samples_of_a_reader], queue_size=64)()
    for number, sample in enumerate(passing):
        if number == 100:
            watch(memory)
        if number in (0, 200):
            kept.append((number, sample))
    del passing, sample
    gc.collect()
    wait_until(lambda: allocated(memory) <= 2 * 2 * MIB + CONTROL, "all but two blocks go back")
    assert all((sample == number % 251).all() for number, sample in kept)
    del kept
    gc.collect()
    assert allocated(memory) <= CONTROL


def test_a_ring_that_is_closed_in_the_middle_of_a_call(make):
    """A signal handler may do that while a batch is scheduled or assembled."""

    class Ending(MultiprocessIterator):
        pass

    closing = []

    class Shown:
        """Ends the iterator when it is loaded in the program."""

        def __init__(self, data):
            self.data = data

        def __reduce__(self):
            return _shown, (self.data,)

    def _end():
        if closing and os.getpid() == closing[0]:
            iterator.finalize()

    class Objects(Arrays):
        def __getitem__(self, index):
            return Shown(super().__getitem__(index)), super().__getitem__(index)

    global _shown

    def _shown(data):
        _end()
        return data

    iterator = Ending(Objects(40, 2 * MIB), 2, n_processes=1, shuffle=False, context="fork")
    for _ in range(3):
        next(iterator)
    closing.append(os.getpid())
    batch = next(iterator)
    gc.collect()
    for row, example in enumerate(batch):
        for array in example:
            assert (array == 2 * 3 + row).all()
    with pytest.raises(RuntimeError, match="finalized"):
        next(iterator)

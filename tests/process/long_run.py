"""A long run whose workers are killed at random moments, as a program of its own:

    python tests/process/long_run.py --examples 10000000 --kills 200

Every example is compared with what its index says, every epoch with the order that its sampler
gave, each index exactly once; batches that are held for a while are compared again when they are
let go. Memory, descriptors and threads are read from outside, when the workers have started and
then twenty times. Prints the figures; fails with an AssertionError. ``--epoch 37`` makes epochs
short, ``--reset`` begins each by ``reset()``, as a loop over validation data does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from outside import children, descriptors, is_alive, mapped_arenas, orphaned_names, threads

from fastiter import MultiprocessIterator, concat_examples

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))  # for whoever runs it by hand

from inside import n_restarts, pids_of

LOOKS = 20
#: Bytes that allocators of parent and workers may keep; those of sanitizers keep more.
SLACK = int(os.environ.get("FASTITER_TEST_SLACK_MIB", "8")) << 20
HELD = 6  #: batches at a time


class Told:
    """An example tells its index in each of its elements, and in the number beside them."""

    def __init__(self, size: int) -> None:
        self.blocks = told(np.arange(size))

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.blocks[index], index


def told(indices: np.ndarray) -> np.ndarray:
    return (indices * 0x9E3779B1 + 1)[:, None] + np.arange(8)


class Recorded:
    """An order sampler that keeps the orders it gave until they are compared."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.generator = size, np.random.default_rng(seed)
        self.given: deque[np.ndarray] = deque()

    def __call__(self, order: Any, position: int) -> np.ndarray:
        self.given.append(self.generator.permutation(self.size))
        return self.given[-1]


class Expected:
    """Compares what is delivered with the orders that were given."""

    def __init__(self, orders: Recorded) -> None:
        self.orders = orders
        self.at = 0  # in the epoch
        self.seen = np.zeros(orders.size, np.int64)
        self.epochs = 0
        self.examples = 0

    def compare(self, blocks: np.ndarray, indices: np.ndarray) -> None:
        assert is_right(blocks, indices), f"content of examples {indices[:8]}..."
        self.examples += len(indices)
        while len(indices):
            part = indices[: self.orders.size - self.at]
            wanted = self.orders.given[0][self.at : self.at + len(part)]
            assert np.array_equal(part, wanted), f"epoch {self.epochs}, example {self.at}"
            np.add.at(self.seen, part, 1)
            self.at += len(part)
            indices = indices[len(part) :]
            if self.at == self.orders.size:
                self.end_epoch()

    def end_epoch(self) -> None:
        self.epochs += 1
        assert (self.seen == self.epochs).all(), f"epoch {self.epochs - 1} is not complete"
        self.orders.given.popleft()
        self.at = 0


def is_right(blocks: np.ndarray, indices: np.ndarray) -> bool:
    return np.array_equal(blocks, told(indices))


@dataclass
class Look:
    """Resources of the program and its workers, seen from outside."""

    resident: int  #: of the parent
    shared: int  #: resident shared memory of the parent: the slots
    proportional: int  #: of parent and workers, without files, which other programs map, too
    descriptors: int
    threads: int
    mappings: int
    processes: int

    @classmethod
    def now(cls) -> Look:
        own = psutil.Process().memory_info()
        workers = children()
        proportional = sum(map(proportional_bytes, [os.getpid(), *workers]))
        return cls(
            own.rss,
            own.shared,
            proportional,
            len(descriptors()),
            threads(),
            mapped_arenas(),
            len(workers),
        )

    def __str__(self) -> str:
        return (
            f"RSS {self.resident >> 10} KiB, shared {self.shared >> 10} KiB, PSS of all "
            f"{self.proportional >> 10} KiB, {self.descriptors} descriptors, {self.threads} "
            f"threads, {self.mappings} mappings, {self.processes} processes"
        )


def proportional_bytes(pid: int) -> int:
    """PSS of a process apart from mapped files; 0 if it has just ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found = [line.split()[1] for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
        return sum(map(int, found)) << 10
    return 0


class Killer:
    """Kills one worker whenever one of `kills` random counts of examples is reached, up to 5 ms
    later, in a thread of its own."""

    def __init__(self, iterator: MultiprocessIterator, kills: int, examples: int, seed: int):
        self.iterator = iterator
        self.random = random.Random(seed)
        # None in the very first batches, which start the workers, nor in the last.
        self.due = sorted(
            (self.random.randrange(examples // 50, examples * 49 // 50) for _ in range(kills)),
            reverse=True,
        )
        self.victims: list[int] = []
        self.due_now = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.work, args=(kills,), daemon=True)
        self.thread.start()

    def tell(self, examples: int) -> None:
        while self.due and self.due[-1] <= examples:
            self.due.pop()
            self.due_now.release()

    def work(self, kills: int) -> None:
        for _ in range(kills):
            self.due_now.acquire()
            time.sleep(self.random.uniform(0, 0.005))
            while not self.kill_one():
                time.sleep(0.001)  # all dead: until one is replaced

    def kill_one(self) -> bool:
        pids = pids_of(self.iterator)
        alive = [pid for pid in pids if pid not in self.victims and is_alive(pid)]
        if not alive:
            return False
        victim = self.random.choice(alive)
        os.kill(victim, signal.SIGKILL)
        self.victims.append(victim)
        return True


class Holder:
    """Holds some batches for a while, and compares them again when it lets them go."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.held: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def look(self, blocks: np.ndarray, indices: np.ndarray) -> None:
        if self.random.random() < 0.3:
            self.held.append((blocks, indices, indices.copy()))
        if len(self.held) >= HELD:
            blocks, indices, known = self.held.pop(self.random.randrange(HELD))
            assert np.array_equal(indices, known), "the indices of a batch that was held"
            assert is_right(blocks, known), "the content of a batch that was held"


def run(
    *, examples: int, kills: int, workers: int, batch: int, epoch: int, reset: bool, context: str
) -> str:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    names, opened, ran = orphaned_names(), descriptors(), threads()
    orders = Recorded(epoch, seed)
    iterator = MultiprocessIterator(
        Told(epoch),
        batch,
        repeat=not reset,
        shuffle=None,
        n_processes=workers,
        n_prefetch=3,
        order_sampler=orders,
        converter=concat_examples,
        context=context,
    )
    expected, holder = Expected(orders), Holder(seed)
    started = time.monotonic()
    iterator.start()
    looks = [Look.now()]  # all workers are there: later they may be fewer, for a while
    killer = Killer(iterator, kills, examples, seed)
    due = examples // LOOKS
    while expected.examples < examples:
        for columns in iterator:
            expected.compare(*columns)
            holder.look(*columns)
            killer.tell(expected.examples)
            if expected.examples >= due:
                looks.append(Look.now())
                due += examples // LOOKS
                if expected.examples >= examples:
                    break
        if reset and expected.at == 0:
            iterator.reset()
            while len(orders.given) > 1:  # of the epoch before, never begun
                orders.given.popleft()
    killer.thread.join(60)
    assert not killer.thread.is_alive(), f"{len(killer.victims)} of {kills} kills"
    seconds = time.monotonic() - started
    restarts = n_restarts(iterator)
    assert kills - workers <= restarts <= kills, f"{restarts} restarts after {kills} kills"
    workers_at_end = pids_of(iterator)
    iterator.finalize()
    del iterator, columns, killer.iterator, holder
    check_flat(looks)
    # NumPy's BLAS starts its threads again some time after a fork; beside them there is the killer.
    assert max(look.threads for look in looks) <= ran + 1, [look.threads for look in looks]
    assert not any(map(is_alive, killer.victims + workers_at_end))
    if context != "forkserver":  # which is multiprocessing's, and stays
        assert children() == set()
        assert descriptors() == opened
    assert threads() <= ran  # a fork ends those of NumPy's BLAS
    assert mapped_arenas() == 0
    assert orphaned_names() <= names
    return (
        f"{expected.examples} examples of {expected.epochs} epochs in {seconds:.1f} s, "
        f"{len(killer.victims)} kills, {restarts} workers replaced, content exact\n"
        f"after a twentieth: {looks[1]}\nhalf way:          {looks[len(looks) // 2]}\n"
        f"at the end:        {looks[-1]}"
    )


def check_flat(looks: list[Look]) -> None:
    """The later half takes no more than the earlier one did; of memory as a rule, since a look may
    come while a killed worker and its successor both have theirs, or neither has."""
    looks = looks[len(looks) // 4 :]  # at first slots and workers touch further pages
    early, late = looks[: len(looks) // 2], looks[len(looks) // 2 :]
    for name in ("resident", "shared", "proportional"):
        before = max(getattr(look, name) for look in early)
        after = median(getattr(look, name) for look in late)
        assert after - before < SLACK, f"{name} grows: {[getattr(k, name) for k in looks]}"
    # A dead worker's pipes are still open while its death has not been noticed.
    for name in ("descriptors", "mappings", "processes"):
        before, after = (max(getattr(look, name) for look in part) for part in (early, late))
        assert after <= before, f"{name} grow: {[getattr(look, name) for look in looks]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--examples", type=int, default=10_000_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epoch", type=int, default=100_003, help="examples of an epoch")
    parser.add_argument("--reset", action="store_true", help="begin each epoch by reset()")
    parser.add_argument("--context", default="fork", help="fork, spawn or forkserver")
    print(run(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()

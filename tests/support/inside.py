"""Questions of tests about private parts of iterators, which no other file names.

Each function takes an iterator over worker processes that have been started, one of
`fastiter.torch.DataLoader` too, unless it says otherwise. What `stats()` tells is not here.
"""

from __future__ import annotations

from typing import Any


def pids_of(iterator: Any) -> list[int]:
    """Pids of the workers, in the order of their numbers."""
    return [worker.pid for _, worker in sorted(group_of(iterator).workers.items())]


def ready_pids_of(iterator: Any) -> list[int]:
    """Pids of those workers that have loaded the dataset."""
    ring = ring_of(iterator)
    workers = list(group_of(iterator).workers.values())
    return [w.pid for w in workers if ring.report(w.number)["ready"] == w.start]


def have_begun(iterator: Any) -> bool:
    """Whether all workers have loaded the dataset. False where none has been started."""
    return bool(iterator._executor.pool) and iterator._executor.pool.is_steady()


def has_spare(iterator: Any) -> bool:
    """Whether there is a process that waits to take the place of a worker."""
    group = group_of(iterator)
    spare, report = group._spare, ring_of(iterator).report(group.count)
    return spare is not None and bool(report["ready"] == spare.start)


def start_method_of(iterator: Any) -> str:
    """The method that started the workers: 'fork', 'spawn' or 'forkserver'."""
    method: str = group_of(iterator)._method
    return method


def n_restarts(iterator: Any) -> int:
    """Workers that took the place of one that had died. `stats().deaths` counts forks that hung
    in their start, too."""
    number: int = iterator._executor.pool.restarts
    return number


def slots_of(iterator: Any) -> dict[str, int]:
    """Slots of the ring by phase: free, leased, draining, retired. What has come back is free."""
    ring_of(iterator).has_free_slot()
    return dict(ring_of(iterator).slots)


def ring_of(iterator: Any) -> Any:
    """The parent's half of the ring: its memory, its schema, the batches that are scheduled."""
    return iterator._executor.pool.ring


def group_of(iterator: Any) -> Any:
    """The group of worker processes, for tests that put something in the place of a part of it."""
    return iterator._executor.pool._group


def pool_of(iterator: Any) -> Any:
    """The pool, which adjusts settings and watches over the time. None before the start."""
    return iterator._executor.pool


def planner_of(iterator: Any) -> Any:
    """The planner of any iterator, or of a `TokenDataset`."""
    return iterator._planner


def abandoned_thread_of(iterator: Any) -> Any:
    """The first thread of a `MultithreadIterator` that was left behind."""
    return iterator._executor._threads._abandoned[0]


def lookahead_of(iterator: Any) -> Any:
    """The executor of a `MultithreadIterator`: batches fetched ahead, and the size of one."""
    return iterator._executor


def tuner_of(iterator: Any) -> Any:
    """The tuner of the settings that are 'auto'."""
    return iterator._tuner


def executor_of(iterator: Any) -> Any:
    """The executor of any iterator."""
    return iterator._executor


def n_copies_of(iterator: Any) -> int:
    """Batches that are being copied to a GPU ahead of the next one."""
    return sum(plan.outcome is not None for plan in iterator._planner.plans)


def copy_no_more(iterator: Any) -> None:
    """Have no further batch copied to a GPU ahead of its turn."""
    iterator._stage._most = 1

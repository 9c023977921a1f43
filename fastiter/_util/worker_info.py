"""What a worker process can know about itself."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["WorkerInfo", "get_worker_info"]


class WorkerInfo(NamedTuple):
    """A worker process, as `get_worker_info` describes it."""

    id: int  #: its number, from 0 to ``num_workers - 1``; one that replaces another has the same
    num_workers: int  #: worker processes of the iterator; with n_processes='auto', at most
    seed: int  #: 64 bits that no other start of a worker has; its generators are seeded likewise
    dataset: Any  #: the dataset, as this process has it


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Tell about the worker process of a `MultiprocessIterator` that this code runs in.

    For ``worker_init``, and for datasets that give each worker a part of something (a connection,
    a directory, a core).

    Returns
    -------
    WorkerInfo or None
        A named tuple of ``id``, ``num_workers``, ``seed`` and ``dataset``; None in every other
        process: that of the iterator, which also fetches for `SerialIterator`,
        `MultithreadIterator` and ``n_processes=0``.
    """
    return _info


def set_worker_info(info: WorkerInfo) -> None:
    """Makes this process a worker."""
    global _info
    _info = info

"""`get_worker_info`: facts about the worker process that code runs in."""

from __future__ import annotations

from typing import Any, NamedTuple


class WorkerInfo(NamedTuple):
    """A worker process, as `get_worker_info` describes it."""

    id: int  #: its number, from 0 to ``num_workers - 1``; a replacement has the same number
    num_workers: int  #: worker processes of the iterator; with n_processes='auto', at most
    seed: int  #: 64 bits, different for each start of a worker; its generators are seeded by them
    dataset: Any  #: the dataset of this process


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return facts about the worker process of a `MultiprocessIterator` that this code runs in.

    For ``worker_init``, and for datasets that assign each worker its own connection, directory or
    CPU.

    Returns
    -------
    WorkerInfo or None
        A named tuple of ``id``, ``num_workers``, ``seed`` and ``dataset``. None in every other
        process, such as that of the iterator, which fetches for `SerialIterator`,
        `MultithreadIterator` and ``n_processes=0``.
    """
    return _info


def set_worker_info(info: WorkerInfo | None) -> None:
    """Make this process a worker; None at its end."""
    global _info
    _info = info

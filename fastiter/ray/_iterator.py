"""The iterator whose workers run on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from fastiter._clib import status
from fastiter._stats.stats import LoaderStats, NodeStats
from fastiter._util.arguments import checked_int, checked_seconds
from fastiter._workers.batch_converter import BatchConverter
from fastiter._workers.main import BatchJob
from fastiter._workers.pool import Pool
from fastiter._workers.process import WorkerProcess
from fastiter._workers.timeouts import Timeouts
from fastiter.iterators._arguments import (
    DEFAULT_RETRIES,
    OnTimeout,
    Rank,
    SeedExamples,
    Tail,
    names_counterparts,
)
from fastiter.iterators._skips import DEFAULT_LIMIT, OnError
from fastiter.iterators._stream_parts import PartStore
from fastiter.iterators.multiprocess import MultiprocessIterator
from fastiter.ray._errors import ClusterError
from fastiter.ray._job import Cluster, ClusterJob, image_of

_MOST_WORKERS = 4096


class RayIterator(MultiprocessIterator):
    """Iterates over a dataset with workers on the nodes of a Ray cluster.

    The batches are those of `MultiprocessIterator`, in the same order, with the same state: either
    goes on where the other one stopped. Rows are fetched on the nodes, a part of a batch by each
    worker, and copied into a slot of this machine's ring. A helper process of this machine talks to
    Ray; the program need not be connected with it.

    Rows of a worker or node that dies, or does not answer for ``silence`` seconds, are fetched by
    another one. The guide's page on clusters tells when remote workers pay.

    Parameters
    ----------
    dataset, batch_size, repeat, shuffle, order_sampler, n_prefetch, dataset_timeout
        As in `MultiprocessIterator`. The dataset travels to each node once, pickled; it should open
        files where it reads them. All nodes need the versions of Python, NumPy and fastiter of this
        program, and the modules of the dataset.
    n_workers : int
        Workers on the cluster. With fewer places than that the iterator goes on with those there
        are, and warns after ``dataset_timeout``.
    n_local : int
        Worker processes of this machine beside them, which take rows from the same batches.
    resources : mapping, optional
        What Ray reserves for each worker, by Ray's names; None for ``{'CPU': 1}``.
    address : str, optional
        Where the head of the cluster listens, host and port. None for the cluster that this program
        is connected with, or else for the one that Ray finds (``RAY_ADDRESS``).
    silence : float
        Seconds without a sign of life after which others fetch what a worker has.
    on_timeout, n_retries, hedge, converter, device, n_device_prefetch, on_error, skip_limit
        As in `MultiprocessIterator`. A converter other than `concat_examples` runs on this machine.
    drop_last, batch_sampler, rank, num_ranks, tail, skip_steps, seed_examples, in_order
        As in `MultiprocessIterator`.
    worker_init : callable, optional
        As in `MultiprocessIterator`. Workers of this machine have the first numbers.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the dataset is empty.

    Notes
    -----
    ``next()`` raises `ClusterError` if the cluster cannot be reached, or its head, this machine's
    raylet or the helper process was lost. Nothing else is lost with it: `state_dict` works, and the
    next call connects again.
    """

    _gathers_in_caller = False

    @names_counterparts
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_workers: int = 1,
        n_prefetch: int = 4,
        order_sampler: Callable[[Any, int], Any] | None = None,
        dataset_timeout: float | None = 30.0,
        *,
        n_local: int = 0,
        resources: Mapping[str, float] | None = None,
        address: str | None = None,
        silence: float = 5.0,
        on_timeout: OnTimeout = "warn",
        n_retries: int = DEFAULT_RETRIES,
        hedge: float | None = None,
        converter: Callable[[Any, Any], Any] | None = None,
        device: Any = None,
        n_device_prefetch: int = 1,
        on_error: OnError = "raise",
        skip_limit: float | None = DEFAULT_LIMIT,
        drop_last: bool = False,
        batch_sampler: Callable[[int], Any] | None = None,
        rank: Rank = None,
        num_ranks: Rank = None,
        tail: Tail = "pad",
        skip_steps: Sequence[tuple[int, int]] = (),
        seed_examples: SeedExamples = False,
        in_order: bool = True,
        worker_init: Callable[[int], Any] | None = None,
    ) -> None:
        self._n_workers = checked_int("n_workers", n_workers, minimum=1, maximum=_MOST_WORKERS)
        self._n_local = checked_int("n_local", n_local, minimum=0, maximum=_MOST_WORKERS)
        self._resources = dict({"CPU": 1} if resources is None else resources)
        if any(type(n) not in (int, float) or n < 0 for n in self._resources.values()):
            raise ValueError(
                f"resources must be amounts by name, as {{'CPU': 1}}, not {resources!r}"
            )
        if not (address is None or (isinstance(address, str) and "://" not in address)):
            raise ValueError(
                f"address must be host and port of the head of a cluster, not {address!r}"
            )
        self._address = address
        self._silence = checked_seconds("silence", silence) or float("inf")
        super().__init__(
            dataset,
            batch_size,
            repeat,
            shuffle,
            1 + self._n_local,  # the helper is one
            n_prefetch,
            None,
            order_sampler,
            dataset_timeout,
            on_timeout=on_timeout,
            n_retries=n_retries,
            hedge=hedge,
            converter=converter,
            device=device,
            n_device_prefetch=n_device_prefetch,
            on_error=on_error,
            skip_limit=skip_limit,
            drop_last=drop_last,
            batch_sampler=batch_sampler,
            rank=rank,
            num_ranks=num_ranks,
            tail=tail,
            skip_steps=skip_steps,
            seed_examples=seed_examples,
            in_order=in_order,
            worker_init=worker_init,
        )

    @property
    def n_workers(self) -> int:
        """Workers on the cluster that are asked for."""
        return self._n_workers

    @property
    def n_local(self) -> int:
        """Worker processes of this machine."""
        return self._n_local

    def _open_reading(self, store: PartStore) -> None:
        raise TypeError("a StreamDataset is read on one machine: use MultiprocessIterator")

    def _make_pool(self, **arguments: Any) -> Pool:
        return ClusterPool(**arguments)

    def _job(self, converter: BatchConverter | None) -> BatchJob:
        cluster = Cluster(
            address=self._address or _address_of_program(),
            workers=self._n_workers,
            local=self._n_local,
            resources=self._resources,
            silence=self._silence,
            dataset_timeout=self._dataset_timeout,
            n_retries=self._n_retries if self._on_timeout == "retry" else None,
            hedge=self._hedge or 0.0,
        )
        return ClusterJob(
            image_of(self._source.dataset, self._worker_init),
            converter,
            None,
            None,
            retries=self._on_timeout == "retry",
            hedges=self._hedge is not None,
            cluster=cluster,
        )


def _address_of_program() -> str:
    """That of the cluster which this program is connected with."""
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else "auto"


class ClusterPool(Pool):
    """A pool whose worker 0 is the helper."""

    def __init__(self, *, dataset_timeout: float | None, n_retries: int | None, **others: Any):
        super().__init__(dataset_timeout=dataset_timeout, n_retries=n_retries, **others)
        assert isinstance(self.job, ClusterJob)
        self._board = self.job.board
        self._group.has_spare = False  # it might take the helper's number
        self._limits: ClusterTimeouts = ClusterTimeouts(
            dataset_timeout, self.ring, self._group, self._retries
        )
        self._limits.board = self._board
        self._timeouts = self._limits

    def statistics(self, seconds: float) -> LoaderStats:
        nodes = self._board.read().get("nodes", {})
        found = tuple(NodeStats(name, **facts) for name, facts in nodes.items())
        return super().statistics(seconds)._replace(nodes=found)

    def look(self) -> None:
        super().look()
        self.has_to_look = True
        self._limits.tell("the next batch")

    def _recover(self, worker: WorkerProcess) -> None:
        is_helper = worker.number == self._group.helper and not self.closed
        reason = worker.exit_reason() if is_helper else ""
        super()._recover(worker)
        if is_helper:
            self.close()
            told = self._board.read().get("reason") or (
                f"its helper process {worker.pid} {reason}: Ray ends it where the raylet of this "
                "machine, or the head of the cluster, was lost"
            )
            raise ClusterError(
                f"the connection with the cluster was lost: {told}. The next call connects again; "
                "state_dict() tells where a new iterator, also a MultiprocessIterator, goes on"
            )


class ClusterTimeouts(Timeouts):
    """Time limits of the local workers, and warnings of the helper."""

    board: Any = None
    _n_told = 0
    _told = 0.0

    def look(self, goal: str) -> None:
        super().look(goal)
        self.tell(goal)

    def tell(self, goal: str) -> None:
        """Issue the helper's warnings, twice a second at most."""
        if status.now() < self._told + 0.5:
            return
        self._told = status.now()
        for number, text in self.board.read().get("warnings", ()):
            if number > self._n_told:
                self._n_told = number
                self._warn(text, "", goal)

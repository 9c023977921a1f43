"""The iterator whose workers run on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import ray

from fastiter._clib import status
from fastiter._engine.executor import Executor
from fastiter._stats.stats import LoaderStats, NodeStats
from fastiter._util.arguments import checked_int, checked_seconds, wrong_type
from fastiter._util.warn import warn_caller
from fastiter._workers.batch_converter import BatchConverter
from fastiter._workers.main import BatchJob
from fastiter._workers.pool import Pool
from fastiter._workers.process import WorkerProcess
from fastiter.errors import TimeoutWarning
from fastiter.iterators._arguments import checked_auto
from fastiter.iterators._stream_parts import PartStore
from fastiter.iterators.multiprocess import MultiprocessIterator
from fastiter.ray._helper import ClusterJob
from fastiter.ray._shared import Cell, ClusterError, image_of

_MOST_WORKERS = 4096
_FIRST_WORKERS = 2  # of 'auto'
_PLACE_SECONDS = 10.0  # that 'auto' waits for workers that it has asked for


class ClusterPool(Pool):
    """A pool whose worker 0 is the helper."""

    job: ClusterJob
    _n_warned = 0  # the number of the helper's last warning
    _adjusted = 0.0

    def statistics(self, seconds: float) -> LoaderStats:
        nodes = self.job.facts.get().get("nodes", {})
        found = tuple(NodeStats(name, **facts) for name, facts in nodes.items())
        return replace(super().statistics(seconds), nodes=found)

    def is_steady(self) -> bool:
        nodes = self.job.facts.get().get("nodes", {}).values()
        has_all = sum(node["workers"] for node in nodes) == self.job.n_workers.get()
        return has_all or status.now() > self._adjusted + _PLACE_SECONDS

    def adjust(self, name: str, count: int) -> None:
        if name == "n_workers":
            self._adjusted = status.now()
            self.job.n_workers.set(count)
        else:
            super().adjust(name, count)

    def bytes_each(self, name: str) -> int:
        return 0 if name == "n_workers" else super().bytes_each(name)

    def _start_missing(self) -> None:
        """Issues the helper's warnings, too: this is called again and again, also by a next() that
        does not wait, as long as workers are being started, which does not end here."""
        super()._start_missing()
        self.is_starting = self.needs_check = True
        for number, text in self.job.facts.get().get("warnings", ()):
            if number > self._n_warned:
                self._n_warned = number
                warn_caller(TimeoutWarning(text))

    def _recover(self, worker: WorkerProcess) -> None:
        if worker.number != self.job.helper or self.closed:
            return super()._recover(worker)
        reason = worker.exit_reason()
        super()._recover(worker)  # which raises what the helper has told
        self.close()
        raise ClusterError(
            f"the connection with the cluster was lost: its head at {self.job.address}, or the "
            f"raylet of this machine, does not answer (the helper process {worker.pid} {reason}). "
            "The next call connects again; state_dict() tells where a new iterator goes on"
        )


class RayIterator(MultiprocessIterator):
    """Iterates over a dataset with workers on the nodes of a Ray cluster.

    The batches are those of `MultiprocessIterator`, in the same order, with the same state: each
    of the two continues a state of the other. A helper process of this machine talks to Ray, and
    copies the examples of the nodes into this machine's ring; the program itself need not be
    connected to Ray. ``next()`` raises `ClusterError` if the connection to the cluster cannot be
    made, or is lost.

    Parameters
    ----------
    dataset, batch_size, repeat, shuffle
        As in `MultiprocessIterator`. The dataset travels to each node once, pickled; it should open
        files where it reads them. All nodes need the versions of Python, NumPy and fastiter of this
        program, and the modules of the dataset.
    n_workers : int or 'auto'
        Number of workers on the cluster. If Ray has fewer places, the iterator goes on with
        these, and warns after ``dataset_timeout``. 'auto': begin with 2, and ask Ray for more or
        fewer as the iterator's statistics advise.
    n_local : int
        Number of further worker processes on this machine, which take rows from the same batches,
        and have the first numbers for ``worker_init``.
    resources : mapping, optional
        Resources that Ray reserves for each worker, by Ray's names; None: ``{'CPU': 1}``.
    address : str, optional
        Host and port of the head of the cluster. None: the cluster that this program is connected
        to, or else the cluster that Ray finds (``RAY_ADDRESS``).
    silence : float, optional
        Seconds without a sign of life after which other workers fetch a worker's rows.
    **others
        All other arguments of `MultiprocessIterator` but ``n_processes``, ``shared_mem``,
        ``maxtasksperchild`` and ``context``; ``n_prefetch`` is 4 unless given. A converter other
        than `concat_examples` runs on this machine.
    """

    _gathers_in_caller = False
    _pool_type = ClusterPool

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        repeat: bool = True,
        shuffle: bool | None = None,
        *,
        n_workers: int | Literal["auto"] = 1,
        n_local: int = 0,
        resources: Mapping[str, float] | None = None,
        address: str | None = None,
        silence: float | None = 5.0,
        n_prefetch: int | Literal["auto"] | None = 4,
        **others: Any,
    ) -> None:
        if wrong := {"n_processes", "shared_mem", "maxtasksperchild", "context"} & others.keys():
            raise TypeError(f"RayIterator has no argument {min(wrong)!r}: see n_workers=, n_local=")
        self._n_workers = checked_auto("n_workers", n_workers, maximum=_MOST_WORKERS)
        self._n_local = checked_int("n_local", n_local, minimum=0, maximum=_MOST_WORKERS)
        if not isinstance(resources, Mapping | None):
            raise wrong_type("resources", "a dict of amounts, as {'CPU': 1}", resources)
        self._resources = dict({"CPU": 1} if resources is None else resources)
        if any(type(n) not in (int, float) or n < 0 for n in self._resources.values()):
            raise ValueError(f"resources must be amounts as {{'CPU': 1}}, not {resources!r}")
        if address is not None and (":" not in str(address) or "://" in str(address)):
            raise ValueError(f"address must be host:port of the head of a cluster, not {address!r}")
        self._address = address
        self._silence = checked_seconds("silence", silence) or float("inf")
        others |= {"n_processes": 1 + self._n_local, "n_prefetch": n_prefetch}  # with the helper
        others["context"] = "safe"  # a fork of a program that is connected cannot connect
        super().__init__(dataset, batch_size, repeat, shuffle, **others)

    def _init_runtime(self) -> None:
        super()._init_runtime()
        self._wanted = Cell(_FIRST_WORKERS if self._n_workers == "auto" else self._n_workers)

    def _auto_settings(self) -> dict[str, int]:
        own = {"n_workers": _MOST_WORKERS} if self._n_workers == "auto" else {}
        return super()._auto_settings() | own

    @property
    def n_workers(self) -> int:
        """Present number of requested workers on the cluster."""
        return self._wanted.get()  # type: ignore[no-any-return]

    def _part_executor(self, store: PartStore) -> Executor:
        raise TypeError("a StreamDataset is read on one machine: use MultiprocessIterator")

    def _job(self, converter: BatchConverter | None) -> BatchJob:
        if (address := self._address) is None:
            address = ray.get_runtime_context().gcs_address if ray.is_initialized() else "auto"
        return ClusterJob(
            image_of(self._batch_maker.dataset, self._worker_init),
            converter,
            None,
            None,
            retries=self._on_timeout == "retry",
            hedges=self._hedge is not None,
            address=address,
            n_local=self._n_local,
            n_workers=self._wanted,
            facts=Cell({}),
            resources=self._resources,
            silence=self._silence,
            dataset_timeout=self._dataset_timeout,
            n_retries=self._n_retries,
            hedge=self._hedge or 0.0,
            place_timeout=None if self._n_workers == "auto" else self._dataset_timeout,
        )

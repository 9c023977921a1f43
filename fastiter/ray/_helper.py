"""The process that is Ray's driver, and worker 0 of the local ring: it has rows fetched elsewhere.

Ray ends a driver when its raylet or the head is lost. This process has no example in hand that
others could not fetch, so its end costs the program a `ClusterError` and nothing else. It promises
to fetch rows, and writes them when they come; what it has promised is nobody's yet. So rows of a
worker that died, is silent or slow are fetched by another one, and the first answer counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import mmap
import os
import signal
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import ray

from fastiter._clib import status
from fastiter._ring.arena import WorkerRing
from fastiter._util.failures import load_start_error, reraise
from fastiter._workers import row_writer
from fastiter._workers.batch_converter import BatchConverter
from fastiter._workers.crash_counts import MOST_DEATHS
from fastiter._workers.shared_object import Shared
from fastiter.errors import DatasetTimeoutError, WorkerDiedError
from fastiter.ray._job import Cluster, ClusterError
from fastiter.ray._remote import MOST_PARTS, Asked, Node, NodeWorker, versions

_CONNECT_SECONDS = 12
_SILENCE_SECONDS = 6  # of the head, or this machine's raylet
_BEAT_SECONDS = 1.0
_CALL_SECONDS = 0.04  # that a call takes, if there are rows enough
_MOST_CALLS = 2  # that a worker has at a time
_POLL_SECONDS = 0.004  # between two looks for new rows while others are fetched
_IDLE_NS = 50_000_000
_LATE_MEANS, _LATE_SECONDS = 3, 0.005  # as in `fi_ring_worker.c`


class RemotePart:
    """Rows of the batch at a place, from `first` on, that are fetched together."""

    def __init__(self, place: tuple[int, int, int], batch: Asked, first: int, indices: list[int]):
        self.place, self.batch, self.first, self.indices = place, batch, first, indices
        self.calls = 0  # that have it now
        self.deaths = 0  # of workers that had it first
        self.is_suspect = False  # another one's rows are not fetched with it
        self.splits = False  # a row of it is given up
        self.is_done = False
        self.is_hedged = False

    def asked(self) -> Asked:
        """What a worker is told."""
        batch, n, last = self.batch, self.place[2], self.first + len(self.indices)
        epoch, position, size = batch.origin
        position -= n - last  # from after the batch to after these rows
        epochs = max(0, -(position // size)) if size else 0
        seeds = batch.seeds
        return batch._replace(
            origin=(max(0, epoch - epochs), position + epochs * size, size),
            indices=np.array(self.indices),
            seeds=None if seeds is None else seeds[8 * self.first : 8 * last] + seeds[8 * n :],
        )


class Call:
    """What a worker was asked for at once."""

    def __init__(self, worker: Remote, parts: list[RemotePart]):
        self.worker, self.parts = worker, parts
        self.ref = worker.actor.fetch.remote([part.asked() for part in parts])
        self.since = status.now()


@dataclasses.dataclass(eq=False)
class Remote:
    """A worker on some node."""

    number: int
    actor: Any
    step: Any  # of its start: a reference of what has to come before it goes on; or None
    node: Node | None = None
    image: tuple[int, int] | None = None  # process and descriptor; None until it works
    calls: list[Call] = dataclasses.field(default_factory=list)
    beat: Any = None  # a reference
    beat_asked: float = 0.0
    seen: float = 0.0
    is_silent: bool = False
    warnings: int = 0


class Helper:
    """Has rows fetched by the workers of a cluster, until the ring says stop."""

    def __init__(
        self,
        cluster: Cluster,
        dataset: Shared[Any],
        converter: BatchConverter | None,
        end: WorkerRing,
        seed: bytes,
    ):
        self._cluster, self._dataset, self._seed = cluster, dataset, seed
        self._rows = end.arena.geometry[2]
        self._writer = row_writer.PartWriter(end, None, None, True)
        self._writer.batch_converter = converter
        self._workers: dict[int, Remote] = {}
        self._pending: deque[RemotePart] = deque()
        self._row_seconds = 0.0  # that a row takes, the last ones counting most
        self._n_rows = self._n_hedged = self._starts = self._failed_starts = 0
        self._overruns: dict[int, int] = {}  # by index
        self._facts: dict[str, Any] = {"reason": "", "nodes": {}, "warnings": []}
        self._n_warned = 0
        self._warns_of_places = cluster.warns_of_places and cluster.dataset_timeout is not None
        self._told = 0.0
        self._started = status.now()  # the last worker
        timeout = cluster.dataset_timeout or _BEAT_SECONDS
        self._beat = max(0.1, min(_BEAT_SECONDS, timeout / 2))
        self._image: Any = None
        self._actor: Any = ray.remote(concurrency_groups={"beat": 1})(NodeWorker)

    # ---- start

    def connect(self) -> None:
        """Join the cluster, and wait for the first worker."""
        if ray.is_initialized():
            raise ClusterError(
                "this program is connected to Ray, and the helper process was forked from it: put "
                "what runs the program under if __name__ == '__main__':, so that a fork server can "
                "start it"
            )
        # A call of the main thread may wait for the head for ever: the signal ends this process.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.alarm(_CONNECT_SECONDS)
        address = self._cluster.address
        try:
            ray.init(
                address=address,
                namespace=f"fastiter-{os.getpid()}-{os.urandom(4).hex()}",
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except Exception as error:
            raise ClusterError(f"no cluster answers at {address!r}: {error}") from error
        self._started = status.now()
        threading.Thread(target=_watch_cluster, daemon=True).start()
        self._put_image()
        while not (self._ready() or self._writer.leaves()):
            self._look(0.1)

    def _put_image(self) -> None:
        stores = [
            node["Resources"].get("object_store_memory", 0.0)
            for node in ray.nodes()
            if node["Alive"]
        ]
        size = self._dataset.nbytes
        if size > 0.8 * min(stores):
            raise MemoryError(
                f"the dataset's image of {size} bytes does not fit into the object store of each "
                f"node: the smallest has {min(stores):.0f}. Start Ray with larger ones "
                "(--object-store-memory), or let the dataset read from files"
            )
        mapped = mmap.mmap(self._dataset.fd, size, access=mmap.ACCESS_READ)
        self._image = ray.put(np.frombuffer(mapped, np.uint8))

    def _set_workers(self, count: int) -> None:
        """Have as many workers as this."""
        number = 0
        while len(self._workers) < count:
            if number not in self._workers:
                self._start(number, count)
            number += 1
        while len(self._workers) > count:  # those first that have no place
            self._drop(min(self._workers.values(), key=lambda w: w.image is not None), False)

    def _start(self, number: int, count: int) -> None:
        options = dict(self._cluster.resources)
        self._starts += 1
        actor = self._actor.options(
            num_cpus=options.pop("CPU", 0),
            num_gpus=options.pop("GPU", 0),
            memory=options.pop("memory", None),
            resources=options,
            scheduling_strategy="SPREAD",
        ).remote(
            self._cluster.local + number,
            self._cluster.local + count,
            self._rows,
            self._seed + b"%d" % self._starts,
        )
        self._workers[number] = Remote(number, actor, actor.where.remote())

    def _has_place(self, worker: Remote, node: Node) -> None:
        worker.step, worker.node = None, node
        if node.versions != versions():
            raise ClusterError(
                f"node {node.node} ({node.address}) has {node.versions}; this program has "
                f"{versions()}"
            )
        new = {"address": node.address, "workers": 0, "rows": 0, "bytes": 0}
        self._facts["nodes"].setdefault(node.node, new)

    def _load(self, worker: Remote, node: Node) -> None:
        """Have a worker load the dataset; not before the first one of its node has the image."""
        nearby = [w for w in self._workers.values() if w.node and w.node.node == node.node]
        image = next((w.image for w in nearby if w.image is not None), None)
        if image is not None or all(w.step is None for w in nearby):
            path = [os.path.abspath(each) for each in sys.path]
            worker.step = worker.actor.load.remote([self._image], image, path)

    def _has_loaded(self, worker: Remote, found: tuple[int, bytes]) -> None:
        fd, error = found
        failure = load_start_error(error, "loading the dataset or worker_init")
        if failure is not None:
            reraise(failure)
        assert worker.node is not None
        worker.step, worker.image = None, (worker.node.pid, fd)
        self._started = status.now()
        self._failed_starts = 0
        self._facts["nodes"][worker.node.node]["workers"] += 1

    # ---- work

    def work(self) -> None:
        """Have rows fetched until the ring says stop."""
        try:
            while self._take():
                self._assign()
                self._look(_POLL_SECONDS if self._room() else 0.05)
        except Exception as error:
            self._facts["reason"] = str(error) if isinstance(error, ClusterError) else repr(error)
            self._cluster.board.write(self._facts)
            os._exit(1)
        for worker in self._workers.values():
            ray.kill(worker.actor)
        ray.shutdown()

    def _ready(self) -> list[Remote]:
        return [w for w in self._workers.values() if w.image is not None and not w.is_silent]

    def _room(self) -> int:
        """Calls that workers have room for."""
        return sum(_MOST_CALLS - len(worker.calls) for worker in self._ready())

    def _call_rows(self) -> int:
        """Rows of a call: of several small batches, if their rows are cheap."""
        if not self._n_rows:
            return max(1, self._rows // (_MOST_CALLS * max(1, len(self._ready()))))
        return max(1, min(MOST_PARTS * self._rows, int(_CALL_SECONDS / self._row_seconds)))

    def _take(self) -> bool:
        """Promise rows while workers have room for them; False if the ring says stop."""
        # Of a large batch no worker gets more than its share.
        most = max(1, min(self._call_rows(), -(-self._rows // max(1, len(self._ready())))))
        wanted = self._room() * self._call_rows() - _rows_of(self._pending)
        is_idle = not self._pending and not any(worker.calls for worker in self._workers.values())
        while wanted > 0:
            taken = self._writer.take(_IDLE_NS if is_idle else 0, most)
            if taken is None:
                return False
            if not taken:
                break
            place, batch, rows, indices = taken
            wanted -= len(rows)
            is_idle, start = False, 0
            for stop in range(1, len(rows) + 1):
                is_last = stop == len(rows) or rows[stop] != rows[stop - 1] + 1
                if is_last or stop - start == most:
                    part = RemotePart(place, Asked(*batch), rows[start], indices[start:stop])
                    self._pending.append(part)
                    start = stop
        return not self._writer.leaves()

    def _assign(self) -> None:
        """Give parts to workers that have few."""
        ready = self._ready()
        most = min(self._call_rows(), -(-_rows_of(self._pending) // max(1, self._room())))
        for depth in range(_MOST_CALLS):
            for worker in ready:
                if len(worker.calls) == depth:
                    self._send(worker, self._next_parts(most))
        if self._cluster.hedge:
            self._hedge([worker for worker in ready if not worker.calls])

    def _next_parts(self, most: int) -> list[RemotePart]:
        """Parts for one call, of `most` rows or a few more; a suspect one goes alone."""
        parts: list[RemotePart] = []
        while self._pending and len(parts) < MOST_PARTS and _rows_of(parts) < most:
            part = self._pending[0]
            if part.is_suspect and parts:
                break
            self._pending.popleft()
            if part.is_done or not self._writer.is_promised(part.place, part.first):
                continue  # of a batch that is not wanted any more
            parts.append(part)
            if part.is_suspect:
                break
        return parts

    def _send(self, worker: Remote, parts: list[RemotePart]) -> None:
        if parts:
            worker.calls.append(Call(worker, parts))
        for part in parts:
            part.calls += 1

    def _hedge(self, idle: list[Remote]) -> None:
        """Have idle workers fetch what is late, too. Those of this machine look for themselves."""
        calls = [call for worker in self._workers.values() for call in worker.calls]
        calls.sort(key=lambda call: call.since)
        if self._cluster.local and calls:
            self._writer.waits_since(int(calls[0].since * 1e9), calls[0].parts[0].indices[0])
        now = status.now()
        for call in calls if self._n_rows and not self._pending else ():
            late = max(_LATE_SECONDS, _LATE_MEANS * self._row_seconds * _rows_of(call.parts))
            parts = [part for part in call.parts if not (part.is_done or part.is_hedged)]
            hedged = self._n_hedged + _rows_of(parts)
            is_allowed = hedged <= self._cluster.hedge * (self._n_rows + _rows_of(parts)) + 1
            if idle and parts and is_allowed and now - call.since > late:
                self._n_hedged = hedged
                for part in parts:
                    part.is_hedged = True
                self._send(idle.pop(), parts)

    # ---- what comes back

    def _look(self, seconds: float) -> None:
        """Wait for answers, beats and starts, and act on what has come."""
        refs: dict[Any, tuple[Remote, Any]] = {}
        for worker in self._workers.values():
            for call in worker.calls:
                refs[call.ref] = worker, functools.partial(self._arrived, call)
            if worker.beat is not None:
                refs[worker.beat] = worker, functools.partial(self._check_time, worker)
            if worker.step is not None:
                step = self._has_place if worker.node is None else self._has_loaded
                refs[worker.step] = worker, functools.partial(step, worker)
        done: list[Any] = []
        if refs:
            done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        if refs and not done:
            done, _ = ray.wait(list(refs), timeout=seconds)
        for ref in done:
            worker, act = refs[ref]
            if self._workers.get(worker.number) is not worker:
                continue  # it was dropped meanwhile
            try:
                found = ray.get(ref, timeout=1.0)
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError as error:
                self._lost(worker, error)
                continue
            worker.seen, worker.is_silent = status.now(), False
            act(found)
        self._watch_workers()
        if status.now() > self._told + 0.1:
            self._tell()

    def _arrived(self, call: Call, found: Any) -> None:
        worker = call.worker
        worker.calls.remove(call)
        if worker.calls:
            worker.calls[0].since = status.now()
        took, answers = found
        assert worker.node is not None
        node = self._facts["nodes"][worker.node.node]
        each = max(1e-6, took / _rows_of(call.parts))
        self._row_seconds += (each - self._row_seconds) / (8 if self._n_rows else 1)
        for part, (seconds, pieces) in zip(call.parts, answers, strict=True):
            part.calls -= 1
            node["bytes"] += sum(map(len, pieces[0] or ())) + len(pieces[1])
            if part.is_done:
                continue
            part.is_done = True
            # Of all workers together: one of them is that share of these.
            fetch_ns = int(seconds * 1e9 / len(self._workers))
            node["rows"] += self._writer.put(part.place, part.first, pieces, fetch_ns)
            self._n_rows += len(part.indices)

    def _lost(self, worker: Remote, error: Exception) -> None:
        """A worker has died, or its node: others fetch its rows, and another takes its place."""
        if isinstance(error, ray.exceptions.RayTaskError):
            raise ClusterError(f"a worker failed: {error}")
        if worker.image is None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_DEATHS * len(self._workers) and not self._ready():
                raise ClusterError(f"workers cannot start: {error}")
        self._drop(worker, blames=True)

    def _drop(self, worker: Remote, blames: bool) -> None:
        """End a worker; `_set_workers` starts another in its place."""
        calls, worker.calls = worker.calls, []
        if worker.image is not None and worker.node is not None:
            self._facts["nodes"][worker.node.node]["workers"] -= 1
        for place, call in enumerate(calls):
            for part in call.parts:
                self._release(part, blames and place == 0)
        del self._workers[worker.number]
        ray.kill(worker.actor)

    def _release(self, part: RemotePart, is_suspect: bool) -> None:
        """A part's worker does not go on."""
        part.calls -= 1
        part.deaths += is_suspect
        if part.is_done or part.calls:
            return
        if (part.deaths or part.splits) and len(part.indices) > 1:
            part.is_done = True
            for place in reversed(range(len(part.indices))):
                index = part.indices[place : place + 1]
                alone = RemotePart(part.place, part.batch, part.first + place, index)
                alone.is_suspect = True
                self._pending.appendleft(alone)
        elif part.deaths >= MOST_DEATHS and part.is_suspect:
            part.is_done = True
            error = WorkerDiedError(
                f"dataset index {part.indices[0]} ended {part.deaths} workers of the cluster"
            )
            self._writer.fail(part.place, part.first, error)
        elif part not in self._pending:
            part.is_suspect = part.deaths > 0
            self._pending.appendleft(part)

    # ---- time

    def _watch_workers(self) -> None:
        """Start those that are missing, ask all for a sign of life, and give what silent ones have
        to others: either may be the first then."""
        self._set_workers(self._cluster.board.asked())
        now = status.now()
        there = sum(worker.image is not None for worker in self._workers.values())
        if self._warns_of_places and there < len(self._workers):
            wait = self._cluster.dataset_timeout or 0.0
            if now - self._started > (wait if there else max(wait, _CONNECT_SECONDS)):
                self._warns_of_places = False
                self._warn(
                    f"{there} of {len(self._workers)} workers have a place in the cluster "
                    f"(resources={self._cluster.resources}); the others wait for one"
                )
        for worker in list(self._workers.values()):
            if worker.image is None:
                if worker.node is not None and worker.step is None:
                    self._load(worker, worker.node)
                continue
            if worker.beat is None and now - worker.beat_asked > self._beat:
                worker.beat_asked = now
                worker.beat = worker.actor.beat.remote(self._cluster.dataset_timeout)
            since = now - max(worker.seen, worker.beat_asked)
            if worker.beat is not None and since > self._cluster.silence and not worker.is_silent:
                worker.is_silent = True
                parts = [part for call in worker.calls for part in call.parts]
                for part in parts:
                    if not part.is_done and part.calls == 1 and part not in self._pending:
                        self._pending.appendleft(part)

    def _check_time(self, worker: Remote, beat: tuple[int, float, str]) -> None:
        """Warn of a row that takes too long, or end its worker."""
        worker.beat = None
        limit, n_retries = self._cluster.dataset_timeout, self._cluster.n_retries
        index, seconds, stack = beat
        if limit is None or seconds <= limit or not worker.calls:
            worker.warnings = 0
            return
        assert worker.node is not None
        where = f"on node {worker.node.node} ({worker.node.address}), process {worker.node.pid}"
        if n_retries is None:
            if seconds > limit * (worker.warnings + 1):
                worker.warnings += 1
                self._warn(
                    f"the dataset has been busy with index {index} for {seconds:.1f} s "
                    f"(dataset_timeout={limit} s) {where}. Its Python stack:\n{stack}"
                )
            return
        attempts = self._overruns[index] = self._overruns.get(index, 0) + 1
        if attempts > n_retries:
            del self._overruns[index]
            error = DatasetTimeoutError.of(
                f"dataset index {index} took longer than dataset_timeout={limit} s in {attempts} "
                f"of {attempts} attempts, the last one {where}.",
                index,
                seconds,
                attempts,
                stack,
            )
            for part in worker.calls[0].parts:
                for place, each in enumerate(part.indices):
                    if each == index:
                        part.splits = True
                        self._writer.fail(part.place, part.first + place, error)
        self._drop(worker, blames=False)

    # ---- the program

    def _warn(self, text: str) -> None:
        self._n_warned += 1
        self._facts["warnings"] = [*self._facts["warnings"], [self._n_warned, text]][-4:]
        self._tell()

    def _tell(self) -> None:
        self._told = status.now()
        self._cluster.board.write(self._facts)


def _rows_of(parts: Any) -> int:
    return sum(len(part.indices) for part in parts)


def _watch_cluster() -> None:
    """Put off the end of this process, while the head and this machine's raylet answer."""
    while True:
        with contextlib.suppress(Exception):
            ray.nodes()
            ray.put(None)  # into the raylet's store
            signal.alarm(_SILENCE_SECONDS)
        threading.Event().wait(_BEAT_SECONDS)

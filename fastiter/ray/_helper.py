"""The process that is Ray's driver, and worker 0 of the local ring: it has rows fetched elsewhere.

Ray ends a driver when its raylet or the head is lost. This process has no example in hand that
others could not fetch, so its end costs the program a `ClusterError` and nothing else. It promises
to fetch rows, and writes them when they come; what it has promised is nobody's yet. So rows of a
worker that died, is silent or slow are fetched by another one, and the first answer counts.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
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
from fastiter._workers.crash_counts import MOST_DEATHS
from fastiter.errors import DatasetTimeoutError, WorkerDiedError
from fastiter.ray._errors import ClusterError
from fastiter.ray._job import ClusterJob
from fastiter.ray._remote import MOST_PARTS, Asked, Node, NodeWorker, versions

LOST_STATUS = 3  # of the exit of a helper that has lost the cluster
_CONNECT_SECONDS = 12.0
_HEAD_SECONDS = 6.0  # that the head may be silent
_BEAT_SECONDS = 1.0
_CALL_SECONDS = 0.04  # that a call takes, if there are rows enough
_MOST_CALLS = 2  # that a worker has at a time
_POLL_SECONDS = 0.004  # between two looks for new rows while others are fetched
_IDLE_NS = 50_000_000
_LATE_MEANS, _LATE_SECONDS = 3, 0.005  # as in `fi_ring_worker.c`


Place = tuple[int, int, int, int, int, int]  # of rows: see `PartWriter`


class RemotePart:
    """Rows of one batch that are fetched together."""

    def __init__(self, part: Place, asked: Asked, rows: list[int]):
        self.part, self.asked, self.rows = part, asked, rows
        self.calls = 0  # that have it now
        self.deaths = 0  # of workers that had it first
        self.is_suspect = False  # another one's rows are not fetched with it
        self.splits = False  # a row of it is given up
        self.is_done = False
        self.is_hedged = False

    def only(self, place: int) -> RemotePart:
        """A part of one of the rows."""
        last, seeds = place + 1, self.asked.seeds
        asked = self.asked._replace(
            origin=origin_before(*self.asked.origin, len(self.rows) - last),
            indices=self.asked.indices[place:last],
            seeds=None if seeds is None else seeds[8 * place : 8 * last] + seeds[-8:],
        )
        return RemotePart(self.part, asked, self.rows[place:last])


def origin_before(epoch: int, position: int, size: int, after: int) -> tuple[int, int, int]:
    """Where a batch is in the epochs without its last rows: `fi_origin`."""
    back = max(0, -((position - after) // size)) if size else 0
    return max(0, epoch - back), position - after + back * size, size


class Call:
    """What a worker was asked for at once."""

    def __init__(self, ref: Any, worker: Remote, parts: list[RemotePart]):
        self.ref, self.worker, self.parts = ref, worker, parts
        self.since = status.now()


class Remote:
    """A worker on some node."""

    def __init__(self, number: int, actor: Any, ref: Any):
        self.number, self.actor = number, actor
        self.start: Any = ref  # of what has to come before it works; None: it works
        self.node: Node | None = None
        self.calls: list[Call] = []
        self.beat: Any = None
        self.seen = status.now()
        self.asked = 0.0
        self.is_silent = False
        self.warnings = 0
        self.image = (0, -1)  # process and descriptor
        self.busy = (-1, 0.0, "")  # what `NodeWorker.beat` said


class Helper:
    """Has rows fetched by the workers of a cluster, until the ring says stop."""

    def __init__(self, job: ClusterJob, end: WorkerRing, seed: bytes):
        self._job, self._cluster, self._board = job, job.cluster, job.board
        self._rows = end.arena.geometry[2]
        self._writer = row_writer.PartWriter(end, None, None, True)
        self._seed = seed
        self._workers: dict[int, Remote] = {}
        self._pending: deque[RemotePart] = deque()
        self._row_seconds = 0.0  # that a row takes, the last ones counting most
        self._n_rows = self._n_hedged = self._starts = self._failed_starts = 0
        timeout = self._cluster.dataset_timeout
        self._beat = _BEAT_SECONDS if timeout is None else max(0.1, min(_BEAT_SECONDS, timeout / 2))
        self._overruns: dict[int, int] = {}  # by index
        self._facts: dict[str, Any] = {"reason": "", "nodes": {}, "warnings": []}
        self._n_warned = 0
        self._is_told = False  # of places that are missing
        self._told = 0.0
        self._began = status.now()  # or the last worker did
        self._limit = _CONNECT_SECONDS  # of the head's silence
        self._head_seen = status.now()
        self._is_ending = False
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
        address = self._cluster.address
        threading.Thread(target=self._watch_head, args=(address,), daemon=True).start()
        try:
            ray.init(
                address=address,
                namespace=f"fastiter-{os.getpid()}-{os.urandom(4).hex()}",
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except Exception as error:
            raise ClusterError(f"no cluster answers at {address!r}: {error}") from error
        self._head_seen = self._began = status.now()
        self._limit = _HEAD_SECONDS
        threading.Thread(target=self._ask_head, daemon=True).start()
        self._put_image()
        for number in range(self._cluster.workers):
            self._start(number)
        while not any(worker.start is None for worker in self._workers.values()):
            self._look(0.1)
            if self._writer.leaves():
                return

    def _put_image(self) -> None:
        handle = self._job.dataset
        stores = [
            node["Resources"].get("object_store_memory", 0.0)
            for node in ray.nodes()
            if node["Alive"]
        ]
        if handle.nbytes > 0.8 * min(stores):
            raise MemoryError(
                f"the dataset's image of {handle.nbytes} bytes does not fit into the object store "
                f"of each node: the smallest has {min(stores):.0f}. Start Ray with larger ones "
                "(--object-store-memory), or let the dataset read from files"
            )
        mapped = mmap.mmap(handle.fd, handle.nbytes, access=mmap.ACCESS_READ)
        self._image = ray.put(np.frombuffer(mapped, np.uint8))

    def _start(self, number: int) -> None:
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
            self._cluster.local + self._cluster.workers,
            self._rows,
            self._seed + b"%d" % self._starts,
        )
        self._workers[number] = Remote(number, actor, actor.where.remote())

    def _started(self, worker: Remote, found: Any) -> None:
        """A step of a worker's start has ended."""
        worker.start = None
        if isinstance(found, Node):
            if found.versions != versions():
                raise ClusterError(
                    f"node {found.node} ({found.address}) has {_text(found.versions)}; this "
                    f"program has {_text(versions())}"
                )
            worker.node = found
            self._facts["nodes"].setdefault(
                found.node, {"address": found.address, "workers": 0, "rows": 0, "bytes": 0}
            )
            self._load(worker)
        else:
            fd, error = found
            if error:
                failure = load_start_error(error, "loading the dataset or worker_init")
                assert failure is not None
                reraise(failure)
            assert worker.node is not None
            worker.image = worker.node.pid, fd
            worker.seen = self._began = status.now()
            self._failed_starts = 0
            self._facts["nodes"][worker.node.node]["workers"] += 1
            self._tell()

    def _load(self, worker: Remote) -> None:
        """Have a worker load the dataset; not before the first one of its node has the image."""
        nearby = None
        for other in self._workers.values():
            if other is not worker and other.node and other.node.node == worker.node.node:  # type: ignore[union-attr]
                if other.image[1] >= 0:
                    nearby = other.image
                    break
                if other.start is not None:
                    worker.start = other.start  # looked at again when that one has loaded
                    return
        worker.start = worker.actor.load.remote([self._image], nearby, _search_path())

    # ---- the head of the cluster

    def _ask_head(self) -> None:
        while not self._is_ending:
            with contextlib.suppress(Exception):
                ray.nodes()
                self._head_seen = status.now()
            _pause(_BEAT_SECONDS)

    def _watch_head(self, address: str) -> None:
        while status.now() < self._head_seen + self._limit:
            _pause(0.25)
        self._facts["reason"] = f"the head of the cluster at {address} does not answer"
        self._board.write(self._facts)
        os._exit(LOST_STATUS)

    # ---- work

    def work(self) -> None:
        """Have rows fetched until the ring says stop."""
        try:
            while self._take():
                self._assign()
                self._look(_POLL_SECONDS if self._has_room() else 0.05)
        except Exception as error:
            self._facts["reason"] = str(error) if isinstance(error, ClusterError) else repr(error)
            self._board.write(self._facts)
            os._exit(LOST_STATUS)
        self._is_ending = True
        for worker in self._workers.values():
            ray.kill(worker.actor)
        ray.shutdown()

    def _ready(self) -> list[Remote]:
        return [w for w in self._workers.values() if w.start is None and not w.is_silent]

    def _has_room(self) -> bool:
        free = sum(_MOST_CALLS - len(worker.calls) for worker in self._ready())
        return free > 0

    def _part_rows(self) -> int:
        """Rows of a part: a call's worth, but of a large batch no more than a worker's share."""
        share = -(-self._rows // max(1, len(self._ready())))
        if not self._row_seconds:
            return max(1, share // _MOST_CALLS)
        return max(1, min(share, int(_CALL_SECONDS / self._row_seconds)))

    def _take(self) -> bool:
        """Promise rows while workers have room for them; False if the ring says stop."""
        most, is_idle = self._part_rows(), not any(w.calls for w in self._workers.values())
        room = sum(_MOST_CALLS - len(worker.calls) for worker in self._ready())
        wanted = room * self._bundle_rows()
        while sum(len(part.rows) for part in self._pending) < wanted:
            sleep = _IDLE_NS if is_idle and not self._pending else 0
            taken = self._writer.take(sleep, most, self._job.batch_converter)
            if taken is None:
                return False
            if not taken:
                break
            part, rows, indices, record, seed, origin, seeds = taken
            self._add(part, rows, Asked(record, seed, origin, np.array(indices), seeds), most)
        return not self._writer.leaves()

    def _bundle_rows(self) -> int:
        """Rows of a call: of several small batches, if their rows are cheap."""
        if not self._row_seconds:
            return self._part_rows()
        return max(1, min(MOST_PARTS * self._rows, int(_CALL_SECONDS / self._row_seconds)))

    def _add(
        self,
        part: Place,
        rows: list[int],
        asked: Asked,
        most: int,
    ) -> None:
        """Make parts of rows that were promised, with at most `most` of them."""
        n, start, seeds = part[2], 0, asked.seeds
        while start < len(rows):
            stop = start + 1
            while stop < len(rows) and stop - start < most and rows[stop] == rows[stop - 1] + 1:
                stop += 1
            first, last = rows[start], rows[stop - 1] + 1
            some = None if seeds is None else seeds[8 * first : 8 * last] + seeds[8 * n :]
            of_part = asked._replace(
                origin=origin_before(*asked.origin, n - last),
                indices=asked.indices[start:stop],
                seeds=some,
            )
            self._pending.append(RemotePart(part, of_part, rows[start:stop]))
            start = stop

    def _assign(self) -> None:
        """Give parts to workers that have few."""
        ready = self._ready()
        for depth in range(_MOST_CALLS):
            for worker in ready:
                if len(worker.calls) == depth and not self._give(worker):
                    break
        if self._cluster.hedge:
            self._hedge(ready)

    def _give(self, worker: Remote) -> bool:
        parts: list[RemotePart] = []
        left, n = sum(len(part.rows) for part in self._pending), len(self._ready())
        rows, most = 0, min(self._bundle_rows(), -(-left // max(1, n)))
        while self._pending and len(parts) < MOST_PARTS and (not parts or rows < most):
            part = self._pending[0]
            if part.is_suspect and parts:
                break
            self._pending.popleft()
            if part.is_done or not self._writer.is_promised(part.part, part.rows[0]):
                continue  # of a batch that is not wanted any more
            parts.append(part)
            rows += len(part.rows)
            if part.is_suspect:
                break
        if parts:
            self._send(worker, parts)
        return bool(parts)

    def _send(self, worker: Remote, parts: list[RemotePart]) -> None:
        ref = worker.actor.fetch.remote([part.asked for part in parts])
        for part in parts:
            part.calls += 1
        worker.calls.append(Call(ref, worker, parts))

    def _hedge(self, ready: list[Remote]) -> None:
        """Has idle workers fetch what is late, too. Those of this machine look for themselves."""
        calls = [call for worker in self._workers.values() for call in worker.calls]
        if self._cluster.local:
            oldest = min(calls, key=lambda call: call.since, default=None)
            since = 0.0 if oldest is None else oldest.since
            index = -1 if oldest is None else int(oldest.parts[0].asked.indices[0])
            self._writer.waits_since(int(since * 1e9), index)
        idle = [worker for worker in ready if not worker.calls]
        if not idle or self._pending or not self._row_seconds:
            return
        now = status.now()
        for call in sorted(calls, key=lambda call: call.since):
            rows = sum(len(part.rows) for part in call.parts)
            late = max(_LATE_SECONDS, _LATE_MEANS * self._row_seconds * rows)
            parts = [part for part in call.parts if not (part.is_done or part.is_hedged)]
            n_rows = sum(len(part.rows) for part in parts)
            is_allowed = (
                self._n_hedged + n_rows <= self._cluster.hedge * (self._n_rows + n_rows) + 1
            )
            if idle and parts and is_allowed and now - call.since > late:
                self._n_hedged += n_rows
                for part in parts:
                    part.is_hedged = True
                self._send(idle.pop(), parts)

    # ---- what comes back

    def _look(self, seconds: float) -> None:
        """Wait for answers, beats and starts, and act on what has come."""
        refs: dict[Any, tuple[Remote, Any]] = {}
        for worker in list(self._workers.values()):
            for call in worker.calls:
                refs[call.ref] = worker, call
            if worker.beat is not None:
                refs[worker.beat] = worker, "beat"
            if worker.start is not None:
                refs.setdefault(worker.start, (worker, "start"))
        done: list[Any] = []
        if refs:
            done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=True)
        if refs and not done:
            done, _ = ray.wait(list(refs), num_returns=1, timeout=seconds, fetch_local=True)
        for ref in done:
            worker, what = refs[ref]
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
            if what == "beat":
                worker.beat, worker.busy = None, found
                self._check_time(worker)
            elif what == "start":
                same = [w for w in self._workers.values() if w.start is ref]
                for waiting in same:  # for that one to load the image of their node
                    if waiting is worker:
                        self._started(worker, found)
                for waiting in same[1:]:
                    self._load(waiting)
            else:
                self._arrived(what, found)
        self._tell()
        self._watch_workers()

    def _arrived(self, call: Call, found: Any) -> None:
        worker = call.worker
        worker.calls.remove(call)
        if worker.calls:
            worker.calls[0].since = status.now()
        took, answers = found
        node = self._facts["nodes"][worker.node.node]  # type: ignore[union-attr]
        rows = sum(len(part.rows) for part in call.parts)
        each = took / rows
        mean = self._row_seconds
        self._row_seconds = mean + (each - mean) / 8 if mean else each
        for part, (seconds, pieces) in zip(call.parts, answers, strict=True):
            part.calls -= 1
            columns, heap, _, _, _ = pieces
            node["bytes"] += sum(map(len, columns or ())) + len(heap)
            if not part.is_done:
                part.is_done = True
                # Of all workers together: one of them is that share of these.
                fetch_ns = int(seconds * 1e9 / self._cluster.workers)
                node["rows"] += self._writer.put(
                    part.part, part.rows, pieces, fetch_ns, self._job.batch_converter
                )
                self._n_rows += len(part.rows)

    def _lost(self, worker: Remote, error: Exception) -> None:
        """A worker has died, or its node: others fetch its rows, and another takes its place."""
        if isinstance(error, ray.exceptions.RayTaskError):
            raise ClusterError(f"a worker failed: {error}")
        if worker.start is not None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_DEATHS * self._cluster.workers:
                raise ClusterError(f"workers cannot start: {error}")
        self._drop(worker, blames=True)

    def _drop(self, worker: Remote, blames: bool) -> None:
        calls, worker.calls = worker.calls, []
        if worker.image[1] >= 0:
            self._facts["nodes"][worker.node.node]["workers"] -= 1  # type: ignore[union-attr]
        for place, call in enumerate(calls):
            for part in call.parts:
                self._release(part, blames and place == 0)
        ray.kill(worker.actor)
        self._start(worker.number)

    def _release(self, part: RemotePart, is_suspect: bool) -> None:
        """A part's worker does not go on."""
        part.calls -= 1
        part.deaths += is_suspect
        if part.is_done or part.calls:
            return
        if (part.deaths or part.splits) and len(part.rows) > 1:
            part.is_done = True
            alone = [part.only(place) for place in reversed(range(len(part.rows)))]
            for each in alone:
                each.is_suspect = True
            self._pending.extendleft(alone)
        elif part.deaths >= MOST_DEATHS and part.is_suspect:
            part.is_done = True
            error = WorkerDiedError(
                f"dataset index {part.asked.indices[0]} ended {part.deaths} workers of the cluster"
            )
            self._writer.fail(part.part, part.rows, error, self._job.batch_converter)
        elif part not in self._pending:
            part.is_suspect = part.deaths > 0
            self._pending.appendleft(part)

    # ---- time

    def _watch_workers(self) -> None:
        """Ask workers for a sign of life, and give what silent ones have to others."""
        now = status.now()
        timeout = self._cluster.dataset_timeout
        there = sum(worker.start is None for worker in self._workers.values())
        if timeout is not None and not self._is_told:
            wait = timeout if there else max(timeout, _CONNECT_SECONDS)
            if now - self._began > wait and there < len(self._workers):
                self._is_told = True
                self._warn(
                    f"{there} of {len(self._workers)} workers have a place in the cluster "
                    f"(resources={self._cluster.resources}); the others wait for one"
                )
        for worker in list(self._workers.values()):
            if worker.start is not None:
                continue
            if worker.beat is None and now - worker.asked > self._beat:
                limit = self._cluster.dataset_timeout
                worker.asked = now
                worker.beat = worker.actor.beat.remote(float("inf") if limit is None else limit)
            since = now - max(worker.seen, worker.asked)
            if worker.beat is not None and since > self._cluster.silence and not worker.is_silent:
                self._give_elsewhere(worker)

    def _give_elsewhere(self, worker: Remote) -> None:
        """Have others fetch what a worker has that does not answer; it may still be the first."""
        worker.is_silent = True
        for call in worker.calls:
            for part in call.parts:
                if not part.is_done and part.calls == 1 and part not in self._pending:
                    self._pending.appendleft(part)

    def _check_time(self, worker: Remote) -> None:
        """Warn of a row that takes too long, or end its worker."""
        limit = self._cluster.dataset_timeout
        index, seconds, stack = worker.busy
        if limit is None or seconds <= limit or not worker.calls:
            worker.warnings = 0
            return
        assert worker.node is not None
        where = f"on node {worker.node.node} ({worker.node.address}), process {worker.node.pid}"
        if self._cluster.n_retries is None:
            if seconds > limit * (worker.warnings + 1):
                worker.warnings += 1
                self._warn(
                    f"the dataset has been busy with index {index} for {seconds:.1f} s "
                    f"(dataset_timeout={limit} s) {where}. Its Python stack:\n{stack}"
                )
            return
        attempts = self._overruns[index] = self._overruns.get(index, 0) + 1
        if attempts > self._cluster.n_retries:
            del self._overruns[index]
            for part in worker.calls[0].parts:
                part.splits = True
                for place in np.flatnonzero(part.asked.indices == index).tolist():
                    error = DatasetTimeoutError.of(
                        f"dataset index {index} took longer than dataset_timeout={limit} s in "
                        f"{attempts} of {attempts} attempts, the last one {where}.",
                        index,
                        seconds,
                        attempts,
                        stack,
                    )
                    converter = self._job.batch_converter
                    self._writer.fail(part.part, [part.rows[place]], error, converter)
        self._drop(worker, blames=False)

    # ---- the program

    def _warn(self, text: str) -> None:
        self._n_warned += 1
        self._facts["warnings"] = [*self._facts["warnings"], [self._n_warned, text]][-4:]
        self._tell(at_once=True)

    def _tell(self, at_once: bool = False) -> None:
        now = status.now()
        if at_once or now - self._told > 0.1:
            self._told = now
            self._board.write(self._facts)


def _search_path() -> list[str]:
    return [os.path.abspath(path) for path in sys.path]


def _text(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)

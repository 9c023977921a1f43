"""The process that is Ray's driver, and worker 0 of the local ring: it has rows fetched elsewhere.

Ray ends a driver when its raylet or the head is lost. Other workers can fetch all rows of this
process, so its end costs the program only a `ClusterError`. It promises to fetch rows, and writes
them when they come; promised rows belong to no worker yet. So rows of a worker that died, is silent
or slow are fetched by another worker, and the first answer counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import ray

from fastiter._clib import status
from fastiter._ring.arena import WorkerRing
from fastiter._util.failures import dump_start_error, load_start_error, reraise
from fastiter._workers.crash_counts import CrashCounts, Exit
from fastiter._workers.delivery import crash_error
from fastiter._workers.main import BatchJob, WorkerArguments
from fastiter._workers.process import Overrun
from fastiter._workers.timeouts import step_text
from fastiter.ray._part_writer import PartWriter
from fastiter.ray._remote import MOST_PARTS, NO_BEAT, Asked, Beat, NodeWorker, adopt_main, versions
from fastiter.ray._shared import Cell, ClusterError

_CONNECT_SECONDS = 12
_SILENCE_SECONDS = 8  # of the head, or this machine's raylet
_NO_PLACE_SECONDS = 10.0  # that no worker has found a place, until that is warned of
_BEAT_SECONDS = 1.0
_CALL_SECONDS = 0.04  # that a call takes, if there are rows enough
_MOST_CALLS = 2  # that a worker has at a time
_POLL_SECONDS = 0.004  # between two polls for new rows while others are fetched
_IDLE_NS = 50_000_000
_LATE_MEANS, _LATE_SECONDS = 3, 0.005  # as in `fi_ring_worker.c`


@dataclasses.dataclass(eq=False, kw_only=True)
class ClusterJob(BatchJob):
    """Worker 0 is the helper, which has rows fetched on the cluster; the others fetch here. The
    dataset is an image that the program has made: (dataset, worker_init)."""

    address: str
    n_local: int
    n_workers: Cell  # an int
    facts: Cell  # that the helper tells: `nodes` by name, and `warnings`
    resources: dict[str, float]
    silence: float
    dataset_timeout: float | None
    n_retries: int
    hedge: float
    place_timeout: float | None  # seconds without a place for each worker that are warned of

    helper = 0
    loading = "loading the dataset here or on the cluster"

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        if arguments.number == self.helper:
            helper = Helper(self, end, arguments)
            helper.connect()
            return helper.work
        self.dataset, self.worker_init = self.dataset.value
        adopt_main()
        workers = self.n_local + self.n_workers.get()
        arguments = arguments._replace(number=arguments.number - 1, workers=workers)
        return super().prepare(end, arguments, seed)


@dataclasses.dataclass(eq=False)
class RemotePart:
    """Rows of the batch at a place (q, slot, n), from `first` on, that are fetched together."""

    place: tuple[int, int, int]
    batch: Asked
    first: int
    indices: list[int]
    is_suspect: bool = False  # of the end of a worker: no other rows are fetched with it
    workers: list[Remote] = dataclasses.field(default_factory=list)  # that have it now

    def asked(self) -> Asked:
        """Request to a worker for these rows."""
        n, last, seeds = self.place[2], self.first + len(self.indices), self.batch.seeds
        epoch, position, size = self.batch.origin  # after the batch; now after these rows
        epochs, position = divmod(position - (n - last), max(1, size))
        if seeds is not None:
            seeds = seeds[8 * self.first : 8 * last] + seeds[8 * n :]
        origin, indices = (max(0, epoch + epochs), position, size), np.array(self.indices)
        return self.batch._replace(origin=origin, indices=indices, seeds=seeds)


@dataclasses.dataclass(eq=False)
class Remote:
    """A worker on some node."""

    number: int
    start: int  # counts the starts of all workers
    actor: Any
    #: requests, by Ray's references, and the functions for their answers
    answers: dict[Any, Callable[[Any], None]] = dataclasses.field(default_factory=dict)
    seen: float = 0.0  # when the last answer came
    beat: Beat = NO_BEAT  # the last one
    loads: bool = False  # the dataset, or has loaded it
    fd: int = -1  # of the dataset's image there; -1 until it works
    calls: list[list[RemotePart]] = dataclasses.field(default_factory=list)  # what it has now
    since: float = 0.0  # when the first of these was begun
    warnings: int = 0


class Helper:
    """Has rows fetched by the workers of a cluster, until the ring says stop."""

    def __init__(self, job: ClusterJob, end: WorkerRing, arguments: WorkerArguments):
        self._job, self._end, self._arguments = job, end, arguments
        self._rows = end.arena.geometry[2]
        self._writer = PartWriter(end, None, None, True)
        self._writer.batch_converter = job.batch_converter
        self._workers: dict[int, Remote] = {}
        self._pending: deque[RemotePart] = deque()
        self._row_seconds = 0.0  # that a row takes, the last ones counting most
        self._n_rows = self._n_hedged = self._starts = 0
        self._crash_counts = CrashCounts(job.n_retries)
        self._nodes: dict[str, dict[str, Any]] = {}  # as `NodeStats`, by their names
        self._warnings: list[tuple[int, str]] = []  # with their numbers
        self._reported_at = 0.0
        self._n_placed, self._placed_at = 0, 0.0  # workers with a place, and since when
        timeout = job.dataset_timeout or _BEAT_SECONDS
        self._pause = max(0.1, min(_BEAT_SECONDS, timeout / 2, job.silence / 2))
        self._actor: Any = ray.remote(concurrency_groups={"beat": 1})(NodeWorker)

    # ---- start

    def connect(self) -> None:
        """Join the cluster, and wait for the first worker."""
        if ray.is_initialized():
            raise ClusterError(
                "this program is connected to Ray, and its helper process was forked: put what "
                "runs the program under if __name__ == '__main__': for a fork server to start it"
            )
        # Any call of Ray may wait for the head for ever, and with the GIL.
        status.exit_unless_renewed(_CONNECT_SECONDS, os.EX_UNAVAILABLE)
        try:
            ray.init(address=self._job.address, configure_logging=False)
        except Exception as error:
            raise ClusterError(f"no cluster answers at {self._job.address!r}: {error}") from error
        self._placed_at = status.now()
        threading.Thread(target=_watch_cluster, daemon=True).start()
        self._put_image()
        while not (self._ready() or self._writer.leaves()):
            self._take_answers(0.1)

    def _put_image(self) -> None:
        image = self._job.dataset
        smallest = min(resources.get("object_store_memory", 0) for resources in _resources())
        if image.nbytes > 0.8 * smallest:
            raise MemoryError(
                f"the dataset's image of {image.nbytes} bytes does not fit into each node's object "
                f"store: one has {smallest:.0f}. Start Ray with a larger --object-store-memory, or "
                "let the dataset read from files"
            )
        mapped = mmap.mmap(image.fd, image.nbytes, access=mmap.ACCESS_READ)
        self._image = ray.put(np.frombuffer(mapped, np.uint8))

    def _start(self, number: int, count: int) -> None:
        options, local = dict(self._job.resources), self._job.n_local
        self._starts += 1
        seed = self._arguments.seed + b"%d" % self._starts
        actor = self._actor.options(
            num_cpus=options.pop("CPU", 0),
            num_gpus=options.pop("GPU", 0),
            memory=options.pop("memory", None),
            resources=options,
            scheduling_strategy="SPREAD",
        ).remote(local + number, local + count, self._rows, seed)
        worker = self._workers[number] = Remote(number, self._starts, actor)
        self._ask_beat(worker, 0.0)

    def _load(self, worker: Remote) -> None:
        """Have a worker load the dataset; not before the first one of its node has the image."""
        nearby = [w for w in self._workers.values() if w.loads and w.beat.node == worker.beat.node]
        image = next(((w.beat.pid, w.fd) for w in nearby if w.fd >= 0), None)
        if image is None and nearby:
            return
        worker.loads = True
        path = [os.path.abspath(each) for each in sys.path]
        ref = worker.actor.load.remote([self._image], image, path, versions())
        worker.answers[ref] = functools.partial(self._has_loaded, worker)

    def _has_loaded(self, worker: Remote, found: tuple[int, bytes]) -> None:
        worker.fd, error = found
        failure = load_start_error(error, "loading the dataset or worker_init")
        if failure is not None:
            reraise(failure)
        self._crash_counts.clear(np.array([status.LOADING]), ())

    # ---- work

    def work(self) -> None:
        """Have rows fetched until the ring says stop."""
        try:
            while self._promise():
                self._assign()
                self._take_answers(_POLL_SECONDS if self._room() else 0.05)
        except Exception as error:
            self._end.loaded(self._arguments.start, dump_start_error(error))
            os._exit(1)
        for worker in self._workers.values():
            ray.kill(worker.actor)
        ray.shutdown()

    def _is_ready(self, worker: Remote) -> bool:
        return worker.fd >= 0 and status.now() < worker.seen + self._job.silence

    def _ready(self) -> list[Remote]:
        return [worker for worker in self._workers.values() if self._is_ready(worker)]

    def _room(self) -> int:
        """Calls that workers have room for."""
        return sum(_MOST_CALLS - len(worker.calls) for worker in self._ready())

    def _call_rows(self) -> int:
        """Rows of a call: of several small batches, if their rows are cheap."""
        if not self._n_rows:
            return max(1, self._rows // (_MOST_CALLS * max(1, len(self._ready()))))
        return max(1, min(MOST_PARTS * self._rows, int(_CALL_SECONDS / self._row_seconds)))

    def _promise(self) -> bool:
        """Promise rows while workers have room for them; False if the ring says stop."""
        # Of a large batch no worker gets more than its share.
        most = max(1, min(self._call_rows(), -(-self._rows // max(1, len(self._ready())))))
        wanted = self._room() * self._call_rows()
        is_idle = not any(worker.calls for worker in self._workers.values())
        while _rows_of(self._pending) < wanted:
            taken = self._writer.take(_IDLE_NS if is_idle and not self._pending else 0, most)
            if not taken:
                return taken is not None
            place, batch, ranges = taken
            self._pending += [RemotePart(place, Asked(*batch), *each) for each in ranges]
        return not self._writer.leaves()

    def _assign(self) -> None:
        """Give parts to workers that have few."""
        ready = self._ready()
        most = min(self._call_rows(), -(-_rows_of(self._pending) // max(1, self._room())))
        for depth in range(_MOST_CALLS):
            for worker in ready:
                if len(worker.calls) == depth:
                    self._send(worker, self._next_parts(most))
        self._assign_again([worker for worker in ready if not worker.calls])

    def _next_parts(self, most: int) -> list[RemotePart]:
        """Parts for one call, of `most` rows or a few more; a suspect part goes alone."""
        parts: list[RemotePart] = []
        while self._pending and len(parts) < MOST_PARTS and _rows_of(parts) < most:
            if parts and (parts[0].is_suspect or self._pending[0].is_suspect):
                break
            part = self._pending.popleft()
            if self._is_wanted(part):
                parts.append(part)
        return parts

    def _send(self, worker: Remote, parts: list[RemotePart]) -> None:
        if not parts:
            return
        if not worker.calls:
            worker.since = status.now()
        worker.calls.append(parts)
        ref = worker.actor.fetch.remote([part.asked() for part in parts])
        worker.answers[ref] = functools.partial(self._arrived, worker, parts)
        for part in parts:
            part.workers.append(worker)

    def _assign_again(self, idle: list[Remote]) -> None:
        """Have other workers fetch the rows of silent workers, too; and, if rows are hedged, idle
        workers late rows. Local workers choose the oldest rows themselves."""
        busy = sorted((w for w in self._workers.values() if w.calls), key=lambda w: w.since)
        if self._job.hedges and self._job.n_local and busy:
            first = busy[0].calls[0][0]
            self._writer.waits_since(int(busy[0].since * 1e9), first.indices[0])
        for worker in busy:
            due = worker.since
            for call in worker.calls:
                due += max(_LATE_SECONDS, _LATE_MEANS * self._row_seconds * _rows_of(call))
                parts = [part for part in call if not self._is_elsewhere(part, worker)]
                rows = _rows_of(parts)
                is_late = self._job.hedges and self._n_rows and status.now() > due
                may_hedge = self._n_hedged + rows <= self._job.hedge * (self._n_rows + rows) + 1
                if not self._is_ready(worker):
                    self._pending.extendleft(parts)
                elif is_late and may_hedge and parts and idle and not self._pending:
                    self._n_hedged += rows
                    self._send(idle.pop(), parts)

    def _is_wanted(self, part: RemotePart) -> bool:
        return self._writer.is_promised(part.place, part.first, len(part.indices))

    def _is_elsewhere(self, part: RemotePart, worker: Remote) -> bool:
        """Whether a part need not be fetched by others than a worker that has it."""
        others = [other for other in part.workers if other is not worker]
        is_held = part in self._pending or any(map(self._is_ready, others))
        return is_held or not self._is_wanted(part)

    # ---- what comes back

    def _take_answers(self, seconds: float) -> None:
        self._watch_workers()
        asked = {ref: worker for worker in self._workers.values() for ref in worker.answers}
        done, _ = ray.wait([*asked], num_returns=len(asked), timeout=0)
        if not done:
            done, _ = ray.wait([*asked], timeout=seconds)
        for ref in done:
            worker = asked[ref]
            if self._workers.get(worker.number) is not worker:
                continue  # it was dropped meanwhile
            try:
                found = ray.get(ref, timeout=1.0)
            except ray.exceptions.RayError as error:
                if not isinstance(error, ray.exceptions.GetTimeoutError):
                    self._lost(worker, error)
                continue
            worker.seen = status.now()
            worker.answers.pop(ref)(found)
        if status.now() > self._reported_at + 0.1:
            self._report()

    def _arrived(self, worker: Remote, parts: list[RemotePart], answers: list[Any]) -> None:
        worker.calls.remove(parts)
        worker.since = status.now()
        each = max(1e-6, sum(took for took, _ in answers) / _rows_of(parts))
        self._row_seconds += (each - self._row_seconds) / (8 if self._n_rows else 1)
        node = self._nodes[worker.beat.node]
        for part, (took, pieces) in zip(parts, answers, strict=True):
            part.workers.remove(worker)
            node["bytes"] += sum(map(len, pieces[0])) + len(pieces[1])
            fetch_ns = int(took * 1e9 / len(self._workers))  # as if all were one worker
            done = self._writer.put(part.place, part.first, len(part.indices), pieces, fetch_ns)
            node["rows"] += done
            self._n_rows += done
            if self._crash_counts:
                self._crash_counts.clear(part.indices, ())

    def _lost(self, worker: Remote, error: Exception) -> None:
        """A worker has died, or its node: others fetch its rows, and another takes its place."""
        if isinstance(error, ray.exceptions.RayTaskError):
            raise ClusterError(f"a worker failed {worker.beat.place}: {error}")
        is_idle = worker.fd < 0 and not self._ready()
        if is_idle and self._crash_counts.count_idle(len(self._workers)):
            raise ClusterError(f"workers cannot start: {error}")
        self._drop(worker, Exit(worker.beat.pid, f"died {worker.beat.place}"))

    def _drop(self, worker: Remote, end: Exit | Overrun | None = None) -> None:
        """End a worker, and have others fetch its rows: row by row if they may be the cause of
        `end`. `_watch_workers` starts another worker in its place."""
        del self._workers[worker.number]
        ray.kill(worker.actor)
        for number, call in enumerate(worker.calls):
            for part in call:
                part.workers.remove(worker)
                is_missing = not self._is_elsewhere(part, worker)
                if is_missing and end is not None and number == 0:
                    self._suspect(worker, part, end)
                elif is_missing:
                    self._pending.appendleft(part)

    def _suspect(self, worker: Remote, part: RemotePart, end: Exit | Overrun) -> None:
        """Have rows fetched one by one, and give up a row that has ended workers again and again:
        for a death the row that was alone, for an overrun the index that took too long."""
        for row, index in enumerate(part.indices, part.first):
            is_known = end.step == index if isinstance(end, Overrun) else len(part.indices) == 1
            q = part.place[0]
            if is_known and self._crash_counts.count(q, row, index, worker.start, end):
                last = self._crash_counts.last_exit(q, row)
                error = crash_error(f"dataset index {index}", last, worker.beat.place, index)
                self._writer.put(part.place, row, 1, error)
                self._crash_counts.clear([index], [0])
            else:
                single = RemotePart(part.place, part.batch, row, [index], is_suspect=True)
                self._pending.appendleft(single)

    # ---- time

    def _watch_workers(self) -> None:
        """Have as many workers as are wanted, and warn if they find no place."""
        count, workers, now = self._job.n_workers.get(), self._workers, status.now()
        for number in range(count):
            if len(workers) < count and number not in workers:
                self._start(number, count)
        while len(workers) > count:  # those first that have no place
            self._drop(min(workers.values(), key=lambda worker: worker.fd))
        for worker in workers.values():
            if worker.beat.node and not worker.loads:
                self._load(worker)
        placed = sum(bool(worker.beat.node) for worker in workers.values())
        if placed == count or placed != self._n_placed:
            self._n_placed, self._placed_at = placed, now
        limit = self._job.place_timeout if placed else _NO_PLACE_SECONDS
        if limit is None or now <= self._placed_at + limit:
            return
        self._placed_at = float("inf") if placed else now
        wanted, found = self._job.resources, ray.available_resources()
        nodes = [{name: node.get(name, 0) for name in wanted} for node in _resources()]
        free = {name: found.get(name, 0) for name in wanted}
        self._warn(
            f"{placed} of {count} workers have a place in the cluster, the others wait for one. "
            f"Each needs resources={wanted}; the nodes have {nodes}, and {free} of all is free"
        )

    def _ask_beat(self, worker: Remote, pause: float) -> None:
        ref = worker.actor.beat.remote(pause, self._job.dataset_timeout)
        worker.answers[ref] = functools.partial(self._heard, worker)

    def _heard(self, worker: Remote, beat: Beat) -> None:
        """Warn of a step that takes too long, or end its worker."""
        worker.beat = beat
        new = {"address": beat.address, "workers": 0, "rows": 0, "bytes": 0}
        self._nodes.setdefault(beat.node, new)
        self._ask_beat(worker, self._pause)
        if (limit := self._job.dataset_timeout) is None or beat.seconds <= limit:
            worker.warnings = 0
        elif self._job.retries:
            end = Overrun(beat.step, beat.seconds, limit, beat.stack)
            if beat.step < 0 and self._crash_counts.count(0, 0, beat.step, worker.start, end):
                last = self._crash_counts.last_exit(0, 0)
                raise crash_error("loading the dataset", last, beat.place)
            self._drop(worker, end)
        elif beat.seconds > limit * (worker.warnings + 1):
            worker.warnings += 1
            self._warn(
                f"{step_text(beat.step)} for {beat.seconds:.1f} s (dataset_timeout={limit} s) "
                f"{beat.place}. Its Python stack:\n{beat.stack}"
            )

    # ---- the program

    def _warn(self, text: str) -> None:
        number = self._warnings[-1][0] + 1 if self._warnings else 1
        self._warnings = [*self._warnings, (number, text)][-4:]
        self._report()

    def _report(self) -> None:
        self._reported_at = status.now()
        for name, node in self._nodes.items():
            node["workers"] = sum(worker.beat.node == name for worker in self._ready())
        self._job.facts.set({"nodes": self._nodes, "warnings": self._warnings})


def _rows_of(parts: Iterable[RemotePart]) -> int:
    return sum(len(part.indices) for part in parts)


def _resources() -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _watch_cluster() -> None:
    """Put off the end of this process, while the head and this machine's raylet answer."""
    while True:
        with contextlib.suppress(Exception):
            ray.nodes()
            ray.put(None)  # into the raylet's store
            status.exit_unless_renewed(_SILENCE_SECONDS, os.EX_UNAVAILABLE)
        threading.Event().wait(_BEAT_SECONDS)

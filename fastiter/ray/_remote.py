"""What a worker on a node of the cluster runs."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import sys
import threading
import time
import traceback
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray

from fastiter._clib import status
from fastiter._order import example_context
from fastiter._order.plan import Plan
from fastiter._ring.arena import Arena, WorkerRing
from fastiter._ring.parent import BatchScheduler
from fastiter._ring.serialization import unpack
from fastiter._util import failures
from fastiter._workers import main, row_writer, thread_limits
from fastiter._workers.shm_image import Image
from fastiter.ray._job import ClusterError

#: Parts that one call may have.
MOST_PARTS = 16


class Asked(NamedTuple):
    """A part of a batch that a worker is to fetch, or all of it."""

    record: bytes  # of the schema; empty for none
    seed: tuple[int, int]
    origin: tuple[int, int, int]  # epoch, position and epoch size, after these rows
    indices: npt.NDArray[np.int64]
    seeds: bytes | None


class Beat(NamedTuple):
    """A sign of life."""

    node: str
    address: str
    pid: int
    step: int  # the index that is fetched, or `status.LOADING`
    seconds: float  # for how long; 0 between two steps
    stack: str  # if that is more than it should be


def versions() -> str:
    """What has to be the same on all nodes."""
    python = ".".join(map(str, sys.version_info[:2]))
    ours = sys.modules["fastiter"].__version__
    return f"Python {python}, NumPy {np.__version__}, fastiter {ours}"


def adopt_main() -> None:
    """Let classes of the program's main module, which have travelled by value, pickle by name: an
    exception or an example arrives in the program as what it is there."""
    module = sys.modules["__main__"]
    sys.modules.setdefault("__mp_main__", module)  # its name where multiprocessing has spawned it
    for found in gc.get_objects():
        if isinstance(found, type) and found.__module__ in ("__main__", "__mp_main__"):
            setattr(module, found.__qualname__, found)


class NodeWorker:
    """Fetches rows, in the first thread, and answers `beat` in another one."""

    def __init__(self, number: int, workers: int, rows: int, seed: bytes):
        self._number, self._workers, self._rows = number, workers, rows
        self._digest = hashlib.blake2b(seed, digest_size=32).digest()
        self._node = ray.get_runtime_context().get_node_id()[:8]
        self._address = ray.util.get_node_ip_address()
        failures.place = f" on node {self._node} ({self._address})"
        self._dataset: Any = None
        self._image: Image | None = None  # kept for others of this node
        self._rings: dict[bytes, tuple[BatchScheduler, row_writer.PartWriter]] = {}
        self._now: BatchScheduler | None = None  # the ring of the present part
        self._loads_since = 0.0  # 0: it does not
        self._thread = 0
        # A raylet that dies leaves busy workers running.
        status.watch_parent(os.pidfd_open(os.getppid()), -1)

    def load(
        self, refs: list[Any], nearby: tuple[int, int] | None, path: list[str], wanted: str
    ) -> tuple[int, bytes]:
        """Load the dataset from the image that the only one of `refs` is, or that another worker of
        this node (pid, descriptor) has. Return the descriptor here, and the error or nothing.

        Modules are also looked for along the program's `path`, as far as that is here, too.
        `wanted` are its versions.
        """
        self._thread = threading.get_ident()
        try:
            if versions() != wanted:
                raise ClusterError(
                    f"a worker{failures.place} has {versions()}; this program has {wanted}"
                )
            sys.path += [each for each in path if each not in sys.path and os.path.exists(each)]
            thread_limits.limit_threads()
            self._image = _image_of(nearby) or _image_from(ray.get(refs[0]))
            main.seed_by(self._digest)
            self._loads_since = status.now()
            self._dataset, worker_init = unpack(self._image.map())
            adopt_main()
            thread_limits.limit_threads()  # of what the dataset imported
            main.seed_by(self._digest)
            seed = int.from_bytes(self._digest[-8:], "little")
            main.introduce(self._dataset, worker_init, self._number, self._workers, seed)
        except BaseException as error:
            return -1, failures.dump_start_error(error)
        self._loads_since = 0.0
        return self._image.fd, b""

    def fetch(self, parts: list[Asked]) -> list[tuple[float, Any]]:
        """Fetch parts: of each the seconds that it took, and what `PartWriter.fetch` returns."""
        self._thread = threading.get_ident()
        found = [self._fetch(part) for part in parts]
        self._now = None
        return found

    def _fetch(self, part: Asked) -> tuple[float, Any]:
        since = status.now()
        self._now, writer = self._ring(part.record)
        self._now.seed = part.seed
        example_context.set_worker(writer)
        plan = Plan(part.indices, None, origin=part.origin, seeds=part.seeds)
        pieces = writer.fetch(self._now, plan)  # whose arrays Ray copies into its store
        return status.now() - since, pieces

    def _ring(self, record: bytes) -> tuple[BatchScheduler, row_writer.PartWriter]:
        """A ring whose batches have the columns of a schema, and what fills it."""
        if record not in self._rings:
            arena = Arena.create(MOST_PARTS + 2, 1, self._rows, 2)
            ring = BatchScheduler(arena, 0, 0)
            if record:
                with contextlib.suppress(Exception):  # a type that is not known here: all is packed
                    ring.use_schema(pickle.loads(record))
            writer = row_writer.PartWriter(WorkerRing(arena, 0, -1), self._dataset)
            self._rings[record] = ring, writer
        return self._rings[record]

    @ray.method(concurrency_group="beat")  # type: ignore[untyped-decorator]
    def beat(self, pause: float, limit: float | None) -> Beat:
        """What goes on after a pause, with the stack if it takes more than `limit`."""
        time.sleep(pause)
        step, since, stack = status.LOADING, self._loads_since, ""
        if (ring := self._now) is not None:
            report = ring.report(0)
            step, since = report["index"], report["since"] / 1e9
        seconds = status.now() - since if since else 0.0
        if limit is not None and seconds > limit:
            stack = "".join(traceback.format_stack(sys._current_frames().get(self._thread)))
        return Beat(self._node, self._address, os.getpid(), step, seconds, stack)


def _image_of(nearby: tuple[int, int] | None) -> Image | None:
    """The image that another worker of this node has; None if it cannot be had."""
    with contextlib.suppress(OSError):
        if nearby is not None:
            fd = os.open("/proc/{}/fd/{}".format(*nearby), os.O_RDONLY | os.O_CLOEXEC)
            return Image.adopt(fd, os.fstat(fd).st_size)
    return None


def _image_from(data: Any) -> Image:
    """A copy of the image in the node's object store: arrays of that would be read-only."""
    image = Image.create(len(data), "the dataset's image", "let the dataset read from files")
    with open(image.fd, "wb", closefd=False) as file:
        file.write(data)
    return image

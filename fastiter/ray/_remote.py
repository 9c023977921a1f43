"""The main function of a worker on a node of the cluster."""

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
from fastiter._ring.scheduler import BatchScheduler
from fastiter._ring.serialization import unpack
from fastiter._util import failures
from fastiter._workers import main, thread_limits
from fastiter._workers.shm_image import Image
from fastiter.ray._part_writer import PartWriter
from fastiter.ray._shared import ClusterError

MOST_PARTS = 16  # of one call


class Asked(NamedTuple):
    """A part of a batch that a worker is to fetch, or all of it."""

    record: bytes  # of the schema; empty for none
    seed: tuple[int, int]
    origin: tuple[int, int, int]  # epoch, position and epoch size, after these rows
    indices: npt.NDArray[np.int64]
    seeds: bytes | None


class Beat(NamedTuple):
    """A sign of life."""

    node: str  # empty for none
    address: str
    pid: int
    step: int = status.LOADING  # or the index that is fetched
    seconds: float = 0.0  # for how long; 0 between two steps
    stack: str = ""  # if that is more than it should be

    @property
    def place(self) -> str:
        return f"on node {self.node} ({self.address}), process {self.pid}" if self.node else ""


NO_BEAT = Beat("", "", 0)


def versions() -> str:
    """Versions that have to be the same on all nodes."""
    python = "Python {}.{}".format(*sys.version_info)
    return f"{python}, NumPy {np.__version__}, fastiter {sys.modules['fastiter'].__version__}"


def adopt_main() -> None:
    """Let classes of the program's main module, which have travelled by value, pickle by name: an
    exception or an example arrives in the program with the program's own class."""
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
        node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        self._beat = Beat(node[:8], address, os.getpid())
        failures.place = f" on node {node[:8]} ({address})"
        self._dataset: Any = None
        self._image: Image | None = None  # kept for others of this node
        self._ring: BatchScheduler | None = None  # None until it works
        self._record = b""
        self._loads_since = 0.0  # 0: it does not
        self._thread = 0
        # A raylet that dies leaves busy workers running.
        status.watch_parent(os.pidfd_open(os.getppid()), -1)

    def load(
        self, refs: list[Any], nearby: tuple[int, int] | None, path: list[str], wanted: str
    ) -> tuple[int, bytes]:
        """Load the dataset from the image that the only one of `refs` is, or that another worker of
        this node (pid, descriptor) has. Return the descriptor here, and the error or nothing.
        The program has the versions `wanted`, and finds modules along `path`."""
        self._thread = threading.get_ident()
        try:
            if versions() != wanted:
                found = f"a worker{failures.place} has {versions()}"
                raise ClusterError(f"{found}; this program has {wanted}")
            sys.path += [each for each in path if each not in sys.path and os.path.exists(each)]
            thread_limits.limit_threads()
            self._image = _image_of(nearby, refs)
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
        answers = []
        for part in parts:
            since = status.now()
            ring, writer = self._with_schema(part.record)
            ring.seed = part.seed
            plan = Plan(part.indices, None, origin=part.origin, seeds=part.seeds)
            pieces = writer.fetch(ring, plan)  # whose arrays Ray copies into its store
            answers.append((status.now() - since, pieces))
        return answers

    def _with_schema(self, record: bytes) -> tuple[BatchScheduler, PartWriter]:
        """The ring, whose batches have the columns of a schema, and its writer."""
        if self._ring is None or record != self._record:
            arena = Arena.create(MOST_PARTS + 2, 1, self._rows, 2)
            ring = BatchScheduler(arena, 0, 0)
            with contextlib.suppress(Exception):  # a type that is not known here: all is packed
                ring.use_schema(pickle.loads(record))
            self._writer = PartWriter(WorkerRing(arena, 0, -1), self._dataset)
            example_context.set_worker(self._writer)
            self._ring, self._record = ring, record
        return self._ring, self._writer

    @ray.method(concurrency_group="beat")  # type: ignore[untyped-decorator]
    def beat(self, pause: float, limit: float | None) -> Beat:
        """Present step after a pause, with the stack if it takes more than `limit`."""
        time.sleep(pause)
        step, since, stack = status.LOADING, self._loads_since, ""
        if self._ring is not None:
            report = self._ring.report(0)
            step, since = report["index"], report["since"] / 1e9
        seconds = status.now() - since if since else 0.0
        if limit is not None and seconds > limit:
            stack = "".join(traceback.format_stack(sys._current_frames().get(self._thread)))
        return self._beat._replace(step=step, seconds=seconds, stack=stack)


def _image_of(nearby: tuple[int, int] | None, refs: list[Any]) -> Image:
    """The image of another worker of this node; without such a worker, a copy of the object in the
    node's object store, since its arrays would be read-only."""
    with contextlib.suppress(OSError):
        if nearby is not None:
            fd = os.open("/proc/{}/fd/{}".format(*nearby), os.O_RDONLY | os.O_CLOEXEC)
            return Image.adopt(fd, os.fstat(fd).st_size)
    data = ray.get(refs[0])
    image = Image.create(len(data), "the dataset's image", "let the dataset read from files")
    with open(image.fd, "wb", closefd=False) as file:
        file.write(data)
    return image

"""What the processes of this machine work on, and tell each other: the helper, the local workers,
and the program."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

import ray

from fastiter._ring.arena import WorkerRing
from fastiter._ring.serialization import dumps
from fastiter._workers.main import BatchJob, WorkerArguments
from fastiter._workers.shared_object import Shared, reserve_file

_BOARD_BYTES = 16 << 20  # of addresses: pages come as they are written
_ASKED = struct.Struct("<I")  # at the start; behind it the facts:
_HEAD = struct.Struct("<II")  # their size and checksum


class ClusterError(RuntimeError):
    """The cluster cannot be reached, or what connects this program with it was lost.

    That is the head of the cluster, the raylet of this machine, or the helper process of the
    iterator. A lost node or worker is no error: others make the rows. No batch is lost: the next
    call of ``next()`` connects again, and a saved state goes on with any iterator.
    """


class Board:
    """Shared memory where the helper writes facts by name (`reason`, `nodes`, `warnings`), and the
    program how many workers it asks for."""

    def __init__(self, workers: int) -> None:
        self._file: Shared[None] = reserve_file(_BOARD_BYTES)
        self._facts: dict[str, Any] = {}
        self.ask(workers)

    def ask(self, workers: int) -> None:
        """Ask for so many workers on the cluster."""
        os.pwrite(self._file.fd, _ASKED.pack(workers), 0)

    def asked(self) -> int:
        """How many workers were asked for last."""
        workers: int = _ASKED.unpack(os.pread(self._file.fd, _ASKED.size, 0))[0]
        return workers

    def write(self, facts: dict[str, Any]) -> None:
        """Replace all facts."""
        text = json.dumps(facts).encode()
        os.pwrite(self._file.fd, _HEAD.pack(len(text), zlib.crc32(text)) + text, _ASKED.size)

    def read(self) -> dict[str, Any]:
        """The facts; those before them while others are being written."""
        size, check = _HEAD.unpack(os.pread(self._file.fd, _HEAD.size, _ASKED.size))
        text = os.pread(self._file.fd, size, _ASKED.size + _HEAD.size)
        if size and zlib.crc32(text) == check:
            self._facts = json.loads(text)
        return self._facts


@dataclasses.dataclass(frozen=True)
class Cluster:
    """How to reach workers of a cluster, and what they shall do."""

    address: str
    local: int
    resources: dict[str, float]
    silence: float
    dataset_timeout: float | None
    n_retries: int | None  # None: what takes long is warned of
    hedge: float
    warns_of_places: bool
    board: Board


@dataclasses.dataclass(eq=False)
class ClusterJob(BatchJob):
    """Worker 0 is the helper, which has rows fetched on the cluster; the others fetch here.

    The dataset is an image: (dataset, worker_init), which the program has made.
    """

    cluster: Cluster = None  # type: ignore[assignment]

    helper = 0

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        cluster = self.cluster
        if arguments.number == self.helper:
            from fastiter.ray._helper import Helper

            helper = Helper(cluster, self.dataset, self.batch_converter, end, arguments.seed)
            helper.connect()
            return helper.work
        from fastiter.ray._remote import adopt_main

        self.dataset, self.worker_init = self.dataset.value
        adopt_main()
        arguments = arguments._replace(
            number=arguments.number - 1, workers=cluster.local + cluster.board.asked()
        )
        return super().prepare(end, arguments, seed)


def image_of(dataset: Any, worker_init: Any) -> Shared[Any]:
    """The image of a dataset for all nodes. What the main module defines travels by value."""
    make = functools.partial(dumps, pickler=ray.cloudpickle.CloudPickler)
    module = sys.modules["__main__"]
    if module.__name__ != "__main__":  # of a process that multiprocessing has spawned
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        image = Shared.reserve(
            (dataset, worker_init), "the dataset's image", "let it read from files", make
        )
    except Exception as error:
        raise TypeError(
            f"the dataset, or worker_init, cannot be pickled for the nodes of a cluster: {error}. "
            "Open files, connections and locks where they are used first, on the worker"
        ) from error
    if image._carried:
        raise TypeError("the dataset holds objects of fastiter.kernels.share, which stay here")
    image.write()
    return image

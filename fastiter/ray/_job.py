"""Work and messages of the processes of this machine: the helper, the local workers, and the
program."""

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

_CELL_BYTES = 16 << 20  # of addresses: pages come as they are written
_HEAD = struct.Struct("<II")  # size and checksum


class ClusterError(RuntimeError):
    """The cluster cannot be reached, or the connection to it was lost.

    The connection consists of the head of the cluster, the raylet of this machine, and the helper
    process of the iterator. A lost node or worker is no error: others fetch its rows. No batch
    is lost: the next call of ``next()`` connects again, and a saved state goes on with any
    iterator.
    """


class Cell:
    """A value in shared memory, as JSON, that one process sets and others get."""

    def __init__(self, value: Any) -> None:
        self._file: Shared[None] = reserve_file(_CELL_BYTES)
        self.set(value)

    def set(self, value: Any) -> None:
        text = json.dumps(value).encode()
        os.pwrite(self._file.fd, _HEAD.pack(len(text), zlib.crc32(text)) + text, 0)
        self._known = value

    def get(self) -> Any:
        """The value; the one before it while another is being written."""
        size, check = _HEAD.unpack(os.pread(self._file.fd, _HEAD.size, 0))
        text = os.pread(self._file.fd, size, _HEAD.size)
        if zlib.crc32(text) == check:
            self._known = json.loads(text)
        return self._known


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
            from fastiter.ray._helper import Helper

            helper = Helper(self, end, arguments)
            helper.connect()
            return helper.work
        from fastiter.ray._remote import adopt_main

        self.dataset, self.worker_init = self.dataset.value
        adopt_main()
        workers = self.n_local + self.n_workers.get()
        arguments = arguments._replace(number=arguments.number - 1, workers=workers)
        return super().prepare(end, arguments, seed)


def image_of(dataset: Any, worker_init: Any) -> Shared[Any]:
    """The image of a dataset for all nodes. Definitions of the main module travel by value."""
    make = functools.partial(dumps, pickler=ray.cloudpickle.CloudPickler)
    module = sys.modules["__main__"]
    if module.__name__ != "__main__":  # of a process that multiprocessing has spawned
        ray.cloudpickle.register_pickle_by_value(module)
    what, remedy = "the dataset's image", "let it read from files"
    try:
        image = Shared.reserve((dataset, worker_init), what, remedy, make)
    except Exception as error:
        raise TypeError(
            f"the dataset, or worker_init, cannot be pickled for the nodes of a cluster: {error}. "
            "Open files, connections and locks where they are used first, on the worker"
        ) from error
    if image._carried:
        raise TypeError("the dataset holds objects of fastiter.kernels.share, which stay here")
    image.write()
    return image

"""Errors, messages in shared memory and the dataset, which all processes of a cluster share."""

from __future__ import annotations

import functools
import json
import os
import struct
import sys
import zlib
from typing import Any

import ray

from fastiter._ring.serialization import dump
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


def image_of(dataset: Any, worker_init: Any) -> Shared[Any]:
    """The image of a dataset for all nodes. Definitions of the main module travel by value."""
    make = functools.partial(dump, pickler=ray.cloudpickle.CloudPickler)
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
        raise TypeError(
            "the dataset holds objects of fastiter.kernels.share or a fastiter.cache in memory, "
            "which stay in this program: a cache with path= travels as its path"
        )
    image.write()
    return image

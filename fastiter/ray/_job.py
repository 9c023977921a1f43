"""What the processes of this machine work on: the helper and the local workers."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import ray

from fastiter._ring.arena import WorkerRing
from fastiter._ring.serialization import dumps
from fastiter._workers.main import BatchJob, WorkerArguments
from fastiter._workers.shared_object import Shared
from fastiter.ray._board import Board


@dataclasses.dataclass(frozen=True)
class Cluster:
    """How to reach workers of a cluster, and how many there shall be."""

    address: str
    workers: int
    local: int
    resources: dict[str, float]
    silence: float
    dataset_timeout: float | None
    n_retries: int | None  # None: what takes long is warned of
    hedge: float


@dataclasses.dataclass(eq=False)
class ClusterJob(BatchJob):
    """Worker 0 is the helper, which has rows fetched on the cluster; the others fetch here.

    The dataset is an image: (dataset, worker_init), which the program has made.
    """

    cluster: Cluster = None  # type: ignore[assignment]
    board: Board = dataclasses.field(default_factory=Board)

    helper = 0

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        if arguments.number == self.helper:
            from fastiter.ray._helper import Helper

            helper = Helper(self, end, arguments.seed)
            helper.connect()
            return helper.work
        from fastiter.ray._remote import adopt_main

        image = self.dataset
        self.dataset, self.worker_init = image.value
        adopt_main()
        cluster = self.cluster
        arguments = arguments._replace(
            number=arguments.number - 1, workers=cluster.workers + cluster.local
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

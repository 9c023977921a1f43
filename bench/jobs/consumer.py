"""CPU time of a training's own process for a batch of two tensors, beside that of its workers.

The dataset is W2's, a list of ready tuples (float32[16], int); two workers, batches of 256. A call
takes `BATCHES` batches and does nothing with them. ``consumer_us`` is the CPU time of this process
per batch, of all its threads.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from bench.harness.candidates import as_torch_batches, torch_batches
from bench.harness.micro import AtMost, Case, Measured, WrongResult
from bench.harness.workloads import WORKLOADS

NAME = "consumer"
TITLE = "CPU time of the consumer's process, per batch of two tensors"

BATCHES = 200
OURS = "fastiter.torch-loader"

Open = Callable[..., AbstractContextManager[Iterator[Any]]]


@contextmanager
def _taking(open_: Open) -> Iterator[Callable[[Any], Measured]]:
    workload = WORKLOADS["W2"]
    dataset = workload.make()
    next_index = 0

    with open_(workload, dataset) as batches:

        def run(_: Any) -> Measured:
            nonlocal next_index
            begin, cpu = time.perf_counter(), time.process_time()
            for _ in range(BATCHES):
                rows, indices = next(batches)
            cpu, seconds = time.process_time() - cpu, time.perf_counter() - begin
            first = (next_index + (BATCHES - 1) * workload.batch_size) % len(dataset)
            next_index = (first + workload.batch_size) % len(dataset)
            result = rows, indices, first, dataset
            return Measured(seconds, result, {"consumer_us": 1e6 * cpu / BATCHES})

        yield run


def _check(result: Any, source: Any) -> None:
    """The last batch of a call is compared."""
    rows, indices, first, dataset = result
    due = [dataset[first + row] for row in range(len(indices))]
    if indices.tolist() != [i for _, i in due]:
        raise WrongResult(f"the batch holds the indices {indices}, not those from {first} on")
    if rows.tolist() != [row.tolist() for row, _ in due]:
        raise WrongResult("the rows are not those of the indices beside them")


def cases(quick: bool) -> Iterator[Case]:
    loaders = {
        OURS: functools.partial(torch_batches, loader="fastiter.torch.DataLoader"),
        "fastiter.as-torch": as_torch_batches,
        "torch": torch_batches,
        "torchdata": functools.partial(
            torch_batches, loader="torchdata.stateful_dataloader.StatefulDataLoader"
        ),
    }
    yield Case(
        name="256 x (float32[16], int)",
        sources=lambda: [None],
        candidates={name: functools.partial(_taking, open_) for name, open_ in loaders.items()},
        check=_check,
        items=BATCHES,
        item="batch",
        goals=[AtMost("consumer_us", 60, OURS)],
        share=10,
        processes=True,
    )

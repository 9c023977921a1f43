"""W8: opening and closing a loader of a dataset that lies in memory, 1 GiB of images.

A call opens the loader, takes and compares `BATCHES` batches and closes it. Its duration is that of
the first batch, from the construction of the loader on. ``loaded_mb`` is by how much the memory of
all processes (PSS) is higher with the loader at work, ``system_mb`` how much less memory the system
has free then: it knows of pages in shared memory too that no process has touched yet, as those of
torch's batches on their way. ``fastiter.torch-CONTEXT`` is our loader for torch.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.micro import AtMost, Case, Goal, Measured, WrongResult
from bench.harness.procs import process_tree, pss_bytes
from bench.harness.workloads import N_PREFETCH, ManyImages

NAME = "startup"
TITLE = "W8: first batch, memory and close of a loader with 2 workers"

BATCH_SIZE = 64
N_WORKERS = 2
BATCHES = 8
IMAGES = 7_134
QUICK_IMAGES = 640
CONTEXTS = ("fork", "forkserver", "spawn")

Loader = Callable[[ManyImages], AbstractContextManager[Iterator[Any]]]


def _memory() -> tuple[int, int]:
    """PSS of this process and its workers, and what the system could give away, in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return pss_bytes(process_tree(os.getpid())), 1024 * int(line.split()[1])
    raise LookupError("/proc/meminfo has no MemAvailable")


def _opening(loader: Loader) -> Callable[[ManyImages], Measured]:
    """Times of a candidate: the first batch; more figures: memory then added, and closing."""

    def run(dataset: ManyImages) -> Measured:
        used, free = _memory()
        begin = time.perf_counter()
        opened = loader(dataset)
        iterator = opened.__enter__()
        try:
            batch = next(iterator)
            seconds = time.perf_counter() - begin
            for number in range(BATCHES):
                _check_batch(batch, number, dataset)
                batch = next(iterator)
            used_then, free_then = _memory()
        finally:
            begin = time.perf_counter()
            opened.__exit__(None, None, None)
        closed = time.perf_counter() - begin
        figures = {
            "loaded_mb": (used_then - used) / 1e6,
            "system_mb": (free - free_then) / 1e6,
            "close_s": closed,
        }
        return Measured(seconds, BATCHES, figures)

    return run


def _fastiter(context: str) -> Callable[[], Callable[[ManyImages], Measured]]:
    def open_() -> Callable[[ManyImages], Measured]:
        from fastiter.dataset import concat_examples
        from fastiter.iterators import MultiprocessIterator

        return _opening(
            lambda dataset: MultiprocessIterator(
                dataset,
                BATCH_SIZE,
                shuffle=False,
                n_processes=N_WORKERS,
                n_prefetch=N_PREFETCH,
                converter=concat_examples,
                context=context,
            )
        )

    return open_


def _torch(
    context: str, library: str = "torch.utils.data"
) -> Callable[[], Callable[[ManyImages], Measured]]:
    """`library` has a ``DataLoader`` with torch's arguments."""

    def open_() -> Callable[[ManyImages], Measured]:
        import torch

        torch.set_num_threads(1)
        loader_class = importlib.import_module(library).DataLoader

        @contextmanager
        def loader(dataset: ManyImages) -> Iterator[Any]:
            iterator = iter(
                loader_class(
                    dataset,
                    BATCH_SIZE,
                    num_workers=N_WORKERS,
                    prefetch_factor=N_PREFETCH // N_WORKERS,
                    multiprocessing_context=context,
                )
            )
            try:
                yield iterator
            finally:
                # What its __del__ does, at a time that is known.
                ours = library == "fastiter.torch"
                (iterator.close if ours else iterator._shutdown_workers)()

        return _opening(loader)

    return open_


def _chainer() -> Callable[[ManyImages], Measured]:
    import multiprocessing

    from chainer.dataset import concat_examples
    from chainer.iterators import MultiprocessIterator

    multiprocessing.set_start_method("spawn", force=True)  # its only way to choose one

    @contextmanager
    def loader(dataset: ManyImages) -> Iterator[Any]:
        lists = MultiprocessIterator(
            dataset, BATCH_SIZE, shuffle=False, n_processes=N_WORKERS, n_prefetch=N_PREFETCH
        )
        try:
            yield map(concat_examples, lists)
        finally:
            lists.finalize()

    return _opening(loader)


def _grain() -> Callable[[ManyImages], Measured]:
    import grain

    def loader(dataset: ManyImages) -> AbstractContextManager[Iterator[Any]]:
        workers = grain.multiprocessing.MultiprocessingOptions(N_WORKERS, N_PREFETCH // N_WORKERS)
        batches = grain.MapDataset.source(dataset).batch(BATCH_SIZE)
        reading = grain.ReadOptions(1, 1)
        return closing(iter(batches.to_iter_dataset(reading).mp_prefetch(workers)))

    return _opening(loader)


def _check_batch(batch: Any, number: int, dataset: ManyImages) -> None:
    images, indices = map(np.asarray, batch)
    due = np.arange(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)
    if not np.array_equal(indices, due):
        raise WrongResult(f"batch {number}: not the indices {due[0]} to {due[-1]}, in order")
    if not np.array_equal(images, dataset.images[due]):
        raise WrongResult(f"batch {number}: not the images of its indices")


def _check(checked: int, dataset: ManyImages) -> None:
    """Each batch was compared where it was taken."""
    if checked != BATCHES:
        raise WrongResult(f"{checked} batches came, {BATCHES} were due")


def cases(quick: bool) -> Iterator[Case]:
    images = QUICK_IMAGES if quick else IMAGES
    nbytes = images * 224 * 224 * 3
    slots = (N_PREFETCH + 2) * BATCH_SIZE * 224 * 224 * 3  # batches prefetched, filled and held
    yield Case(
        name=f"{nbytes / 2**30:.2g} GiB",
        sources=lambda: [ManyImages(images)],
        candidates={
            "fastiter.fork": _fastiter("fork"),
            "fastiter.spawn": _fastiter("spawn"),
            **{
                f"fastiter.torch-{context}": _torch(context, "fastiter.torch")
                for context in CONTEXTS
            },
            **{f"torch.{context}": _torch(context) for context in CONTEXTS},
            "chainer.spawn": _chainer,
            "grain.spawn": _grain,
        },
        check=_check,
        goals=[]
        if quick
        else [
            AtMost("seconds", 1.5, "fastiter.spawn"),
            *(Goal(f"{peer}.spawn", 4, "fastiter.spawn") for peer in ("torch", "chainer", "grain")),
            AtMost("seconds", 0.06, "fastiter.fork"),
            *(
                AtMost(figure, 1.15 * nbytes / 1e6, "fastiter.spawn")
                for figure in ("loaded_mb", "system_mb")
            ),
            *(
                Goal(f"{peer}.spawn", 1.8, "fastiter.spawn", "system_mb")
                for peer in ("torch", "chainer", "grain")
            ),
            AtMost("loaded_mb", slots / 1e6 + 20, "fastiter.fork"),
            AtMost("close_s", 0.1, "fastiter.spawn"),
            AtMost("close_s", 0.1, "fastiter.fork"),
            *(
                Goal(f"torch.{context}", 1, f"fastiter.torch-{context}", figure)
                for context in CONTEXTS
                for figure in ("rate", "system_mb")
            ),
            AtMost("loaded_mb", slots / 1e6 + 20, "fastiter.torch-fork"),
            # One copy of the dataset; what each worker holds of torch comes on top.
            *(
                AtMost(figure, 1.5 * nbytes / 1e6, f"fastiter.torch-{context}")
                for context in ("forkserver", "spawn")
                for figure in ("loaded_mb", "system_mb")
            ),
        ],
        processes=True,
    )

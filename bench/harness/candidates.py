"""How each candidate loads a workload: fastiter, its peers, and a plain loop without any loader.

A candidate is a context manager that takes ``(workload, dataset)`` and gives an endless iterator
over batches, each a tuple or dict of NumPy arrays, in sequential order, with `N_PREFETCH` batches
of depth. Libraries are imported when a candidate is opened, since each runs in a process of its
own, under an interpreter that need have no other.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.harness.workloads import N_PREFETCH, Workload

Open = Callable[[Workload, Any], AbstractContextManager[Iterator[Any]]]


@dataclass(frozen=True)
class Candidate:
    """One row of a table."""

    name: str
    title: str
    open: Open
    main: bool = True  # a --quick run includes it
    prefetches: bool = True  # batches that were made ahead, which each slice must use up first

    @property
    def family(self) -> str:
        """The library; ``--peers`` and ``--python`` go by it."""
        return self.name.partition(".")[0]


def concat(examples: list[Any], padding: tuple[int | None, ...] | None) -> Any:
    """A batch by plain NumPy, as one writes it by hand."""
    first = examples[0]
    if isinstance(first, dict):
        return {key: np.stack([example[key] for example in examples]) for key in first}
    columns = []
    for field, values in enumerate(zip(*examples, strict=True)):
        if not isinstance(values[0], np.ndarray):
            columns.append(np.array(values))
        elif padding is None or padding[field] is None:
            columns.append(np.stack(values))
        else:
            padded = np.full((len(values), max(map(len, values))), padding[field], values[0].dtype)
            for row, value in enumerate(values):
                padded[row, : len(value)] = value
            columns.append(padded)
    return tuple(columns)


@contextmanager
def _numpy_loop(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    def batches() -> Iterator[Any]:
        size = workload.batch_size
        for start in itertools.cycle(range(0, len(dataset), size)):
            examples = [dataset[i] for i in range(start, start + size)]
            yield concat(examples, workload.padding)

    yield batches()


def _chainer_like(library: str, iterator: str, **options: Any) -> Open:
    """An iterator of ``chainer`` or ``fastiter``, then its ``concat_examples`` in the consumer."""

    @contextmanager
    def open_(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
        concat_examples = importlib.import_module(f"{library}.dataset").concat_examples
        lists = _iterator(library, iterator, workload, dataset, **options)
        with closing_iterator(lists):
            yield (concat_examples(batch, padding=workload.padding) for batch in lists)

    return open_


def _converting(iterator: str) -> Open:
    """An iterator of fastiter that is given ``concat_examples`` as its converter."""

    @contextmanager
    def open_(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
        from fastiter.dataset import concat_examples

        converter = concat_examples
        if workload.padding is not None:
            converter = functools.partial(concat_examples, padding=workload.padding)
        batches = _iterator("fastiter", iterator, workload, dataset, converter=converter)
        with closing_iterator(batches):
            yield batches

    return open_


@contextmanager
def closing_iterator(iterator: Any) -> Iterator[None]:
    try:
        yield
    finally:
        iterator.finalize()


def _iterator(
    library: str, name: str, workload: Workload, dataset: Any, **options: Any
) -> Iterator[Any]:
    if name == "MultiprocessIterator":
        options.update(n_processes=workload.n_workers, n_prefetch=N_PREFETCH)
        if library == "chainer" and workload.padding is not None:
            # Chainer takes the room for an example from the first batch; longer ones later go by
            # pickle, with a warning each. Room for the longest is what its users are told to ask
            # for.
            longest = max(len(dataset.reference(i)[0]) for i in range(dataset.distinct))
            options.update(shared_mem=8 * longest)
    elif name == "MultithreadIterator":
        options.update(n_threads=workload.n_workers)
        if library == "fastiter":
            options.update(n_prefetch=N_PREFETCH)
    iterators = importlib.import_module(f"{library}.iterators")
    return getattr(iterators, name)(dataset, workload.batch_size, shuffle=False, **options)


def _torch_collate(padding: tuple[int | None, ...] | None) -> Callable[[list[Any]], Any] | None:
    """torch's own default, or for ragged examples its pad_sequence."""
    if padding is None:
        return None
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def collate(examples: list[Any]) -> tuple[Any, Any]:
        sequences, indices = zip(*examples, strict=True)
        tensors = [torch.from_numpy(sequence) for sequence in sequences]
        padded = pad_sequence(tensors, batch_first=True, padding_value=padding[0])
        return padded, torch.tensor(indices)

    return collate


def _torch(workers: bool, numpy_collate: bool = False, strategy: str | None = None) -> Open:
    @contextmanager
    def open_(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
        import torch
        from torch.utils.data import DataLoader

        torch.set_num_threads(1)
        if strategy is not None:
            torch.multiprocessing.set_sharing_strategy(strategy)
        if numpy_collate:
            collate = functools.partial(concat, padding=workload.padding)
        else:
            collate = _torch_collate(workload.padding)
        options: dict[str, Any] = {}
        if workers:
            # A worker builds whole batches alone, so its depth counts per worker: at least one
            # batch each.
            options = {
                "num_workers": workload.n_workers,
                "prefetch_factor": max(1, N_PREFETCH // workload.n_workers),
                "persistent_workers": True,
                "multiprocessing_context": "fork",
            }
        loader = DataLoader(
            dataset, workload.batch_size, shuffle=False, collate_fn=collate, **options
        )

        def batches() -> Iterator[Any]:
            while True:
                for batch in loader:
                    if numpy_collate:
                        yield batch
                    elif isinstance(batch, dict):
                        yield {key: tensor.numpy() for key, tensor in batch.items()}
                    else:
                        yield [tensor.numpy() for tensor in batch]

        with closing(batches()) as iterator:
            yield iterator

    return open_


@contextmanager
def _spdl_thread(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    # A whole batch per call: example by example, its event loop takes 0.3 ms for each.
    from spdl.pipeline import PipelineBuilder

    size = workload.batch_size

    def load(start: int) -> Any:
        return concat([dataset[i] for i in range(start, start + size)], workload.padding)

    pipeline = (
        PipelineBuilder()
        .add_source(itertools.cycle(range(0, len(dataset), size)))
        .pipe(load, concurrency=workload.n_workers, output_order="input")
        .add_sink(N_PREFETCH)
        .build(num_threads=workload.n_workers)
    )
    with pipeline.auto_stop():
        yield pipeline.get_iterator()


def _grain(*, processes: bool) -> Open:
    """A map dataset of batches, built by worker processes (they are spawned) or by threads."""

    @contextmanager
    def open_(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
        import grain

        collate = None  # its own, which stacks straight into shared memory
        if workload.padding is not None:
            collate = functools.partial(concat, padding=workload.padding)
        # One thread in each process makes a batch ahead: as fast as none or two on W1, W2 and W4.
        threads = 1 if processes else workload.n_workers
        depth = 1 if processes else max(threads, N_PREFETCH)
        batches = (
            grain.MapDataset.source(dataset)
            .repeat()
            .batch(workload.batch_size, batch_fn=collate)
            .to_iter_dataset(grain.ReadOptions(threads, depth))
        )
        if processes:
            each = max(1, N_PREFETCH // workload.n_workers)
            batches = batches.mp_prefetch(
                grain.multiprocessing.MultiprocessingOptions(workload.n_workers, each)
            )
        with closing(iter(batches)) as iterator:
            yield iterator

    return open_


CANDIDATES = {
    candidate.name: candidate
    for candidate in (
        Candidate(
            "fastiter.mp",
            "MultiprocessIterator(converter=concat_examples)",
            _converting("MultiprocessIterator"),
        ),
        Candidate(
            "fastiter.mp-list",
            "MultiprocessIterator, then concat_examples",
            _chainer_like("fastiter", "MultiprocessIterator"),
        ),
        Candidate(
            "fastiter.serial",
            "SerialIterator(converter=concat_examples)",
            _converting("SerialIterator"),
            prefetches=False,
        ),
        Candidate(
            "fastiter.thread",
            "MultithreadIterator(converter=concat_examples)",
            _converting("MultithreadIterator"),
            main=False,
        ),
        Candidate("torch.mp", "DataLoader, workers, tensors", _torch(workers=True)),
        Candidate(
            "torch.mp-files",
            "DataLoader, workers, tensors shared by file name",
            _torch(workers=True, strategy="file_system"),
            main=False,
        ),
        Candidate(
            "torch.mp-numpy",
            "DataLoader, workers, collated to NumPy arrays",
            _torch(workers=True, numpy_collate=True),
        ),
        Candidate(
            "torch.serial",
            "DataLoader without workers",
            _torch(workers=False),
            main=False,
            prefetches=False,
        ),
        Candidate(
            "chainer.mp",
            "MultiprocessIterator, then concat_examples",
            _chainer_like("chainer", "MultiprocessIterator"),
        ),
        Candidate(
            "chainer.serial",
            "SerialIterator, then concat_examples",
            _chainer_like("chainer", "SerialIterator"),
            prefetches=False,
        ),
        Candidate(
            "chainer.thread",
            "MultithreadIterator, then concat_examples",
            _chainer_like("chainer", "MultithreadIterator"),
            main=False,
        ),
        Candidate(
            "grain.mp",
            "MapDataset, batches by mp_prefetch's workers",
            _grain(processes=True),
            main=False,
        ),
        Candidate(
            "grain.thread", "MapDataset, batches by threads", _grain(processes=False), main=False
        ),
        Candidate("spdl.thread", "Pipeline, threads, a batch per call", _spdl_thread, main=False),
        Candidate(
            "numpy.loop", "plain loop, no loader, numpy.stack", _numpy_loop, prefetches=False
        ),
    )
}

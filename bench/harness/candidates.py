"""The candidates that load a workload: fastiter, its peers, and a plain loop without any loader.

A candidate is a context manager that takes ``(workload, dataset)`` and gives an endless iterator
over batches, each a tuple or dict of NumPy arrays, in sequential order, with `N_PREFETCH` batches
of depth. Libraries are imported when a candidate is opened, since each runs in a process of its
own, under an interpreter that need have no other.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
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
    imports: str = ""  # a module beside its family's, so that its memory is not the loader's

    @property
    def family(self) -> str:
        """The library; ``--peers`` and ``--python`` go by it."""
        return self.name.partition(".")[0]


def concat(examples: Sequence[Any], padding: tuple[int | None, ...] | None = None) -> Any:
    """A batch by plain NumPy, as one writes it by hand."""
    first = examples[0]
    if isinstance(first, dict):
        return {key: concat([example[key] for example in examples]) for key in first}
    if isinstance(first, tuple):
        columns = zip(*examples, strict=True)
        fills = padding if padding is not None else itertools.repeat(None)
        return tuple(
            concat(values) if fill is None else _padded(values, fill)
            for values, fill in zip(columns, fills)  # noqa: B905 (one may be endless)
        )
    if isinstance(first, str):
        return list(examples)
    if isinstance(first, (int, float)):
        return np.array(examples)
    return np.stack(examples)


def _padded(values: Sequence[np.ndarray], fill: int) -> np.ndarray:
    padded = np.full((len(values), max(map(len, values))), fill, values[0].dtype)
    for row, value in enumerate(values):
        padded[row, : len(value)] = value
    return padded


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


def _concat_examples(workload: Workload) -> Callable[[list[Any]], Any]:
    """fastiter's, as a converter or collate function."""
    from fastiter.dataset import concat_examples

    if workload.padding is None:
        return concat_examples
    return functools.partial(concat_examples, padding=workload.padding)


def _converting(iterator: str) -> Open:
    """An iterator of fastiter that is given ``concat_examples`` as its converter."""

    @contextmanager
    def open_(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
        converter = _concat_examples(workload)
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


def _collate(workload: Workload, kind: str) -> Any:
    """A loader's ``collate_fn``: `kind` is one of ``torch``, ``fastiter`` and ``numpy``."""
    if kind == "numpy":
        return functools.partial(concat, padding=workload.padding)
    if workload.padding is None:
        return None
    return _concat_examples(workload) if kind == "fastiter" else _torch_collate(workload.padding)


@contextmanager
def torch_batches(
    workload: Workload,
    dataset: Any,
    loader: str = "torch.utils.data.DataLoader",
    *,
    collate: str = "torch",
    workers: bool = True,
    **options: Any,
) -> Iterator[Iterator[Any]]:
    """Endless batches of a loader with torch's arguments and `options`, as it gives them."""
    import torch

    torch.set_num_threads(1)
    if workers:
        # A worker builds whole batches alone, so its depth counts per worker: at least one batch
        # each.
        options |= {
            "num_workers": workload.n_workers,
            "prefetch_factor": max(1, N_PREFETCH // workload.n_workers),
            "persistent_workers": True,
            "multiprocessing_context": "fork",
        }
    module, _, name = loader.rpartition(".")
    epochs = getattr(importlib.import_module(module), name)(
        dataset,
        workload.batch_size,
        shuffle=False,
        collate_fn=_collate(workload, collate),
        **options,
    )
    with closing(batch for _ in itertools.count() for batch in epochs) as batches:
        yield batches


@contextmanager
def as_torch_batches(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    """`MultiprocessIterator` with ``concat_examples``, its batches as tensors."""
    from fastiter.interop import as_torch

    with _converting("MultiprocessIterator")(workload, dataset) as batches:
        yield as_torch(batches)


def _as_numpy(batch: Any) -> Any:
    """A batch with views of its tensors."""
    if isinstance(batch, dict):
        return {key: _as_numpy(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return [_as_numpy(value) for value in batch]
    return batch.numpy() if hasattr(batch, "numpy") else batch


def _torch(
    loader: str = "torch.utils.data.DataLoader", strategy: str | None = None, **options: Any
) -> Open:
    """`torch_batches`, as NumPy's views."""

    @contextmanager
    def open_(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
        if strategy is not None:
            import torch

            torch.multiprocessing.set_sharing_strategy(strategy)
        with torch_batches(workload, dataset, loader, **options) as batches:
            yield map(_as_numpy, batches)

    return open_


@contextmanager
def _as_torch(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    with as_torch_batches(workload, dataset) as batches:
        yield map(_as_numpy, batches)


@contextmanager
def _dataloader_rs(workload: Workload, dataset: Any) -> Iterator[Iterator[Any]]:
    from dataloader_rs import PyDataloader, PyDataset

    class Rows(PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(dataset)

        def __getitem__(self, i: int) -> Any:
            return dataset[i]

    loader = PyDataloader(
        Rows(),
        workload.batch_size,
        # As many as are made ahead beyond one in the hands of each thread.
        prefetch_depth=max(1, N_PREFETCH - workload.n_workers),
        num_workers=workload.n_workers,
        collate_fn=_collate(workload, "numpy"),
    )
    with closing(batch for _ in itertools.count() for batch in loader) as batches:
        yield batches


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
        Candidate(
            "fastiter.mp-torch-loader",
            "fastiter.torch.DataLoader, workers, tensors",
            _torch("fastiter.torch.DataLoader", collate="fastiter"),
            imports="fastiter.torch",
        ),
        Candidate(
            "fastiter.mp-torch-seeded",
            "fastiter.torch.DataLoader(seed_examples=True)",
            _torch("fastiter.torch.DataLoader", collate="fastiter", seed_examples=True),
            main=False,
            imports="fastiter.torch",
        ),
        Candidate(
            "fastiter.mp-as-torch",
            "as_torch(MultiprocessIterator(converter=concat_examples))",
            _as_torch,
            imports="torch.utils.data",
            main=False,
        ),
        Candidate("torch.mp", "DataLoader, workers, tensors", _torch()),
        Candidate(
            "torch.mp-files",
            "DataLoader, workers, tensors shared by file name",
            _torch(strategy="file_system"),
            main=False,
        ),
        Candidate(
            "torch.mp-numpy",
            "DataLoader, workers, collated to NumPy arrays",
            _torch(collate="numpy"),
        ),
        Candidate(
            "torch.serial",
            "DataLoader without workers",
            _torch(workers=False),
            main=False,
            prefetches=False,
        ),
        Candidate(
            "torchdata.mp",
            "StatefulDataLoader, workers, tensors",
            _torch("torchdata.stateful_dataloader.StatefulDataLoader"),
            main=False,
        ),
        Candidate(
            "dataloader_rs.thread",
            "PyDataloader, threads, collated to NumPy arrays",
            _dataloader_rs,
            main=False,
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

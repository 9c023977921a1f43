"""Token lists in a mapped Arrow file, shuffled and padded, beside torch's loader over `datasets`.

A call takes the next batch of 64 rows of ``list<int32>``, of 8 to 512 tokens, with their numbers.
The rows lie in chunks of 1,000, as `datasets` writes them. Two workers, where a candidate has some.
torch's ways: the formats "torch" and "numpy", whose examples are padded one by one, and "arrow",
whose batch is padded as a whole, by a mask over its buffers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, WrongResult

NAME = "arrow"
TITLE = "64 shuffled rows of list<int32>[8..512] of an Arrow file, padded"

BATCH_SIZE = 64


def _lengths(n_rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(8, 513, n_rows)


def _file(n_rows: int) -> Path:
    """The file, made once on this machine: row i holds i, i + 1, ..."""
    import pyarrow as pa

    path = Path(tempfile.gettempdir(), f"fastiter-bench-{n_rows}.arrow")
    if path.exists():
        return path
    lengths = _lengths(n_rows)
    ends = np.cumsum(lengths)
    tokens = np.arange(ends[-1]) - np.repeat(ends - lengths - np.arange(n_rows), lengths)
    lists = pa.ListArray.from_arrays(
        pa.array(np.append(0, ends), pa.int32()), pa.array(tokens, pa.int32())
    )
    table = pa.table({"ids": lists, "number": np.arange(n_rows)})
    new = path.with_suffix(f".{os.getpid()}")  # candidates may make it at the same time
    with pa.OSFile(str(new), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    new.replace(path)
    return path


def _fastiter(n_rows: int, iterator: str, **options: Any) -> Any:
    import fastiter
    from fastiter.datasets import ArrowDataset

    batches = getattr(fastiter, iterator)(
        ArrowDataset(_file(n_rows), padding=0),
        BATCH_SIZE,
        order_sampler=fastiter.ShuffleOrderSampler(0),
        converter=fastiter.concat_examples,
        **options,
    )
    return _closing(lambda _: next(batches), batches.finalize)


def _loader(n_rows: int) -> Any:
    from datasets import Dataset

    from fastiter.datasets import ArrowDataset
    from fastiter.torch import DataLoader

    source = Dataset.from_file(str(_file(n_rows)))
    return _endless(DataLoader, ArrowDataset(source, padding=0))


def _torch(n_rows: int, form: str) -> Any:
    from datasets import Dataset
    from torch.utils.data import DataLoader

    dataset = Dataset.from_file(str(_file(n_rows))).with_format(form)
    if form == "arrow":
        return _endless(DataLoader, _Tables(dataset), collate_fn=_pad_arrow)
    return _endless(DataLoader, dataset, collate_fn=_pad)


def _endless(loader: Any, dataset: Any, **options: Any) -> Any:
    batches: Any = loader(
        dataset, BATCH_SIZE, shuffle=True, num_workers=2, persistent_workers=True, **options
    )
    epochs = itertools.chain.from_iterable(itertools.repeat(batches))
    return lambda _: next(epochs)


class _Tables:
    """Gives the rows of a batch as one table, which `Dataset.__getitems__` cannot."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, indices: list[int]) -> Any:
        return self._dataset[indices]


@contextlib.contextmanager
def _closing(run: Callable[[Any], Any], close: Callable[[], Any]) -> Iterator[Any]:
    try:
        yield run
    finally:
        close()


def _pad(examples: list[Any]) -> dict[str, Any]:
    import torch

    rows = [torch.as_tensor(example["ids"]) for example in examples]
    numbers = torch.tensor([int(example["number"]) for example in examples])
    return {"ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), "number": numbers}


def _pad_arrow(table: Any) -> dict[str, Any]:
    import torch

    column = table["ids"].combine_chunks()
    starts = column.offsets.to_numpy()
    values, lengths = column.values.to_numpy(), np.diff(starts)
    ids = np.zeros((len(lengths), lengths.max()), np.int32)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = values[starts[0] : starts[-1]]
    number = torch.from_numpy(table["number"].to_numpy())
    return {"ids": torch.from_numpy(ids), "number": number}


def _check(n_rows: int, result: Any, source: Any) -> None:
    ids, numbers = np.asarray(result["ids"]), np.asarray(result["number"])
    lengths = _lengths(n_rows)[numbers]
    places = np.arange(lengths.max())
    due = np.where(places < lengths[:, None], places + numbers[:, None], 0)
    if len(set(numbers.tolist())) != len(numbers) or not np.array_equal(ids, due):
        raise WrongResult("the rows are not those of the numbers beside them")


def _case(n_rows: int) -> Case:
    bind = functools.partial
    return Case(
        name=f"{n_rows:,} rows",
        sources=lambda: [None],
        candidates={
            "fastiter": bind(_fastiter, n_rows, "SerialIterator"),
            "fastiter.thread": bind(_fastiter, n_rows, "MultithreadIterator", n_threads=2),
            "fastiter.mp": bind(_fastiter, n_rows, "MultiprocessIterator", n_processes=2),
            "fastiter.torch": bind(_loader, n_rows),
            "torch": bind(_torch, n_rows, "torch"),
            "torch.numpy": bind(_torch, n_rows, "numpy"),
            "torch.arrow": bind(_torch, n_rows, "arrow"),
        },
        check=bind(_check, n_rows),
        items=BATCH_SIZE,
        item="example",
        nbytes=BATCH_SIZE * 4 * 260,
        goals=[Goal("torch.numpy", 20), Goal("torch.arrow", 10)],
    )


def cases(quick: bool) -> Iterator[Case]:
    yield _case(20_000 if quick else 200_000)

"""Token lists in a mapped Arrow file, shuffled and padded, beside torch's loader over `datasets`.

A call takes the next batch of 64 rows of ``list<int32>``, of 8 to 512 tokens, with their numbers.
The rows lie in chunks of 1,000, as `datasets` writes them. Two workers, where a candidate has some.
torch's ways: the formats "torch" and "numpy", whose examples are padded one by one, and "arrow",
whose batch is padded as a whole, by a mask over its buffers. The limit is one process that only
copies and fills.

Rows of one size, 64 float32 and an int64, of a table of 100 chunks: 256 shuffled ones, beside
`numpy.take` of arrays of the same bytes, and beside our own gather from these arrays.
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

from bench.harness.micro import Case, Goal, Measured, Prepared, WrongResult, limits

NAME = "arrow"
TITLE = "rows of Arrow data: lists of an Arrow file, padded; rows of one size"

BATCH_SIZE = 64
FIXED, FIXED_BATCH, WIDTH, CHUNKS = 100_000, 256, 64, 100


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
            "limit": bind(_copying, n_rows),
        },
        check=bind(_check, n_rows),
        items=BATCH_SIZE,
        item="example",
        nbytes=BATCH_SIZE * 4 * 260,
        goals=[
            Goal("torch.numpy", 20),
            Goal("torch.arrow", 10),
            Goal("limit", 0.6),
        ],
    )


def _copying(n_rows: int) -> Prepared:
    """memcpy of the lists of the mapped file, and memset behind each."""
    library = limits()

    def prepare(_: Any) -> Any:
        import pyarrow as pa

        table = pa.ipc.open_stream(pa.memory_map(str(_file(n_rows)))).read_all()
        begins = []
        for chunk in table["ids"].chunks:
            offsets = chunk.offsets.to_numpy()[:-1].astype(np.uintp)
            begins.append(chunk.values.buffers()[1].address + 4 * offsets)
        starts, lengths = np.concatenate(begins), 4 * _lengths(n_rows).astype(np.uintp)
        order = np.random.default_rng(1).permutation(n_rows)
        batches = [order[k : k + BATCH_SIZE] for k in range(0, n_rows - BATCH_SIZE, BATCH_SIZE)]
        parts = [
            (starts[rows], lengths[rows], lengths[rows].max() - lengths[rows]) for rows in batches
        ]
        return np.empty(BATCH_SIZE * 512, np.int32), table, itertools.cycle(parts)

    def run(prepared: Any) -> Measured:
        out, _, parts = prepared
        sources, copied, filled = (part.ctypes.data for part in next(parts))
        return Measured(
            library.limit_segments(out.ctypes.data, BATCH_SIZE, sources, copied, filled, 0)
        )

    return Prepared(prepare, run)


# ---- rows of one size


@functools.cache
def _arrays() -> dict[str, np.ndarray]:
    values = np.random.default_rng(0).random((FIXED, WIDTH), np.float32)
    return {"values": values, "number": np.arange(FIXED)}


def _gathered(iterator: str, is_arrow: bool, **options: Any) -> Any:
    import fastiter
    from fastiter.datasets import ArrowDataset, DictDataset

    dataset: Any = DictDataset(**_arrays())
    if is_arrow:
        import pyarrow as pa

        values, size = _arrays()["values"], FIXED // CHUNKS
        parts = [values[k : k + size].ravel() for k in range(0, FIXED, size)]
        columns = {
            "values": [pa.FixedSizeListArray.from_arrays(pa.array(p), WIDTH) for p in parts],
            "number": [pa.array(np.arange(k, k + size)) for k in range(0, FIXED, size)],
        }
        dataset = ArrowDataset(pa.table({n: pa.chunked_array(c) for n, c in columns.items()}))
    batches = getattr(fastiter, iterator)(
        dataset,
        FIXED_BATCH,
        order_sampler=fastiter.ShuffleOrderSampler(0),
        converter=fastiter.concat_examples,
        **options,
    )
    return _closing(lambda _: next(batches), batches.finalize)


def _taking() -> Callable[[Any], Any]:
    order = np.random.default_rng(1).permutation(FIXED)
    starts = itertools.cycle(range(0, FIXED - FIXED_BATCH, FIXED_BATCH))

    def run(_: Any) -> Any:
        start = next(starts)
        rows = order[start : start + FIXED_BATCH]
        return {name: array.take(rows, axis=0) for name, array in _arrays().items()}

    return run


def _check_fixed(result: Any, source: Any) -> None:
    numbers = result["number"]
    if len(set(numbers.tolist())) != FIXED_BATCH:
        raise WrongResult(f"the batch has the rows {numbers}")
    if not np.array_equal(result["values"], _arrays()["values"][numbers]):
        raise WrongResult("the rows are not those of the numbers beside them")


def _fixed_case() -> Case:
    bind = functools.partial
    return Case(
        name=f"{FIXED_BATCH} rows of {WIDTH} float32 and an int64",
        sources=lambda: [None],
        candidates={
            "fastiter": bind(_gathered, "SerialIterator", True),
            "fastiter.mp": bind(_gathered, "MultiprocessIterator", True, n_processes=2),
            "fastiter.arrays": bind(_gathered, "SerialIterator", False),
            "numpy.take": _taking,
        },
        check=_check_fixed,
        items=FIXED_BATCH,
        item="example",
        nbytes=FIXED_BATCH * (4 * WIDTH + 8),
        goals=[
            Goal("numpy.take", 0.95),
            Goal("numpy.take", 0.9, ours="fastiter.mp"),
            Goal("fastiter.arrays", 0.97),
        ],
    )


def cases(quick: bool) -> Iterator[Case]:
    yield _case(20_000 if quick else 200_000)
    if not quick:
        yield _fixed_case()

"""Rows of language models: windows of a file of tokens, and documents packed into rows.

Windows of 1,024 of a file of uint16, a batch of 12 with labels: beside the way of nanoGPT, and the
limit, a loop that widens as many tokens twice. Packing to 2,048 tokens, of 2,000 documents of three
distributions of lengths in a shuffled order, each row made: beside Grain's best fit and TRL's "bfd"
of 1,000 documents each. A call is a batch, or all documents.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, Measured, Prepared, WrongResult, limits

NAME = "tokens"
TITLE = "rows of language models: windows of 1,024, documents packed to 2,048"

ROWS, WINDOW = 12, 1024
N_TOKENS = 10_000_000
N_DOCUMENTS, LENGTH, AT_ONCE = 2_000, 2048, 1_000


# ---- windows


def _file() -> Path:
    path = Path(tempfile.gettempdir(), f"fastiter-bench-{N_TOKENS}.bin")
    if not path.exists():
        new = path.with_suffix(".new")
        (np.arange(N_TOKENS) % 50_257).astype(np.uint16).tofile(new)
        new.replace(path)
    return path


def _windows() -> Callable[[Any], Any]:
    import fastiter
    from fastiter.tokens import TokenDataset

    batches = fastiter.SerialIterator(
        TokenDataset(_file(), WINDOW, stride=1),
        ROWS,
        order_sampler=fastiter.VirtualShuffleOrderSampler(0),
        converter=fastiter.concat_examples,
    )
    return lambda _: next(batches)


def _as_nanogpt() -> Callable[[Any], Any]:
    """A batch as nanoGPT makes it: the file mapped anew, a slice and a tensor for each row."""
    import torch

    torch.set_num_threads(1)

    def batch(_: Any) -> Any:
        tokens = np.memmap(_file(), dtype=np.uint16, mode="r")
        starts = torch.randint(len(tokens) - WINDOW, (ROWS,)).tolist()

        def rows(shift: int) -> Any:
            parts = [tokens[start + shift :][:WINDOW] for start in starts]
            return torch.stack([torch.from_numpy(part.astype(np.int64)) for part in parts])

        return {"input_ids": rows(0), "labels": rows(1)}

    return batch


def _widening() -> Prepared:
    library = limits()

    def prepare(_: Any) -> Any:
        tokens = np.fromfile(_file(), np.uint16)
        out = np.empty((2, ROWS, WINDOW), np.int64)
        starts = np.random.default_rng(0).integers(0, N_TOKENS - WINDOW - 1, (10_000, ROWS))
        at = tokens.ctypes.data + 2 * np.concatenate([starts, starts + 1], axis=1).astype(np.uintp)
        return out, tokens, itertools.cycle(np.ascontiguousarray(at))

    def run(prepared: Any) -> Measured:
        out, _, at = prepared
        addresses = next(at)
        return Measured(
            library.limit_widen(out.ctypes.data, addresses.ctypes.data, 2 * ROWS, WINDOW)
        )

    return Prepared(prepare, run)


def _check_windows(result: Any, source: Any) -> None:
    tokens, labels = np.asarray(result["input_ids"]), np.asarray(result["labels"])
    due = (tokens[:, :1] + np.arange(WINDOW + 1)) % 50_257
    if not (np.array_equal(tokens, due[:, :-1]) and np.array_equal(labels, due[:, 1:])):
        raise WrongResult("the windows are not pieces of the file")


# ---- packing


def _documents(kind: str) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    lengths = {
        "uniform": lambda: random.integers(1, LENGTH + 1, N_DOCUMENTS),
        "log-normal": lambda: random.lognormal(5.5, 1, N_DOCUMENTS),
        "Zipf": lambda: random.zipf(1.5, N_DOCUMENTS),
    }[kind]()
    return [np.ones(n, np.int32) for n in np.clip(lengths, 1, LENGTH).astype(int)]


def _packed() -> Prepared:
    import fastiter
    from fastiter.tokens import TokenDataset

    def prepare(documents: list[np.ndarray]) -> Any:
        dataset = TokenDataset(
            documents,
            LENGTH,
            packing="bfd",
            seed=0,
            fields=("input_ids", "position_ids", "n_tokens"),
        )
        return fastiter.SerialIterator(
            dataset, 16, repeat=False, converter=fastiter.concat_examples
        )

    def run(batches: Any) -> list[int]:
        return [int(batch["n_tokens"].sum()) for batch in batches]

    return Prepared(prepare, run)


def _grain(n_bins: int) -> Prepared:
    import grain

    def prepare(documents: list[np.ndarray]) -> Any:
        examples = [{"input_ids": document} for document in documents]
        source = grain.MapDataset.source(examples).shuffle(seed=0).to_iter_dataset()
        return grain.experimental.BestFitPackIterDataset(
            source, length_struct={"input_ids": LENGTH}, num_packing_bins=n_bins
        )

    return Prepared(prepare, lambda rows: [np.count_nonzero(row["input_ids"]) for row in rows])


def _trl() -> Prepared:
    import pyarrow as pa
    from trl.data_utils import _pack_bfd

    def prepare(documents: list[np.ndarray]) -> Any:
        order = np.random.default_rng(0).permutation(len(documents))
        return pa.table({"input_ids": [documents[i] for i in order]})

    def run(table: Any) -> list[int]:
        parts = (table.slice(k, AT_ONCE) for k in range(0, len(table), AT_ONCE))
        packed = [_pack_bfd(part, LENGTH)["input_ids"].combine_chunks() for part in parts]
        return [len(rows.flatten()) for rows in packed]

    return Prepared(prepare, run)


def _check_packed(result: Any, documents: list[np.ndarray]) -> None:
    if sum(result) != sum(map(len, documents)):
        raise WrongResult(f"{sum(result)} tokens came, {sum(map(len, documents))} were due")


def cases(quick: bool) -> Iterator[Case]:
    yield Case(
        name=f"windows of {WINDOW:,}",
        sources=lambda: [None],
        candidates={"fastiter": _windows, "torch.as_nanogpt": _as_nanogpt, "limit": _widening},
        check=_check_windows,
        items=ROWS,
        item="row",
        nbytes=2 * ROWS * WINDOW * 8,
        goals=[Goal("torch.as_nanogpt", 10), Goal("limit", 0.5)],
    )
    bind = functools.partial
    for kind in ("log-normal",) if quick else ("uniform", "log-normal", "Zipf"):
        yield Case(
            name=f"packing, {kind}",
            sources=bind(lambda kind: [_documents(kind)], kind),
            candidates={
                "fastiter": _packed,
                "grain": bind(_grain, 64),
                "trl": _trl,
            },
            check=_check_packed,
            items=N_DOCUMENTS,
            item="document",
            goals=[Goal("grain", 20), Goal("trl", 20)],
        )

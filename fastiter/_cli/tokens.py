"""``python -m fastiter tokens``: documents, their lengths, and how well they pack."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fastiter._cli.options import output_file, positive
from fastiter._fetch.token_rows import RowPlanner, TokenSource
from fastiter.tokens._sources import open_source, paths_of

_WINDOW = 100_000  # as TokenDataset's
_WRONG = (ImportError, LookupError, OSError, TypeError, ValueError)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", help=".bin, Arrow or Parquet file, pattern, or Megatron prefix"
    )
    parser.add_argument(
        "--length",
        type=positive,
        action="append",
        metavar="N",
        help="tokens of a row; may be given several times (default: 1024, 2048 and 4096)",
    )
    parser.add_argument("--dtype", help="of a .bin file (default: uint16)")
    parser.add_argument("--documents", metavar="NPY", help="where documents of a .bin file begin")
    parser.add_argument(
        "--column", default="input_ids", help="of Arrow or Parquet files (default: input_ids)"
    )
    parser.add_argument("--png", metavar="FILE", type=output_file, help="draw the lengths")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace) -> int:
    """Print what was found."""
    try:
        if options.png is not None:
            importlib.import_module("matplotlib")  # before the work
        source = _source(options.path, options.column)
        opened = open_source(source, options.documents, options.dtype, options.column, ())
        found = examined(opened.source(), options.length or [1024, 2048, 4096])
    except _WRONG as error:
        print(f"fastiter tokens: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found) if options.json else as_table(found))
    if options.png is not None:
        draw(found["histogram"], options.png)
    return 0


def _source(path: str, column: str) -> Any:
    """The files of a path; of Parquet files, which cannot be mapped, the column in memory."""
    paths = paths_of(path)
    if paths is None or not all(file.endswith((".parquet", ".pq")) for file in paths):
        return paths
    import pyarrow as pa
    import pyarrow.parquet as pq

    for schema in map(pq.read_schema, paths):
        if column not in schema.names:
            return schema.empty_table()  # the error names its columns
    return pa.concat_tables([pq.read_table(file, columns=[column]) for file in paths])


def examined(source: TokenSource, lengths: list[int]) -> dict[str, Any]:
    """Counts, a histogram by powers of 2, and for each length of rows which share of their places
    has tokens: of documents padded one by one, and of each packing."""
    n = source.n_documents
    counts = np.zeros(65, np.int64)  # of documents of 0 tokens, 1, 2 to 3, 4 to 7, ...
    tokens, padded = 0, dict.fromkeys(lengths, 0)
    for start in range(0, n, _WINDOW):
        found = source.lengths(np.arange(start, min(n, start + _WINDOW)))
        counts += np.bincount(np.frexp(found)[1], minlength=65)
        tokens += int(found.sum())
        for length in lengths:
            padded[length] += int((-(-found // length)).sum())

    def shares(length: int) -> dict[str, float]:
        rows = {"padded": padded[length]}
        for packing in ("concat", "bfd"):
            rows[packing] = RowPlanner(source, packing, length, window=_WINDOW).n_rows()
        return {name: tokens / (k * length) if k else 0.0 for name, k in rows.items()}

    last = int(np.flatnonzero(counts).max(initial=0))
    return {
        "documents": n,
        "tokens": tokens,
        "histogram": [
            {"from": 2**k // 2, "to": max(0, 2**k - 1), "documents": int(counts[k])}
            for k in range(last + 1)
        ],
        "lengths": [{"length": length, **shares(length)} for length in lengths],
    }


def as_table(found: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{found['documents']:,} documents, {found['tokens']:,} tokens", ""]
    lines.append(f"{'tokens':>17} {'documents':>12}")
    for bar in found["histogram"]:
        span = f"{bar['from']:,} .. {bar['to']:,}" if bar["to"] > 1 else str(bar["to"])
        lines.append(f"{span:>17} {bar['documents']:>12,}")
    names = ("padded", "concat", "bfd")
    lines += ["", "Share of tokens in rows:", f"{'length':>8}" + "".join(f"{n:>11}" for n in names)]
    for row in found["lengths"]:
        lines.append(f"{row['length']:>8}" + "".join(f"{100 * row[n]:>9.2f} %" for n in names))
    return "\n".join(lines)


def draw(histogram: list[dict[str, int]], path: Path) -> None:
    """A bar chart of the lengths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.bar([str(bar["from"]) for bar in histogram], [bar["documents"] for bar in histogram])
    axes.set(xlabel="tokens of a document, at least", ylabel="documents")
    figure.savefig(path)

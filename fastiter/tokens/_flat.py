"""Batches without padding, and the starts of documents in a file of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._util.arguments import checked_int
from fastiter.tokens._sources import open_bin, paths_of

_STEP = 1 << 24  # tokens at a time


def flat_batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Put rows of tokens behind each other, without their padding: a converter.

    Parameters
    ----------
    rows : list of dict
        Rows of a `TokenDataset` whose fields include ``segment_ids``.

    Returns
    -------
    dict
        Each field of arrays, (N,), for N tokens in all; ``cu_seqlens``, int32 (k + 1,), the starts
        of the k segments, and N; ``max_seqlen``, int, the length of the longest segment: the
        arguments of attention over sequences of varying lengths.
    """
    if not rows or "segment_ids" not in rows[0]:
        raise ValueError(
            "flat_batch needs rows with segment_ids: name it in fields= of the TokenDataset"
        )
    kept = [row["segment_ids"] > 0 for row in rows]
    batch: dict[str, Any] = {
        name: np.concatenate([row[name][keep] for row, keep in zip(rows, kept, strict=True)])
        for name, value in rows[0].items()
        if np.ndim(value) == 1 and name != "cu_seqlens"
    }
    starts, place = [], 0
    for row, keep in zip(rows, kept, strict=True):
        numbers = row["segment_ids"][keep]
        starts.append(place + np.flatnonzero(np.diff(numbers, prepend=0)))
        place += len(numbers)
    batch["cu_seqlens"] = np.concatenate([*starts, [place]]).astype(np.int32)
    batch["max_seqlen"] = int(np.diff(batch["cu_seqlens"]).max(initial=0))
    return batch


def document_offsets(path: Any, eod_token_id: int, dtype: Any = None) -> npt.NDArray[np.int64]:
    """Find where documents begin in a ``.bin`` file of tokens, in one pass over it.

    Parameters
    ----------
    path : path
        A file of tokens, also with the header of llm.c.
    eod_token_id : int
        The token that ends each document, which belongs to it.
    dtype : dtype, optional
        Data type of the file. Default: the type in its header, or uint16.

    Returns
    -------
    int64[n + 1]
        The start of each document, and the number of tokens; for ``documents=`` of `TokenDataset`.
        Tokens behind the last end are a document, too.
    """
    files = paths_of(path) or []
    if len(files) != 1 or files[0].endswith(".idx"):
        raise ValueError(f"path must name one .bin file, not {path!r:.200}")
    tokens = open_bin(files[0], dtype)
    room = np.iinfo(tokens.dtype)
    if not room.min <= checked_int("eod_token_id", eod_token_id, minimum=-(1 << 63)) <= room.max:
        raise ValueError(f"eod_token_id={eod_token_id} is no token of dtype={tokens.dtype}")
    ends = [
        start + 1 + np.flatnonzero(tokens[start : start + _STEP] == eod_token_id)
        for start in range(0, len(tokens), _STEP)
    ]
    offsets = np.concatenate([np.zeros(1, np.int64), *ends])
    return offsets if offsets[-1] == len(tokens) else np.append(offsets, len(tokens))

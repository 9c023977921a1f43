"""A collate function for rows of tokens, with the results of transformers' collators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fastiter._util.arguments import checked_choice, checked_int, checked_optional_int

_LABELS = ("label", "label_ids", "labels")  # which models of transformers take as labels


class PaddingCollator:
    """Collate function that pads rows of tokens, as the collators of transformers do.

    For ``data_collator=`` of its Trainer, and ``collate_fn=`` of a loader of any class. Rows are
    dicts of arrays, lists and numbers, like those of `TokenDataset` and `ArrowDataset`. Each field
    becomes a tensor: lists and arrays (B, longest), numbers (B,). Integers become int64,
    Python's floats float32; ``label`` and ``label_ids`` become ``labels``. ``attention_mask`` (1;
    padding 0) is added unless rows have it, or have ``position_ids``, by which models tell the
    documents of a packed row apart.

    Parameters
    ----------
    pad_token_id : int
        Padding value of ``input_ids``. Other fields are padded with 0.
    label_pad_token_id : int
        Padding value of ``labels``.
    padding_side : {"right", "left"}
        Side of the padding.
    pad_to_multiple_of : int, optional
        Number of which the padded length is a multiple, for fields as long as ``input_ids``, and
        for labels of varying length.

    Examples
    --------
    >>> collate = PaddingCollator()
    >>> batch = collate([{"input_ids": [5, 6, 7], "label": 1}, {"input_ids": [8], "label": 0}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["labels"].tolist()
    ([[5, 6, 7], [8, 0, 0]], [[1, 1, 1], [1, 0, 0]], [1, 0])
    """

    def __init__(
        self,
        pad_token_id: int = 0,
        label_pad_token_id: int = -100,
        *,
        padding_side: str = "right",
        pad_to_multiple_of: int | None = None,
    ) -> None:
        self._fills = {
            "input_ids": checked_int("pad_token_id", pad_token_id, minimum=0),
            "labels": checked_int("label_pad_token_id", label_pad_token_id, minimum=-(1 << 62)),
        }
        checked_choice("padding_side", padding_side, ("right", "left"))
        self._is_left = padding_side == "left"
        self._multiple = checked_optional_int("pad_to_multiple_of", pad_to_multiple_of) or 1

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Join rows; ValueError if these are no dicts of the same fields."""
        if not examples or not isinstance(examples[0], dict):
            kind = type(examples[0]).__name__ if examples else "nothing"
            raise ValueError(f"PaddingCollator joins rows that are dicts, not {kind}")
        fields = {name: [_array(row, name) for row in examples] for name in examples[0]}
        lengths = [value.size for value in fields.get("input_ids", ())]
        if lengths and not {"attention_mask", "position_ids"} & fields.keys():
            fields["attention_mask"] = [np.ones(length, np.int64) for length in lengths]
        batch = {}
        for name, values in fields.items():
            name = "labels" if name in _LABELS else name
            if all(value.ndim == 1 for value in values):
                found = [value.size for value in values]
                is_longer = found == lengths or (name == "labels" and len({*found}) > 1)
                joined = self._padded(name, values, self._multiple if is_longer else 1)
            else:
                joined = np.stack(values).astype(_dtype(values), copy=False)
            batch[name] = torch.from_numpy(joined)
        return batch

    def _padded(self, name: str, values: list[Any], multiple: int) -> Any:
        longest = -(-max(value.size for value in values) // multiple) * multiple
        joined = np.full((len(values), longest), self._fills.get(name, 0), _dtype(values))
        for row, value in zip(joined, values, strict=True):
            first = longest - value.size if self._is_left else 0
            row[first : first + value.size] = value
        return joined


def _dtype(values: list[Any]) -> Any:
    """As torch promotes: integers change no dtype of floats. Nor do rows without numbers."""
    found = [value.dtype for value in values if value.size] or [np.dtype(np.int64)]
    return np.result_type(*([dtype for dtype in found if dtype.kind == "f"] or found))


def _array(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"a row lacks the field {name!r} of the first row: it has {list(row)}")
    value = np.asarray(row[name])
    if value.dtype.kind in "iu" or (value.dtype.kind == "b" and name == "label"):
        return value.astype(np.int64)
    keeps = isinstance(row[name], (np.ndarray, np.generic, torch.Tensor))
    if value.dtype.kind == "f" and not (keeps and (value.ndim or name not in _LABELS)):
        return value.astype(np.float32)  # torch's default, which losses take, too
    if value.dtype.kind not in "bf":
        raise ValueError(
            f"field {name!r} holds {row[name]!r:.60}, no numbers: leave it out of the rows"
        )
    return value

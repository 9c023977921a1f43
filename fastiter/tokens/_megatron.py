"""The samples of Megatron's GPT datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._fetch.dataset_access import Columns, SourceColumn, plain_columns
from fastiter._fetch.token_column import MOST_TOKENS, TokenColumn
from fastiter._fetch.token_rows import RowPlanner, TokenSource
from fastiter._util.arguments import checked_flag, checked_int, checked_names, checked_optional_int
from fastiter.dataset.mixin import row_at
from fastiter.datasets._batched import BatchedDataset
from fastiter.tokens._sources import checked_integers, files_of, open_source, paths_of

_FIELDS = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask")
_THRESHOLD = 0.8  # of an epoch's samples, below which the last epoch is shuffled for itself


class MegatronDataset(BatchedDataset):
    """The samples that megatron-core's ``GPTDataset`` gives, in its order.

    Row i is what ``GPTDataset[i]`` is in megatron-core 0.16.1, of the same seed: int64 (L,), and
    ``loss_mask`` float32 (L,); on request ``attention_mask``, bool (1, L, L), True where attention
    is masked. Without flags about EOD, and without ``attention_mask``, iterators gather rows in C.
    Rows are shuffled already: use ``shuffle=False``.

    Parameters
    ----------
    prefix : path
        Path of the ``.bin`` and ``.idx`` files without these endings.
    length : int
        Tokens of a sample.
    seed : int
        Megatron's ``random_seed``.
    num_samples : int, optional
        Samples to draw, over as many epochs as that takes. None: those of one epoch.
    sequences : array of int, optional
        Numbers of the sequences to use, such as those of a split. None: all.
    index : three arrays or paths of .npy, optional
        Document, sample and shuffle index, as Megatron stores them. None: drawn as in Megatron.
    eod_token_id : int, optional
        Token that ends a document (EOD), to which the following flags refer.
    reset_position_ids, reset_attention_mask, eod_mask_loss : bool
        Whether positions start anew behind EOD, attention ends there, and EOD has no loss.
    pad_token_id : int
        The token that stands for padding; its places have 0, and no loss.
    drop_last : bool
        Whether to leave out the last, partial sample, as Megatron does except for validation.
    fields : sequence of str
        Names of the fields of a row.

    Raises
    ------
    TypeError, ValueError, OSError
        If an argument or a file is wrong.
    """

    def __init__(
        self,
        prefix: Any,
        length: int,
        *,
        seed: int = 1234,
        num_samples: int | None = None,
        sequences: Any = None,
        index: Any = None,
        eod_token_id: int | None = None,
        reset_position_ids: bool = False,
        reset_attention_mask: bool = False,
        eod_mask_loss: bool = False,
        pad_token_id: int = -1,
        drop_last: bool = True,
        fields: Sequence[str] = ("tokens", "labels", "loss_mask", "position_ids"),
    ) -> None:
        paths = paths_of(prefix)
        if paths is None or not paths[0].endswith(".idx"):
            raise ValueError(f"prefix must name .bin and .idx files of Megatron's, not {prefix!r}")
        self._paths = paths
        self._length = checked_int("length", length, maximum=MOST_TOKENS)
        self._seed = checked_int("seed", seed, minimum=0)
        self._num_samples = checked_optional_int("num_samples", num_samples)
        self._sequences = None if sequences is None else checked_integers("sequences", sequences)
        self._index = index
        self._eod = checked_optional_int("eod_token_id", eod_token_id, minimum=0)
        self._flags = (
            checked_flag("reset_position_ids", reset_position_ids),
            checked_flag("reset_attention_mask", reset_attention_mask),
            checked_flag("eod_mask_loss", eod_mask_loss),
        )
        if any(self._flags) and eod_token_id is None:
            raise ValueError(
                "reset_position_ids, reset_attention_mask and eod_mask_loss need eod_token_id="
            )
        self._pad = checked_int("pad_token_id", pad_token_id, minimum=-(1 << 63))
        self._drop_last = checked_flag("drop_last", drop_last)
        self._fields = checked_names("fields", fields, _FIELDS)
        if not self._fields:
            raise ValueError("fields must name at least one field")
        # Fields that differ from those of the stream are made of the tokens, row by row.
        self._is_plain = not any(self._flags) and self._pad < 0
        self._is_plain &= "attention_mask" not in self._fields
        self._files = files_of(paths)
        self._open()

    def _open(self) -> None:
        source = open_source(self._paths, None, None, "", ()).source()
        if self._index is None:
            numbers, shuffle = self._drawn(source)
        else:
            numbers, samples, shuffle = self._indexed(source)
            _check_samples(samples, numbers, source, self._length)
        planner = self._planner = RowPlanner(
            source, "concat", self._length, borders=False, order=numbers.astype(np.int64)
        )
        self._shuffle = shuffle.astype(np.int64)
        n_rows = planner.n_rows()
        if self._shuffle.max(initial=-1) >= n_rows or self._shuffle.min(initial=0) < 0:
            raise ValueError(
                f"the shuffle index goes from {shuffle.min()} to {shuffle.max()}, and there are "
                f"{n_rows} samples of length={self._length}"
            )
        form: dict[str, Any] = {"shifts": True, "left": False, "pad": 0, "ignored": 0}
        form["width"] = self._length
        positions = np.arange(self._length, dtype=np.int64)
        made: dict[str, Any] = {
            "tokens": TokenColumn(planner, "input_ids", **form),
            "labels": TokenColumn(planner, "labels", **form),
            "loss_mask": TokenColumn(planner, "loss_mask", **form),
            "position_ids": np.broadcast_to(positions, (len(self._shuffle), self._length)),
        }
        names = self._fields if self._is_plain else ("tokens", "labels", "loss_mask")
        columns = tuple(SourceColumn(made[name], self._shuffle) for name in names)
        self._columns = Columns(dict, names, columns, False)
        self._plain = plain_columns(self._columns)

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_planner", "_shuffle", "_columns", "_plain")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files.check()
        self._open()

    def _drawn(self, source: TokenSource) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Document and shuffle index, as megatron-core draws them."""
        sequences = self._sequences
        if sequences is None:
            sequences = np.arange(source.n_documents)
        _check_within("sequences", sequences, source)
        per_epoch = int(source.lengths(sequences.astype(np.int64)).sum())
        wanted = self._num_samples
        if per_epoch < 1:
            raise ValueError(f"{self._paths[0]} has {per_epoch} tokens in the sequences")
        length = self._length
        epochs = 1 if wanted is None else max(1, -(-(wanted * length + 1) // per_epoch))
        n_tokens = epochs * per_epoch - 1
        n_samples = n_tokens // length if self._drop_last else -(-n_tokens // length)
        parts, n_first = [epochs], n_samples
        if epochs > 1 and wanted is not None:
            before = ((epochs - 1) * per_epoch - 1) // length
            if wanted - before < int(_THRESHOLD * ((per_epoch - 1) // length)):
                parts, n_first = [epochs - 1, 1], before
        random = np.random.RandomState(self._seed)
        numbers = [np.tile(sequences, count).astype(np.int32) for count in parts]
        for part in numbers:
            random.shuffle(part)
        shuffle = np.arange(n_samples, dtype=np.int64)
        random.shuffle(shuffle[:n_first])
        if n_first < n_samples:
            random.shuffle(shuffle[n_first:])
        return np.concatenate(numbers), shuffle

    def _indexed(self, source: TokenSource) -> tuple[npt.NDArray[Any], ...]:
        """The document, sample and shuffle index that were given."""
        if len(self._index) != 3:
            raise ValueError(f"index must be three arrays or paths, not {len(self._index)}")
        names = ("document index", "sample index", "shuffle index")
        found = tuple(
            checked_integers(name, given, ndim)
            for name, given, ndim in zip(names, self._index, (1, 2, 1), strict=True)
        )
        numbers, samples, shuffle = found
        _check_within(names[0], numbers, source)
        if len(samples) != len(shuffle) + 1:
            raise ValueError(
                f"a shuffle index of {len(shuffle)} samples is not that of a sample index of "
                f"{len(samples)} rows, one more than samples"
            )
        return found

    def __len__(self) -> int:
        return len(self._shuffle)

    def _getitems(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = np.array([row_at(i, len(self)) for i in indices], dtype=np.int64)
        assert self._plain is not None
        examples = self._plain.examples(rows)
        assert examples is not None
        return examples if self._is_plain else [self._completed(row) for row in examples]

    __getitems__ = _getitems

    def _completed(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with what depends on EOD and padding."""
        tokens, labels, loss = row["tokens"], row["labels"], row["loss_mask"]
        resets_positions, resets_attention, masks_eod = self._flags
        length = self._length
        n = int(np.flatnonzero(loss).max(initial=-1)) + 2  # the last token has no label
        tokens[n:], labels[n - 1 :] = self._pad, self._pad
        ends = np.flatnonzero(tokens == self._eod) if any(self._flags) else np.empty(0, np.int64)
        if masks_eod:
            loss[ends] = 0
        loss[labels == self._pad] = 0
        tokens[tokens == self._pad] = 0
        labels[labels == self._pad] = 0
        starts = np.concatenate([[0], ends + 1])
        segments = np.searchsorted(starts, np.arange(length), side="right") - 1
        made: dict[str, Any] = {"tokens": tokens, "labels": labels, "loss_mask": loss}
        made["position_ids"] = np.arange(length)
        if resets_positions:
            made["position_ids"] -= starts[segments]
        if "attention_mask" in self._fields:
            masked = ~np.tri(length, dtype=bool)
            if resets_attention:
                masked |= segments[:, None] != segments
            made["attention_mask"] = masked[None]
        return {name: made[name] for name in self._fields}

    def __fastiter_columns__(self) -> Columns | None:
        return self._columns if self._is_plain else None

    def __fastiter_tokens__(self, rows: npt.NDArray[np.int64]) -> int:
        return self._planner.n_tokens(self._shuffle[rows])


def _check_within(name: str, sequences: npt.NDArray[Any], source: TokenSource) -> None:
    low, high = sequences.min(initial=0), sequences.max(initial=-1)
    if low < 0 or high >= source.n_documents:
        raise ValueError(
            f"{name} has the sequence {low if low < 0 else high}, but those of the file are 0 to "
            f"{source.n_documents - 1}"
        )


def _check_samples(
    samples: npt.NDArray[Any], numbers: npt.NDArray[Any], source: TokenSource, length: int
) -> None:
    """Check that the second sample of a sample index begins where it does with this length."""
    if len(samples) < 3:
        return
    place, offset = (int(number) for number in samples[1])
    begin = int(source.lengths(numbers[:place].astype(np.int64)).sum()) + offset
    if begin != length:
        raise ValueError(
            f"by the sample index the second sample begins at token {begin}, not at "
            f"length={length}: it was made for another length, or for other files"
        )

"""Rows of tokens, as a dataset."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._collate.numpy_fallback import LAST, OnLeft
from fastiter._fetch.dataset_access import (
    Columns,
    Epochs,
    SegmentOffsets,
    SourceColumn,
    plain_columns,
)
from fastiter._fetch.token_column import FIELDS, MOST_TOKENS, TokenColumn
from fastiter._fetch.token_rows import EPOCH_SHIFT, OVERLONG, RowPlanner
from fastiter._plan.epoch_sampler import words_of
from fastiter._util.arguments import (
    checked_choice,
    checked_flag,
    checked_int,
    checked_names,
    checked_optional_int,
)
from fastiter._util.context import Self
from fastiter.dataset.mixin import out_of_range, row_at
from fastiter.datasets._arrow_sources import held
from fastiter.datasets._batched import BatchedDataset
from fastiter.tokens._sources import Opened, files_of, open_source, paths_of

_OFFSETS = "cu_seqlens"
_PACKINGS = (None, "concat", "bfd")
_SUMMED = 1 << 16  # rows at a time
_MOST_DOCUMENTS = 1 << 30  # of a window: csrc/order/fi_pack.h counts in 32 bits
_MOST_EPOCHS = 1 << 63 - EPOCH_SHIFT


class TokenDataset(BatchedDataset):
    """Rows for language models: windows, packed documents, or single ones.

    Iterators gather rows in C from where the tokens lie, without making examples. Files are mapped
    and shared by all processes; a pickle holds their paths. A row is a dict of its fields:

    - ``input_ids``, ``labels``, ``attention_mask`` (1; padding 0), ``position_ids`` (from 0 on in
      each segment): int64 (L,);
    - ``segment_ids``: int32 (L,), 1, 2, ..., padding 0; ``document_ids``: int64 (L,), padding -1;
    - ``loss_mask``: float32 (L,), 0 where the label is ``ignore_index``;
    - ``n_tokens``, ``max_seqlen`` (of the longest segment): int32;
    - ``cu_seqlens``: int32 (k + 1,), the starts of the row's k segments, and the end of the last
      segment; in batches (B, most + 1), with the last value repeated;
    - ``aligned`` columns: of their own dtype (L,), padding 0, or ``ignore_index`` if named labels.

    L is ``length``, or else the document's length, rounded up to ``pad_to_multiple_of``.

    The label of a token is its document's next token, also if this token lies in the next row or
    behind a cut. ``ignore_index`` stands at a document's end. So each token is an input once in an
    epoch, and each token but a document's first is a label once.

    Parameters
    ----------
    source : path, list of paths, list of arrays, array, pyarrow.Table, or datasets.Dataset
        ``.bin`` files of tokens, one behind the other, also with the header of llm.c; a prefix or
        ``.idx`` of Megatron's files, whose sequences are the documents; or Arrow lists. Paths may
        be patterns.
    length : int, optional
        Tokens of a row. None: a row is a document.
    packing : {None, "concat", "bfd"}
        Layout of documents in rows. None: rows are windows of the stream of tokens. "concat":
        documents behind each other, cut every ``length`` tokens. "bfd" (best fit decreasing) fits
        whole documents into rows.
    stride : int, optional
        Distance between the starts of two windows. Default: ``length``.
    documents : array of int, or path of .npy, optional
        Positions in ``.bin`` files at which documents begin, and the end (n + 1,). None: the files
        are one document.
    dtype : dtype, optional
        Data type of ``.bin`` files, uint16 by default.
    column : str
        The column of tokens in Arrow data.
    aligned : sequence of str
        Columns of lists as long as the tokens', such as masks, which become fields.
    window : int
        Documents that are packed together, at most 2**30. No row has documents of two windows.
    overlong : {"split", "truncate", "drop", "error"}
        Treatment of documents longer than a row, by "bfd". Pieces have ``length`` tokens.
    drop_last : bool
        Whether to leave out, with "concat", the last, partial row of each window.
    borders : bool, optional
        Whether labels, positions and segments end with documents. Default: True with packing, and
        without ``length``. Without borders the label is the next token of the epoch's stream.
    seed : int, sequence of int, or numpy.random.SeedSequence, optional
        Seed of the order of documents before packing, a new order each epoch. None: stored order.
    fields : sequence of str
        Names of the fields of a row.
    shift_labels : bool
        False: labels are ``input_ids``, with ``ignore_index`` at the first token of each segment,
        for models that shift labels themselves, like those of transformers: see `for_transformers`.
    ignore_index : int
        Label for positions that the loss ignores.
    bos_token_id, eos_token_id : int, optional
        Tokens put before and behind every document that is not empty, also if it has them already.
    pad_token_id : int
        Token used for padding.
    padding_side : {"right", "left"}
        Side of the padding, also in batches of rows of different lengths.
    pad_to_multiple_of : int, optional
        Number whose next multiple is the length of a row; the rest is padding.

    Raises
    ------
    FileNotFoundError, KeyError
        If there is no such file or column.
    TypeError, ValueError
        If an argument or a file is wrong. Offsets of documents are checked when they are used.

    Examples
    --------
    >>> dataset = TokenDataset([[1, 2, 3], [4, 5], [6]], 4, packing="bfd")
    >>> sorted(row["input_ids"].tolist() for row in dataset)
    [[1, 2, 3, 6], [4, 5, 0, 0]]
    """

    def __init__(
        self,
        source: Any,
        length: int | None = None,
        *,
        packing: str | None = None,
        stride: int | None = None,
        documents: Any = None,
        dtype: Any = None,
        column: str = "input_ids",
        aligned: Sequence[str] = (),
        window: int = 100_000,
        overlong: str = "split",
        drop_last: bool = False,
        borders: bool | None = None,
        seed: Any = None,
        fields: Sequence[str] = ("input_ids", "labels"),
        shift_labels: bool = True,
        ignore_index: int = -100,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int = 0,
        padding_side: str = "right",
        pad_to_multiple_of: int | None = None,
    ) -> None:
        paths = paths_of(source)
        self._source = held(source) if paths is None else paths
        is_path = isinstance(documents, (str, os.PathLike))
        self._documents = os.path.abspath(documents) if is_path else documents
        self._dtype, self._column = dtype, column
        self._aligned = checked_names("aligned", aligned)
        self._length = checked_optional_int("length", length, maximum=MOST_TOKENS)
        checked_choice("packing", packing, _PACKINGS)
        checked_choice("overlong", overlong, tuple(OVERLONG))
        checked_choice("padding_side", padding_side, ("right", "left"))
        self._method = packing or ("documents" if length is None else "windows")
        multiple = checked_optional_int(
            "pad_to_multiple_of", pad_to_multiple_of, maximum=MOST_TOKENS
        )
        self._multiple = multiple or 1
        if -(-(self._length or 0) // self._multiple) * self._multiple > MOST_TOKENS:
            raise ValueError(
                f"rows of length={length} and pad_to_multiple_of={multiple} are too long"
            )
        is_packed = self._method not in ("windows", "documents")
        if is_packed and length is None:
            raise ValueError(f"packing={packing!r} needs length=, the tokens of a row")
        if stride is not None and self._method != "windows":
            raise ValueError(f"stride={stride} is for windows: leave packing out and give length=")
        if overlong != "split" and self._method != "bfd":
            raise ValueError(f"overlong={overlong!r} needs packing='bfd', not {packing!r}")
        if seed is not None and not is_packed:
            raise ValueError(
                "seed= orders documents before they are packed: to shuffle windows or single "
                "documents, give the iterator an order_sampler with a seed"
            )
        if self._method == "windows" and (bos_token_id, eos_token_id) != (None, None):
            raise ValueError("bos_token_id and eos_token_id need packing=, or no length")
        if self._aligned and (bos_token_id, eos_token_id) != (None, None):
            raise ValueError(
                "bos_token_id and eos_token_id have no value in aligned columns: add them to the "
                "lists before"
            )
        if borders is None:
            borders = self._method != "windows"
        if not borders and self._method not in ("windows", "concat"):
            raise ValueError(f"borders=False is for windows and packing='concat', not {packing!r}")
        self._arguments: dict[str, Any] = {
            "stride": checked_optional_int("stride", stride, maximum=1 << 62) or length or 1,
            "window": checked_int("window", window, maximum=_MOST_DOCUMENTS),
            "overlong": overlong,
            "borders": checked_flag("borders", borders),
            "drop_last": checked_flag("drop_last", drop_last),
        }
        self._words = None if seed is None else words_of(seed)
        limits = {"minimum": -(1 << 63), "maximum": (1 << 63) - 1}
        self._added = (
            checked_optional_int("bos_token_id", bos_token_id, **limits),
            checked_optional_int("eos_token_id", eos_token_id, **limits),
        )
        self._fields = checked_names("fields", fields, (*FIELDS, _OFFSETS, *self._aligned))
        self._fields += tuple(name for name in self._aligned if name not in self._fields)
        if not self._fields:
            raise ValueError("fields must name at least one field")
        if _OFFSETS in self._fields and padding_side == "left":
            raise ValueError("cu_seqlens begins at 0, before padding: use padding_side='right'")
        if "labels" in self._aligned and "loss_mask" in self._fields:
            raise ValueError("loss_mask needs labels made here: leave it or aligned labels out")
        self._format: dict[str, Any] = {
            "shifts": checked_flag("shift_labels", shift_labels),
            "left": padding_side == "left",
            "pad": checked_int("pad_token_id", pad_token_id, **limits),
            "ignored": checked_int("ignore_index", ignore_index, **limits),
        }
        self._epoch = 0
        self._files = files_of(self._source, self._documents)
        self._open()

    @classmethod
    def for_transformers(
        cls, source: Any, length: int | None = None, *, packing: str | None = "bfd", **options: Any
    ) -> Self:
        """Make rows for causal models of transformers, and for its Trainer.

        These models shift labels by themselves: ``labels`` are ``input_ids``, with ``ignore_index``
        where nothing is to be predicted (``shift_labels=False``). Rows of several documents have
        ``position_ids``, from which the models tell the documents apart; without ``length`` a row
        is a document, and has ``attention_mask``.

        Parameters
        ----------
        source, length, packing, **options
            As of the class. ``packing`` counts with ``length`` only; None makes windows.
        """
        fields = ("input_ids", "labels", "attention_mask" if length is None else "position_ids")
        if length is None:
            packing = None
        options = {"fields": fields, **options}
        return cls(source, length, packing=packing, shift_labels=False, **options)

    def _open(self) -> None:
        opened = self._opened = open_source(
            self._source, self._documents, self._dtype, self._column, self._aligned
        )
        source = opened.source(*self._added)
        if self._method == "windows" and opened.n_tokens is not None:
            raise ValueError(
                "windows need tokens that follow each other, but this dataset is a view of its rows"
                " in another order: pass packing='concat', or dataset.flatten_indices()"
            )
        length = self._length and -(-self._length // self._multiple) * self._multiple
        self._planner = RowPlanner(
            source, self._method, self._length, words=self._words, **self._arguments
        )
        self._columns: dict[str, Any] = {}
        for field in self._fields:
            if field == _OFFSETS and field not in self._aligned:
                self._columns[field] = SegmentOffsets(self._planner, self._arguments["borders"])
                continue
            form, aligned = self._format, None
            if field in self._aligned:
                aligned = Opened(*opened.aligned[field], {}).source()
                form = {**form, "pad": self._ignored(aligned.dtype) if field == "labels" else 0}
            self._columns[field] = TokenColumn(
                self._planner,
                field,
                width=length,
                aligned=aligned,
                multiple=self._multiple,
                **form,
            )
        self._plain = plain_columns(self.__fastiter_columns__())
        self._tell_epoch()

    def _ignored(self, dtype: np.dtype[Any]) -> int:
        """`ignore_index`, of ready labels of this dtype."""
        ignored: int = self._format["ignored"]
        if dtype.kind not in "iu" or not np.iinfo(dtype).min <= ignored <= np.iinfo(dtype).max:
            raise ValueError(
                f"column 'labels' has values of {dtype}, which cannot be ignore_index={ignored}: "
                "make it int32 or int64, or pass another ignore_index"
            )
        return ignored

    def _tell_epoch(self) -> None:
        self._planner.epoch, self._epochs = self._epoch, None
        if self._words is not None:
            rows_of = self._planner.rows_of
            self._epochs = Epochs(self._epoch, self._words, rows_of, self._decides())

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_opened", "_planner", "_columns", "_plain", "_epochs")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._files.check()
        self._open()

    def __len__(self) -> int:
        return self._planner.n_rows()

    @property
    def epoch(self) -> int:
        """The epoch whose rows ``len`` and indexing mean. Iterators count epochs by themselves."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Switch ``len`` and indexing to the rows of another epoch, as in `DistributedSampler`."""
        self._epoch = checked_int("epoch", epoch, minimum=0, maximum=_MOST_EPOCHS - 2)
        self._tell_epoch()

    @property
    def n_documents(self) -> int:
        """Documents of the source."""
        return self._planner.source.n_documents

    @property
    def n_tokens(self) -> int:
        """Tokens of the source, without BOS and EOS."""
        known = self._opened.n_tokens
        return self._planner.source.n_tokens if known is None else known

    def document(self, i: int) -> npt.NDArray[Any]:
        """Get the tokens of a document, as they lie: a view, not to be written to."""
        return self._planner.source.document(row_at(i, self.n_documents))

    def segments(self, i: int) -> npt.NDArray[np.int64]:
        """Get the segments of a row: int64 (k, 3), each a document, a start in it, and a length."""
        found = self._planner.segments(self._rows([i]))
        if found is None:
            raise out_of_range(i, len(self))
        return found[0]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The tokens of each row of the epoch, padding not counted: int64 (n,)."""
        return self._sums(None)[0]

    @property
    def costs(self) -> npt.NDArray[np.float64]:
        """The sum of the squared lengths of the segments of each row: float64 (n,)."""
        return self._sums(None)[1]

    def _sums(self, epoch: int | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        n = self._planner.n_rows(epoch)
        lengths, costs = np.empty(n, np.int64), np.empty(n, np.float64)
        for start in range(0, n, _SUMMED):
            stop = min(n, start + _SUMMED)
            rows = np.arange(start, stop, dtype=np.int64)
            if epoch is not None:
                rows = self._planner.rows_of(epoch).indices(start, stop)
            found = self._planner.sums(rows)
            assert found is not None
            lengths[start:stop], costs[start:stop] = found
        return lengths, costs

    def _rows(self, indices: list[int]) -> npt.NDArray[np.int64]:
        """Indices as the planner has them. The indices of iterators include their epoch."""
        is_packed = self._words is not None
        has_epoch = [
            is_packed and 0 < operator.index(i) >> EPOCH_SHIFT < _MOST_EPOCHS for i in indices
        ]
        size = 0 if all(has_epoch) else len(self)  # of all windows, which are counted for it
        rows = [i if has else row_at(i, size) for i, has in zip(indices, has_epoch, strict=True)]
        return np.array(rows, dtype=np.int64)

    def _getitems(self, indices: list[int]) -> list[dict[str, Any]]:
        rows = self._rows(indices)
        assert self._plain is not None
        examples = self._plain.examples(rows)
        if examples is None:
            raise out_of_range(indices, len(self))
        return examples

    __getitems__ = _getitems

    def __fastiter_columns__(self) -> Columns:
        columns = tuple(SourceColumn(column) for column in self._columns.values())
        fills: dict[str, Any] = {}
        if self._length is None:
            values = {"input_ids": self._format["pad"], "labels": self._format["ignored"]}
            fills = {
                name: values.get(name, -1 if name == "document_ids" else 0)
                for name, column in self._columns.items()
                if getattr(column, "levels", 0)
            }
        # The gathering in C pads on the right only: other batches are joined of examples.
        by_example = bool(fills) and self._format["left"]
        if by_example:
            fills = {name: OnLeft(fill) for name, fill in fills.items()}
        has_offsets = any(type(column) is SegmentOffsets for column in self._columns.values())
        if has_offsets:
            fills[_OFFSETS] = LAST
            by_example = True
        return Columns(
            dict, self._fields, columns, False, fills=fills or None, by_example=by_example
        )

    def _decides(self) -> tuple[Any, ...]:
        """Arguments that decide the rows besides the seed."""
        arguments = tuple(sorted(self._arguments.items()))
        return self._method, self._length, arguments, self._added, self.n_tokens, self.n_documents

    def __fastiter_epochs__(self) -> Epochs | None:
        return self._epochs

    def __fastiter_keeps_rows__(self) -> bool:
        return self._method != "bfd"

    def __fastiter_tokens__(self, rows: npt.NDArray[np.int64]) -> int:
        return self._planner.n_tokens(rows)

"""A field of rows of tokens: a column of `gather.ColumnReader`, made in C."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t

from fastiter._clib.csrc cimport *
from fastiter._clib.memory cimport zeroed
from fastiter._clib.numpy_api cimport int64_items
from fastiter._fetch.arrow_column cimport PaddedLists
from fastiter._fetch.token_rows cimport (
    WINDOWS, RowPlanner, Segments, TokenSource, clear, free_all, start_of)

import numpy as np

cnp.import_array()

MOST_TOKENS = (1 << 31) - 1  # of a row
#: numbered as in csrc/batch/fi_tokens.h
FIELDS = ("input_ids", "labels", "attention_mask", "position_ids", "segment_ids", "document_ids",
          "loss_mask", "max_seqlen", "n_tokens")
_NARROW = {"segment_ids": "int32", "loss_mask": "float32", "max_seqlen": "int32",
           "n_tokens": "int32"}


cdef class TokenColumn:
    """A field of the rows of a planner.

    ``aligned`` is the source of a further column, cut like the tokens, or None. Rows without a width,
    documents, are lists, padded to a ``multiple`` each.
    """

    def __init__(self, RowPlanner planner, str field, *, width, shifts, left, pad, ignored,
                 TokenSource aligned=None, multiple=1):
        self.planner = planner
        self.source = planner.source if aligned is None else aligned
        self.format.length = <uint32_t>(width or 0)
        self.multiple = multiple
        self.format.shifts, self.format.borders = shifts, planner.borders
        self.format.left, self.format.pad, self.format.ignored = left, pad, ignored
        self.field = FI_FIELD_ALIGNED if aligned is not None else FIELDS.index(field)
        self.is_flat = planner.method == WINDOWS and not planner.borders and (
            aligned is None and self.field != FI_FIELD_DOCUMENTS)
        self.dtype = np.dtype(_NARROW.get(field, "int64")) if aligned is None else aligned.dtype
        is_number = self.field in (FI_FIELD_COUNT, FI_FIELD_LONGEST)
        self.levels = width is None and not is_number
        self.shape = () if is_number or width is None else (width,)

    cdef bint gather(self, char *target, const int64_t *rows, Py_ssize_t n,
                     uint32_t length) except -1:
        """Writes rows of `length` places; False if one of them does not exist."""
        cdef Segments found
        cdef fi_row_format format = self.format
        cdef int field = self.field
        cdef fi_row_segments made
        cdef size_t width = self.dtype.itemsize
        clear(&found)
        format.length = length
        if self.shape or self.levels:
            width *= length
        if self.is_flat:
            if not fi_rows_lie_within(rows, n, self.planner.n_fixed):
                return False
            with nogil:
                fi_tokens_windows(&self.planner.flat, &format, field, rows, n,
                                  self.planner.stride, self.planner.length, width, target)
            return True
        try:
            if not self.planner.resolve(rows, n, &found):
                return False
            if field == FI_FIELD_ALIGNED:
                self.check_lengths(found.items, found.n)
            made.segments, made.starts, made.continues = found.items, found.starts, found.continues
            with nogil:
                fi_tokens_rows(&self.source.tokens, &format, field, &made, n, width, target)
            return True
        finally:
            free_all(&found)

    cdef int check_lengths(self, const fi_segment *segments, size_t n) except -1:
        """Raises unless documents are as long in this column as in the tokens."""
        cdef int64_t start = 0, length = 0, expected = 0
        cdef size_t k
        for k in range(n):
            fi_tokens_extent(&self.planner.source.tokens, segments[k].document, &start, &expected)
            if not fi_tokens_extent(&self.source.tokens, segments[k].document, &start, &length) or (
                    length != expected):
                raise ValueError(
                    f"document {segments[k].document} has {expected} tokens, but {length} values in "
                    "an aligned column: leave the column out of aligned=")
        return 0

    cdef int64_t length_of(self, int64_t row) except -2:
        """The length of a row of documents; -1 if there is none of that number."""
        cdef int64_t length = 0
        if not 0 <= row < self.planner.source.tokens.n_documents:
            return -1
        if fi_tokens_lengths(&self.planner.source.tokens, &row, 1, &length) == 0:
            raise self.planner.source.damaged(row)
        if length > MOST_TOKENS - self.multiple:
            raise ValueError(
                f"document {row} has {length} tokens, too many for a row: pass length=, or "
                "documents= with the offsets of shorter ones")
        return (length + self.multiple - 1) // self.multiple * self.multiple

    cdef bint has(self, const int64_t *rows, Py_ssize_t n) except -1:
        """Whether there are these rows of documents; raises what is wrong with one."""
        cdef fi_segment segment
        cdef Py_ssize_t i
        for i in range(n):
            if self.length_of(rows[i]) < 0:
                return False
            segment.document = rows[i]
            if self.field == FI_FIELD_ALIGNED:
                self.check_lengths(&segment, 1)
        return True

    def values(self, numbers):
        """Rows of documents: a list of arrays, or None if one of them does not exist."""
        cdef Py_ssize_t n = 0, i
        cdef const int64_t *rows = int64_items(numbers, &n)
        cdef int64_t length
        cdef list found = []
        for i in range(n):
            length = self.length_of(rows[i])
            if length < 0:
                return None
            row = np.empty(length, self.dtype)
            if not self.gather(start_of(row), &rows[i], 1, <uint32_t>length):
                return None
            found.append(row)
        return found


cdef class TokenLists(PaddedLists):
    """Documents as rows, to be written as one array."""

    cdef bint plan(self, const int64_t *rows, Py_ssize_t n, bint pads, int64_t max_length,
                   int64_t multiple) except -1:
        """As of `PaddedLists`. False also if offsets are wrong, and for rows that are to be cut."""
        cdef TokenColumn column = self.column
        cdef int64_t length = 0, total = 0
        cdef Py_ssize_t i
        if max_length >= 0:
            return False
        self.begin(n, n)
        self.row_lengths = <int64_t *>zeroed(n, sizeof(int64_t))
        try:
            for i in range(n):
                self.row_lengths[i] = self.lengths[i] = column.length_of(rows[i])
                if self.lengths[i] < 0 or not (pads or self.lengths[i] == self.lengths[0]):
                    return False
                length = max(length, self.lengths[i])
                total += self.lengths[i]
            self.expanded = <char *>zeroed(total, self.dtype.itemsize)
            total = 0
            for i in range(n):
                self.sources[i] = self.expanded + total * self.dtype.itemsize
                if not column.gather(<char *>self.sources[i], &rows[i], 1, <uint32_t>self.lengths[i]):
                    return False
                total += self.lengths[i]
        except ValueError:
            return False
        self.shape[0] = (length + multiple - 1) // multiple * multiple
        self.end()
        return True

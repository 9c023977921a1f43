"""Rows of tokens: which parts of which documents a row has.

`TokenSource` is the stream and its documents. `RowPlanner` says what the rows of an epoch are. The index
of a row is its number in the planner's own epoch, or tells the epoch: above `EPOCH_SHIFT` bits stands the
epoch plus 1, below the window, and in the lowest `RowPlanner.row_bits` the place in this window.
`token_column.TokenColumn` is a field of all rows.
"""

cimport cython
cimport numpy as cnp
from cpython.mem cimport PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._clib.csrc cimport *
from fastiter._clib.memory cimport zeroed
from fastiter._clib.numpy_api cimport int64_items

import numpy as np

from fastiter._fetch.epoch_rows import EpochRows
from fastiter._order.permutation import VirtualOrder, fast_permutation

cnp.import_array()

cdef enum:
    EPOCH_BITS = 40
    KEPT_SEGMENTS = 1 << 21  # of windows that are kept planned: 48 MB
    KEPT_WINDOWS = 1 << 10

EPOCH_SHIFT = EPOCH_BITS
METHODS = {"windows": WINDOWS, "documents": DOCUMENTS, "concat": CONCAT, "bfd": FIT}
OVERLONG = {"split": FI_OVERLONG_SPLIT, "truncate": FI_OVERLONG_TRUNCATE,
            "drop": FI_OVERLONG_DROP, "error": -1}
KINDS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


cdef class TokenSource:
    """A stream of tokens, and the documents in it.

    Parameters
    ----------
    parts : arrays (n,), contiguous, of one dtype, that follow each other.
    documents : (offsets, sizes, unit, base) each: int32 or int64 arrays, sizes int32 or None; see
        csrc/batch/fi_tokens.h. None: the stream is one document.
    bos, eos : int or None, put before and behind every document.
    """

    def __cinit__(self, list parts, list documents=None, bos=None, eos=None):
        cdef fi_token_part *part
        cdef fi_document_part *place
        cdef int64_t number, first = 0
        self.arrays = parts
        self.dtype = parts[0].dtype
        kind = self.dtype.name
        if kind not in KINDS:  # copied as bytes only
            kind = {1: "uint8", 2: "uint16", 4: "uint32"}.get(self.dtype.itemsize, "int64")
        self.tokens.kind = KINDS.index(kind)
        self.part_memory = np.zeros((len(parts) + 1) * sizeof(fi_token_part), np.uint8)
        part = <fi_token_part *>start_of(self.part_memory)
        for number, array in enumerate(parts):
            part[number].tokens = start_of(array)
            part[number].first = first
            first += len(array)
        part[len(parts)].first = first
        self.tokens.parts, self.tokens.n_parts, self.tokens.n_tokens = part, len(parts), first
        self.documents = documents = documents or [
            (np.array([0, first], np.int64), None, 1, 0)]
        self.document_memory = np.zeros(
            (len(documents) + 1) * sizeof(fi_document_part), np.uint8)
        place = <fi_document_part *>start_of(self.document_memory)
        first = 0
        for number, (offsets, sizes, unit, base) in enumerate(documents):
            place[number].offsets = start_of(offsets)
            place[number].sizes = NULL if sizes is None else start_of(sizes)
            place[number].wide = offsets.dtype.itemsize == 8
            place[number].unit, place[number].base, place[number].first = unit, base, first
            first += len(offsets) - 1 if sizes is None else len(sizes)
        place[len(documents)].first = first
        self.tokens.documents, self.tokens.n_document_parts = place, len(documents)
        self.tokens.n_documents = first
        self.tokens.has_bos, self.tokens.has_eos = bos is not None, eos is not None
        self.tokens.bos, self.tokens.eos = bos or 0, eos or 0

    @property
    def n_tokens(self):
        return self.tokens.n_tokens

    @property
    def n_documents(self):
        return self.tokens.n_documents

    def lengths(self, numbers):
        """The lengths of documents, with what is added: int64 (n,). ValueError for wrong offsets."""
        cdef Py_ssize_t n = 0
        cdef const int64_t *items = int64_items(numbers, &n)
        cdef size_t bad
        cdef int64_t *out
        lengths = np.empty(n, np.int64)
        out = <int64_t *>start_of(lengths)
        with nogil:
            bad = fi_tokens_lengths(&self.tokens, items, n, out)
        if bad < <size_t>n:
            raise self.damaged(items[bad])
        return lengths

    def damaged(self, int64_t number):
        """The error of a document whose offsets are wrong."""
        place = number
        for offsets, sizes, unit, _ in self.documents:
            n = len(offsets) - 1 if sizes is None else len(sizes)
            if place < n:
                break
            place -= n
        if offsets[place] % unit:
            return ValueError(
                f"document {number} begins at byte {offsets[place]} by its index, which is no "
                f"multiple of the {unit} bytes of a token: the index is damaged, or its dtype is not "
                "that of the tokens")
        return ValueError(
            f"the offsets of document {number} lead out of the {self.tokens.n_tokens} tokens that "
            "there are: they belong to another file, or dtype is not that of the file")

    def document(self, int64_t number):
        """The tokens of a document, without what is added: a view, or a copy if parts share it."""
        cdef int64_t start = 0, length = 0
        if not fi_tokens_extent(&self.tokens, number, &start, &length):
            raise self.damaged(number)
        pieces = []
        for array in self.arrays:
            if start < len(array):
                pieces.append(array[start:start + length])
                length -= len(pieces[len(pieces) - 1])
                if length == 0:
                    break
            start = max(0, start - len(array))
        return pieces[0] if len(pieces) == 1 else np.concatenate([self.arrays[0][:0], *pieces])


cdef keep_newest(dict items, Py_ssize_t most):
    """Keep the `most` newest items of a dict, to which other threads may add."""
    for key in list(items)[:max(0, len(items) - most)]:
        items.pop(key, None)


@cython.final
cdef class Window:
    """The rows of some documents, which are packed together."""


cdef class RowPlanner:
    """The rows of each epoch.

    A window of documents is packed by their lengths alone, and kept for a while. ``order``, int64 (n,),
    tells which documents there are, in one window.
    """

    def __init__(self, TokenSource source, str method, length, *, stride=1, window=1, overlong="split",
                 borders=True, drop_last=False, words=None, order=None):
        cdef fi_document_part *part
        self.source = source
        self.method = METHODS[method]
        self.overlong = OVERLONG[overlong]
        self.length = length or 0
        self.stride, self.window = stride, window
        self.borders, self.drop_last, self.words = borders, drop_last, words
        self.epoch = 0
        self.order, self.n_documents = order, source.n_documents if order is None else len(order)
        if order is not None:
            self.window = max(1, len(order))
        self.epochs, self.plans, self.orders = {}, {}, {}
        self.n_windows = (self.n_documents + self.window - 1) // self.window
        self.row_bits = EPOCH_BITS - <int>(<object>self.n_windows).bit_length()
        self.n_fixed = -1
        if self.method == WINDOWS:
            self.n_fixed = max(0, (source.tokens.n_tokens - 1 - self.length) // stride + 1)
        elif self.method == DOCUMENTS:
            self.n_fixed = source.tokens.n_documents
        self.flat = source.tokens
        ends = np.array([0, source.n_tokens], np.int64)
        source.flat_memory = ends, np.zeros(2 * sizeof(fi_document_part), np.uint8)
        part = <fi_document_part *>start_of(source.flat_memory[1])
        part[0].offsets, part[0].wide, part[0].unit, part[1].first = start_of(ends), True, 1, 1
        self.flat.documents, self.flat.n_document_parts, self.flat.n_documents = part, 1, 1

    # ---- windows of documents

    def documents(self, int64_t epoch, int64_t number):
        """The documents of a window: int64 (n,)."""
        first = number * self.window
        last = min(first + self.window, self.n_documents)
        if self.order is not None:
            return self.order
        if self.words is None:
            return np.arange(first, last, dtype=np.int64)
        order = self.orders.get(epoch)
        if order is None:
            order = self.orders[epoch] = VirtualOrder(self.source.n_documents, self.words, epoch)
            keep_newest(self.orders, 2)
        return np.ascontiguousarray(order[first:last])

    cpdef Window planned(self, int64_t epoch, int64_t number):
        """A window, which is kept."""
        cdef Window window = self.plans.get((epoch, number))
        if window is None:
            window = self.plan(epoch, number)
            self.plans[epoch, number] = window
            keep_newest(self.plans, max(2, min(KEPT_WINDOWS, KEPT_SEGMENTS // self.window)))
        return window

    def plan(self, int64_t epoch, int64_t number, *, bint only_count=False):
        """A window, planned; or how many rows it has."""
        cdef Window window = Window()
        cdef uint32_t n, n_pieces, n_rows, length = <uint32_t>self.length
        cdef uint64_t n_whole = 0, total
        cdef const int64_t *documents
        cdef const int64_t *lengths
        cdef uint32_t *sizes
        cdef uint32_t *rows
        cdef fi_segment *pieces
        cdef fi_segment *segments
        cdef int64_t *starts
        cdef int64_t *places
        cdef char *scratch
        cdef int overlong = self.overlong
        cdef fi_seed seed
        self.n_planned += 1
        numbers = self.documents(epoch, number)
        found = self.source.lengths(numbers)
        n = len(numbers)
        if self.method == CONCAT:
            ends = np.cumsum(found)
            tokens = int(ends[n - 1]) if n else 0
            window.n_rows = tokens // self.length if self.drop_last else -(-tokens // self.length)
            if only_count:
                return window.n_rows
            self.check_rows(number, window.n_rows)
            window.n = n
            window.memory = numbers, ends
            window.documents = <int64_t *>start_of(numbers)
            window.ends = <int64_t *>start_of(ends)
            return window
        if overlong < 0:
            if n and found.max() > self.length:
                worst = int(found.argmax())
                raise ValueError(
                    f"document {numbers[worst]} has {found[worst]} tokens, more than length="
                    f"{self.length}: pass overlong='split', 'truncate' or 'drop'")
            overlong = FI_OVERLONG_SPLIT
        documents, lengths = <int64_t *>start_of(numbers), <int64_t *>start_of(found)
        kept = np.empty((2, n + 1), np.uint32)
        piece_memory = np.empty((n + 1) * sizeof(fi_segment), np.uint8)
        scratched = np.empty(fi_pack_scratch(length, n) // 8 + 1, np.uint64)
        sizes, rows = <uint32_t *>start_of(kept), <uint32_t *>start_of(kept) + n + 1
        pieces, scratch = <fi_segment *>start_of(piece_memory), start_of(scratched)
        with nogil:
            n_pieces = fi_pack_pieces(overlong, length, documents, lengths, n, sizes, pieces, &n_whole)
            n_rows = fi_pack(length, sizes, n_pieces, rows, scratch) if n_pieces else 0
        total = n_rows + n_whole
        window.n_rows = total
        if only_count:
            return window.n_rows
        self.check_rows(number, window.n_rows)
        words = self.words or (0, 0)
        seed.words[0], seed.words[1] = words
        seed = fi_seed_mixed(&seed, epoch if self.words else 0)
        place_array = fast_permutation(total, (seed.words[0], seed.words[1]), number, 1)
        window.memory = place_array, start_array, segment_array = (
            place_array, np.empty(total + 1, np.int64),
            np.empty((n_pieces + n_whole) * sizeof(fi_segment), np.uint8))
        places, starts = <int64_t *>start_of(place_array), <int64_t *>start_of(start_array)
        segments = <fi_segment *>start_of(segment_array)
        with nogil:
            fi_pack_segments(length, documents, lengths, n, overlong, pieces, rows, n_pieces, n_rows,
                             n_whole, places, starts, segments)
        window.starts, window.segments = starts, segments
        return window

    cdef int check_rows(self, int64_t number, int64_t n_rows) except -1:
        if self.words is not None and n_rows >> self.row_bits:
            raise ValueError(
                f"window {number} has {n_rows} rows, but indices of {self.n_windows} windows have room "
                f"for {1 << self.row_bits}: pass another window= or length=")
        return 0

    def rows_of(self, epoch):
        """The `EpochRows` of an epoch."""
        if self.words is None:
            epoch = 0
        found = self.epochs.get(epoch)
        if found is None:
            found = self.epochs.setdefault(epoch, EpochRows(self, epoch))
            keep_newest(self.epochs, 4)
        return found

    def first_index(self, int64_t epoch, int64_t number):
        """The index of the first row of a window."""
        return (epoch + 1 << EPOCH_BITS) + (number << self.row_bits)

    def n_rows(self, epoch=None):
        """Rows of an epoch, or of the planner's own."""
        if self.n_fixed >= 0:
            return self.n_fixed
        return len(self.rows_of(self.epoch if epoch is None else epoch))

    # ---- rows

    cdef int add(self, Segments *found, int64_t document, int64_t start, int64_t length) except -1:
        cdef size_t room
        cdef fi_segment *items
        if found.n == found.room:
            room = 2 * found.room + 64
            items = <fi_segment *>PyMem_Realloc(found.items, room * sizeof(fi_segment))
            if items == NULL:
                raise MemoryError()
            found.items, found.room = items, room
        found.items[found.n].document = document
        found.items[found.n].start = start
        found.items[found.n].length = length
        found.n += 1
        return 0

    cdef int add_stream(self, Segments *found, int64_t place, int64_t count) except -1:
        """The parts of documents that a stretch of the stream has."""
        cdef int64_t start = 0, length = 0, here
        cdef int64_t document = fi_tokens_find(&self.source.tokens, place)
        while count > 0 and document < self.source.tokens.n_documents:
            if not fi_tokens_extent(&self.source.tokens, document, &start, &length):
                raise self.source.damaged(document)
            here = min(count, start + length - place)
            if here > 0 and place >= start:
                self.add(found, document, place - start, here)
                place += here
                count -= here
            document += 1
        return 0

    cdef int add_concat(self, Segments *found, Window window, int64_t row) except -1:
        cdef int64_t low = 0, high = window.n, middle, place = row * self.length, before
        cdef int64_t stop = min(place + self.length, window.ends[window.n - 1])
        while low < high:  # the first document that ends behind the place
            middle = (low + high) // 2
            if window.ends[middle] <= place:
                low = middle + 1
            else:
                high = middle
        while place < stop:
            before = window.ends[low - 1] if low else 0
            if window.ends[low] > place:
                self.add(found, window.documents[low], place - before,
                         min(stop, window.ends[low]) - place)
                place = min(stop, window.ends[low])
            low += 1
        return 0

    cdef int resolve(self, const int64_t *rows, Py_ssize_t n, Segments *found) except -1:
        """The segments of rows; 0 if one of them does not exist, else 1."""
        cdef Py_ssize_t i
        cdef int64_t row, epoch, number, following, k, length, last_epoch = -1, last_number = -1
        cdef int64_t own_number = 0, before = 0, end = 0
        cdef Window window = None
        found.starts = <size_t *>zeroed(n + 1, sizeof(size_t))
        found.continues = <uint8_t *>zeroed(n + 1, 1)
        for i in range(n):
            row = rows[i]
            if row < 0:
                return 0
            if self.n_fixed >= 0:
                if row >= self.n_fixed:
                    return 0
                if self.method == WINDOWS:
                    self.add_stream(found, row * self.stride, self.length)
                else:
                    if fi_tokens_lengths(&self.source.tokens, &row, 1, &length) == 0:
                        raise self.source.damaged(row)
                    if length > 0:
                        self.add(found, row, 0, length)
            else:
                epoch = (row >> EPOCH_BITS) - 1
                if epoch < 0:
                    epoch = self.epoch
                    if not before <= row < end:
                        place = self.rows_of(epoch).window_of(row)
                        if place is None:
                            return 0
                        own_number, before, end = place
                    number, row = own_number, row - before
                else:
                    row &= (<int64_t>1 << EPOCH_BITS) - 1
                    number = row >> self.row_bits
                    row &= (<int64_t>1 << self.row_bits) - 1
                if self.words is None:
                    epoch = 0
                if number != last_number or epoch != last_epoch:
                    if number >= self.n_windows:
                        return 0
                    window, last_number, last_epoch = self.planned(epoch, number), number, epoch
                if row >= window.n_rows:
                    return 0
                if self.method == CONCAT:
                    self.add_concat(found, window, row)
                    if not self.borders:
                        k = found.n
                        self.add_concat(found, window, row + 1)  # a row that is left out, too
                        following = number + 1
                        while <size_t>k == found.n and following < self.n_windows:
                            self.add_concat(found, self.planned(epoch, following), 0)
                            following += 1
                        found.continues[i] = <size_t>k < found.n
                        found.n = min(found.n, <size_t>k + 1)
                else:
                    for k in range(window.starts[row], window.starts[row + 1]):
                        self.add(found, window.segments[k].document, window.segments[k].start,
                                 window.segments[k].length)
            found.starts[i + 1] = found.n
        return 1

    def segments(self, rows):
        """Parts of documents in rows: for each row an int64 (k, 3) of document, start in it, and
        length. None if a row does not exist."""
        cdef Py_ssize_t n = 0, i
        cdef size_t k, stop
        cdef const int64_t *items = int64_items(rows, &n)
        cdef Segments found
        cdef list given = []
        clear(&found)
        try:
            if not self.resolve(items, n, &found):
                return None
            for i in range(n):
                stop = found.starts[i + 1] - found.continues[i]
                k = found.starts[i]
                array = np.empty((stop - k, 3), np.int64)  # as fi_segment is
                if stop > k:
                    memcpy(start_of(array), found.items + k, (stop - k) * sizeof(fi_segment))
                given.append(array)
            return given
        finally:
            free_all(&found)

    def n_tokens(self, rows):
        """Tokens of rows; 0 if one of them does not exist, but for windows."""
        if self.method == WINDOWS:
            return len(rows) * self.length
        found = self.sums(rows)
        return 0 if found is None else int(found[0].sum())

    def sums(self, rows):
        """Tokens of rows, and their costs, sums of squared lengths: int64 and float64 (n,). None if
        a row does not exist."""
        cdef Py_ssize_t n = 0, i
        cdef size_t k
        cdef const int64_t *items = int64_items(rows, &n)
        cdef Segments found
        cdef int64_t *tokens
        cdef double *costs
        clear(&found)
        if self.method == WINDOWS and not self.borders:
            if not fi_rows_lie_within(items, n, self.n_fixed):
                return None
            return np.full(n, self.length), np.full(n, float(self.length) ** 2)
        token_array, cost_array = np.zeros(n, np.int64), np.zeros(n, np.float64)
        tokens, costs = <int64_t *>start_of(token_array), <double *>start_of(cost_array)
        try:
            if not self.resolve(items, n, &found):
                return None
            for i in range(n):
                for k in range(found.starts[i], found.starts[i + 1] - found.continues[i]):
                    tokens[i] += found.items[k].length
                    costs[i] += <double>found.items[k].length * found.items[k].length
                if not self.borders:
                    costs[i] = <double>tokens[i] * tokens[i]
            return token_array, cost_array
        finally:
            free_all(&found)

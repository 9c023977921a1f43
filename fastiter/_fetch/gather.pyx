"""Gathers rows of a dataset's arrays into the columns of a batch, without making examples.

The result is exactly what concat_examples makes of the dataset's examples. Where a reader cannot
promise that (dtypes other than plain numbers, rows that are not contiguous, indices out of range)
it returns None or False, and its caller fetches examples, which gives NumPy's result or its error.
"""

from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_Free
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_GetItem
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
cimport numpy as cnp

from fastiter._clib.csrc cimport *
from fastiter._clib.memory cimport NOGIL_BYTES, zeroed
from fastiter._clib.numpy_api cimport (
    bytes_of, descr_of, dims_of, equivalent, int64_items, itemsize_of, ndim_of, strides_of)
from fastiter._collate.buffers cimport empty_array
from fastiter._fetch.arrow_column cimport ArrowColumn, PaddedLists
from fastiter._fetch.token_column cimport TokenColumn, TokenLists
from fastiter._ring.schema cimport (
    ARRAY, BARE, DICT, MOST_NDIM, OBJECT, RAGGED, SCALAR, TEXT, TUPLE, Field, Schema,
    is_plain_number)

import numpy

cnp.import_array()

cdef enum:
    # Tables up to this length lie on the stack, in `Places`.
    STACK_ROWS = 512


cdef Py_ssize_t _row_bytes(cnp.PyArrayObject *array) noexcept:
    """Bytes of one row; -1 if there are no rows, or their elements do not lie side by side."""
    cdef Py_ssize_t nbytes = itemsize_of(array)
    cdef bint is_packed = True
    cdef int axis
    if ndim_of(array) == 0:
        return -1
    for axis in range(ndim_of(array) - 1, 0, -1):
        if dims_of(array)[axis] != 1 and strides_of(array)[axis] != nbytes:
            is_packed = False
        nbytes *= dims_of(array)[axis]
    # The strides of an array without elements tell nothing.
    return nbytes if is_packed or nbytes == 0 or dims_of(array)[0] == 0 else -1


cdef inline void begin_places(Places *places) noexcept:
    places.length, places.table, places.taken, places.chunking = -1, NULL, NULL, 0


cdef const int64_t *indices_of(object indices, Py_ssize_t *n) except NULL:
    cdef const int64_t *items = int64_items(indices, n)
    if items == NULL:
        raise TypeError(f"indices must be a contiguous int64 array, not {indices!r}")
    return items


cdef class ColumnReader:
    """Gathers rows of a dataset's columns, as concat_examples would join its examples.

    Safe to use in several threads at a time. Releases the GIL while it copies large columns. The
    arguments are those of `dataset_access.Columns`. A column is a numpy.ndarray, an `ArrowColumn`,
    a `TokenColumn`, or an object whose ``values(rows)`` gives a list.
    """

    def __cinit__(self, mode, tuple keys, list columns, bint views, tuple delegates=()):
        cdef ColumnSource *source
        self.views, self.delegates = views, delegates
        self.container = TUPLE if mode is tuple else DICT if mode is dict else BARE
        self.keys = keys if self.container == DICT else None
        self.count = len(columns)
        self.columns, self.templates, self.tables, self.dtypes = [], [], [], []
        self.is_fixed = True
        self.row_groups = None
        self.sources = <ColumnSource *>zeroed(self.count, sizeof(ColumnSource))
        for number, (data, rows) in enumerate(columns):
            source = &self.sources[number]
            source.kind = ARRAY
            self.is_arrow |= type(data) is not numpy.ndarray
            dtype = getattr(data, "dtype", None)
            self.columns.append(data)
            if getattr(data, "row_groups", None) is not None:
                self.row_groups = data.row_groups
            if type(data) is ArrowColumn or type(data) is TokenColumn:
                if type(data) is TokenColumn:
                    source.tokens = <PyObject *>data
                else:
                    source.arrow = <PyObject *>data
                    source.chunking = self.chunking_of(number)
                if source.arrow != NULL and (<ArrowColumn>data).text is not None:
                    source.kind = TEXT
                elif data.levels > 0:
                    source.kind = RAGGED
                else:
                    data = numpy.empty((0, *data.shape), dtype)
                    self.templates.append(data)
            elif type(data) is not numpy.ndarray:
                source.kind = OBJECT
                source.n_objects = len(data)
            if source.kind == ARRAY:
                source.array = <cnp.PyArrayObject *>data
                if is_plain_number(dtype) or source.arrow != NULL or source.tokens != NULL:
                    source.plain = descr_of(source.array)
            else:
                self.is_fixed = False
            if rows is not None:
                rows = numpy.ascontiguousarray(rows, dtype=numpy.int64)
                source.table = indices_of(rows, &source.table_rows)
            self.tables.append(rows)
            self.dtypes.append(dtype)

    def __dealloc__(self):
        PyMem_Free(self.sources)

    cdef Py_ssize_t chunking_of(self, Py_ssize_t number) noexcept:
        cdef const fi_column *column = &(<ArrowColumn>self.sources[number].arrow).column
        cdef Py_ssize_t other
        for other in range(number):
            if self.sources[other].arrow != NULL and fi_arrow_chunks_agree(
                    column, &(<ArrowColumn>self.sources[other].arrow).column):
                return self.sources[other].chunking
        return 1 + number

    def gather(self, indices):
        """Gather a batch: an array for each column, in a tuple or a dict as the mode says.

        Returns None if a column is not of plain numbers in contiguous rows, or lacks an index.
        """
        cdef Py_ssize_t n
        cdef const int64_t *rows = indices_of(indices, &n)
        cdef list outputs = self.outputs(n)
        if outputs is None or not self.gather_pieces(outputs, 0, indices, FI_RESULT_BATCHES):
            return None
        return self.batch(outputs)

    def pieces(self, indices, whole=False):
        """Begin and end of each part of some indices: until the next part is asked for, or the
        generator closed, their rows are there. `whole`: as in `RowGroups.pieces`."""
        rows = self.tables[0]
        if self.row_groups is None or not len(indices):
            return iter(((0, len(indices)),))
        if rows is None:
            rows = indices
        elif 0 <= indices.min() and indices.max() < len(rows):
            rows = rows[indices]
        else:
            rows = indices[:0]
        if not len(rows) or rows.min() < 0 or rows.max() >= self.row_groups.n_rows:
            return iter(((0, len(indices)),))  # which then finds that a row does not exist
        return self.row_groups.pieces(rows, whole)

    cdef bint gather_pieces(self, list outputs, Py_ssize_t start, indices,
                            uint64_t n_batches) except -1:
        cdef Py_ssize_t n, first, stop
        cdef const int64_t *rows = indices_of(indices, &n)
        if self.row_groups is None:
            return self.gather_rows(outputs, start, rows, n, n_batches)
        try:
            for first, stop in self.pieces(indices):
                if not self.gather_rows(
                        outputs, start + first, rows + first, stop - first, n_batches):
                    return False
        except (OSError, ValueError):  # the file is damaged: the examples say so
            return False
        return True

    def gather_columns(self, indices, list rules):
        """Gather a list of columns: arrays, and lists of the values of texts and objects; and a list
        of the lengths of their rows, int64 (n,), where these are asked for, or None.

        The rules are those of `_collate.columns.rules_for`. Returns None where the columns are not
        what concat_examples makes of the examples, or lack an index.
        """
        for piece in self.pieces(indices, True):
            if piece != (0, len(indices)):
                return None  # not all rows can be there at a time
            return self.gather_whole(indices, rules)

    cdef object gather_whole(self, indices, list rules):
        cdef Py_ssize_t n, number, row_bytes, nbytes
        cdef const int64_t *rows = indices_of(indices, &n)
        cdef cnp.PyArrayObject *array
        cdef cnp.npy_intp shape[MOST_NDIM]
        cdef ColumnSource *source
        cdef PaddedLists lists
        cdef Places places
        cdef int axis
        cdef list outputs = [], lengths = []
        begin_places(&places)
        for number in range(self.count):
            source = &self.sources[number]
            row_lengths = None
            if source.kind == TEXT or source.kind == OBJECT:
                found = self.values(number, rows, n)
            elif source.kind == RAGGED:
                lists = self.lists_of(number, rows, n, rules[number])
                if lists is None:
                    return None
                shape[0] = n
                nbytes = n * <Py_ssize_t>lists.dtype.itemsize
                for axis in range(lists.ndim):
                    shape[1 + axis] = lists.shape[axis]
                    nbytes *= lists.shape[axis]
                found = empty_array(
                    1 + lists.ndim, shape, <cnp.PyArray_Descr *>lists.dtype, nbytes)
                fill = rules[number][0]
                lists.write(bytes_of(<cnp.PyArrayObject *>found),
                            bytes_of(<cnp.PyArrayObject *>(found if fill is None else fill)))
                if rules[number][3]:
                    row_lengths = cnp.PyArray_EMPTY(1, shape, cnp.NPY_INT64, 0)
                    memcpy(bytes_of(<cnp.PyArrayObject *>row_lengths), lists.row_lengths,
                           n * sizeof(int64_t))
            else:
                found = self.output(number, n)
                if found is None:
                    return None
                array = <cnp.PyArrayObject *>found
                row_bytes = _row_bytes(array)
                if not self.gather_column(
                        number, bytes_of(array), row_bytes, rows, n,
                        fi_outruns_cache(n * row_bytes, FI_RESULT_BATCHES), &places):
                    return None
                if rules[number][3]:
                    row_lengths = numpy.full(n, found.shape[1], numpy.int64)
            if found is None:
                return None
            outputs.append(found)
            lengths.append(row_lengths)
        return outputs, lengths

    def gather_part(self, list outputs, Py_ssize_t start, indices, uint64_t n_batches=1):
        """Gather rows into `outputs`, from row `start` on; False if a column lacks an index.

        n_batches: how many such outputs are filled ahead of their use. If the caches do not hold so
        many, rows are written past them.
        """
        cdef Py_ssize_t n
        indices_of(indices, &n)
        for output in outputs:
            if len(outputs) != self.count or start < 0 or n > len(output) - start:
                raise ValueError(
                    f"rows {start} .. {start + n} of {self.count} columns do not lie in "
                    f"{len(outputs)} outputs of {len(output)} rows")
        return self.gather_pieces(outputs, start, indices, n_batches)

    cdef bint gather_rows(self, list outputs, Py_ssize_t start, const int64_t *rows, Py_ssize_t n,
                          uint64_t n_batches) except -1:
        cdef cnp.PyArrayObject *output
        cdef Py_ssize_t number, row_bytes
        cdef uint64_t nbytes = 0
        cdef bint uncached
        cdef Places places
        begin_places(&places)
        for array in outputs:
            nbytes += cnp.PyArray_NBYTES(array)
        uncached = fi_outruns_cache(nbytes, n_batches)
        for number in range(self.count):
            output = <cnp.PyArrayObject *>PyList_GET_ITEM(outputs, number)
            row_bytes = _row_bytes(output)
            if not self.gather_column(
                    number, bytes_of(output) + start * row_bytes, row_bytes, rows, n, uncached,
                    &places):
                return False
        return True

    def examples(self, indices):
        """Make the examples themselves; None if a column lacks an index."""
        cdef list found = []
        if self.row_groups is None:
            return self.examples_there(indices)
        for first, stop in self.pieces(indices):
            part = self.examples_there(indices[first:stop])
            if part is None:
                return None
            found += part
        return found

    cdef list examples_there(self, indices):
        cdef Py_ssize_t n, number
        cdef const int64_t *rows = indices_of(indices, &n)
        cdef list columns = []
        for number in range(self.count):
            found = self.values(number, rows, n)
            if found is None:
                return None
            columns.append(found)
        if self.container == BARE:
            return columns[0]
        if self.container == TUPLE:
            return list(zip(*columns))
        return [dict(zip(self.keys, row)) for row in zip(*columns)]

    cdef list values(self, Py_ssize_t number, const int64_t *rows, Py_ssize_t n):
        """Values of a column for the examples at some rows; None if it lacks one of the rows."""
        cdef ColumnSource *source = &self.sources[number]
        cdef Places places
        cdef Py_ssize_t i
        cdef cnp.npy_intp count = n
        begin_places(&places)
        if source.kind == ARRAY and (source.arrow != NULL or source.tokens != NULL):
            block = self.output(number, n)
            if not self.gather_column(
                    number, bytes_of(<cnp.PyArrayObject *>block),
                    _row_bytes(<cnp.PyArrayObject *>block), rows, n, False, &places):
                return None
            return list(block)
        try:
            if not self.translate(number, &rows, n, &places):
                return None
            if source.kind == ARRAY:
                return [self.row_of(number, rows[i]) for i in range(n)]
            if source.arrow != NULL:
                return (<ArrowColumn>source.arrow).values(rows, n)
            numbers = cnp.PyArray_EMPTY(1, &count, cnp.NPY_INT64, 0)
            memcpy(bytes_of(<cnp.PyArrayObject *>numbers), rows, n * sizeof(int64_t))
            return self.columns[number].values(numbers)
        finally:
            PyMem_Free(places.taken)

    cdef object row_of(self, Py_ssize_t number, int64_t row):
        value = PySequence_GetItem(<object>self.sources[number].array, row)
        if not self.views and type(value) is numpy.ndarray:
            return value.copy()
        return value

    def batch(self, list outputs):
        """The batch of outputs that are complete."""
        if self.container == TUPLE:
            return tuple(outputs)
        return outputs[0] if self.container == BARE else dict(zip(self.keys, outputs))

    # ---- one column

    cdef int64_t length(self, Py_ssize_t number) noexcept:
        """Rows of the column itself; -1 if it has none."""
        cdef ColumnSource *source = &self.sources[number]
        if source.arrow != NULL:
            return (<ArrowColumn>source.arrow).column.n_rows
        if source.tokens != NULL:
            return INT64_MAX
        if source.kind == OBJECT:
            return source.n_objects
        return dims_of(source.array)[0] if ndim_of(source.array) > 0 else -1

    cdef bint translate(self, Py_ssize_t number, const int64_t **rows, Py_ssize_t n,
                        Places *places) except -1:
        """Makes rows of the dataset those of a column; False if one of them does not exist."""
        cdef ColumnSource *source = &self.sources[number]
        cdef int64_t *translated = places.local
        cdef int64_t length = self.length(number)
        if source.table != places.table:
            places.length, places.table, places.chunking = -1, NULL, 0
        if source.table != NULL:
            if places.table == NULL:
                if not fi_rows_lie_within(rows[0], n, source.table_rows):
                    return False
                if n > STACK_ROWS:
                    translated = places.taken = <int64_t *>zeroed(n, sizeof(int64_t))
                fi_rows_translate(translated, source.table, rows[0], n)
                places.table = source.table
            rows[0] = translated
        if length != places.length:
            if not fi_rows_lie_within(rows[0], n, length):
                return False
            places.length = length
        return True

    def outputs(self, Py_ssize_t n):
        """New arrays for n rows of each column; None if a column cannot be gathered."""
        outputs = [self.output(number, n) for number in range(self.count)]
        return None if any(output is None for output in outputs) else outputs

    cdef object output(self, Py_ssize_t number, Py_ssize_t n):
        cdef ColumnSource *source = &self.sources[number]
        cdef cnp.npy_intp shape[MOST_NDIM]
        cdef int axis, ndim
        if source.array == NULL:
            return None
        ndim = ndim_of(source.array)
        if not 1 <= ndim <= MOST_NDIM or descr_of(source.array) != source.plain or (
                _row_bytes(source.array) < 0):
            return None
        shape[0] = n
        for axis in range(1, ndim):
            shape[axis] = dims_of(source.array)[axis]
        return empty_array(ndim, shape, source.plain, n * _row_bytes(source.array))

    cdef bint gather_column(self, Py_ssize_t number, char *target, Py_ssize_t row_bytes,
                            const int64_t *rows, Py_ssize_t n, bint uncached,
                            Places *places) except -1:
        """Copies rows of a column to the target, or returns False, with nothing written.

        row_bytes: room for a row there. places: of these rows, for all columns. Another thread may
        have changed this column's shape while the GIL was released for another one.
        """
        cdef ColumnSource *source = &self.sources[number]
        cdef fi_column *column = NULL
        cdef uint32_t *chunks = places.chunks if n <= STACK_ROWS else NULL
        cdef const char *base = <const char *>bytes_of(source.array)
        cdef Py_ssize_t stride
        cdef bint are_known
        if row_bytes < 0 or _row_bytes(source.array) != row_bytes:
            return False
        stride = strides_of(source.array)[0]
        if source.arrow != NULL:
            column = &(<ArrowColumn>source.arrow).column
        try:
            if not self.translate(number, &rows, n, places):
                return False
            if source.tokens != NULL:
                return (<TokenColumn>source.tokens).gather(
                    target, rows, n, (<TokenColumn>source.tokens).format.length)
            are_known = column != NULL and source.chunking == places.chunking
            if n * row_bytes < NOGIL_BYTES:
                are_known = _gather(
                    target, row_bytes, column, base, stride, rows, n, uncached, chunks, are_known)
            else:
                with nogil:
                    are_known = _gather(
                        target, row_bytes, column, base, stride, rows, n, uncached, chunks,
                        are_known)
            if are_known:
                places.chunking = source.chunking
            return True
        finally:
            if places.taken != NULL:
                PyMem_Free(places.taken)
                begin_places(places)

    cdef PaddedLists lists_of(self, Py_ssize_t number, const int64_t *rows, Py_ssize_t n,
                              object rule):
        """Rows of a column of lists. Of the rule: fill value or None, greatest length or -1,
        multiple. None if rows do not exist, or are not of equal length without a fill value."""
        cdef PaddedLists lists
        cdef Places places
        column = self.columns[number]
        lists = TokenLists(column) if self.sources[number].tokens != NULL else PaddedLists(column)
        begin_places(&places)
        try:
            if self.translate(number, &rows, n, &places) and lists.plan(
                    rows, n, rule[0] is not None, rule[1], rule[2]):
                return lists
            return None
        finally:
            PyMem_Free(places.taken)

    # ---- slots

    def specs(self):
        """Kind, dtype, and shape or number of dimensions of each column, as a `Schema` has them."""
        cdef Py_ssize_t number
        cdef ColumnSource *source
        cdef list found = []
        for number in range(self.count):
            source = &self.sources[number]
            if source.kind == RAGGED:
                column = self.columns[number]
                # Lists of lists are objects; only padded together they are an array.
                found.append((RAGGED if column.levels == 1 else OBJECT, column.dtype, column.levels))
            elif source.kind != ARRAY:
                found.append((source.kind, None, None))
            elif ndim_of(source.array) == 1:
                found.append((SCALAR, <object>descr_of(source.array), None))
            else:
                array = <object>source.array
                found.append((ARRAY, array.dtype, array.shape[1:]))
        return found

    cdef bint fits(self, Schema schema) except -1:
        """Whether the rows of a slot of this schema are what the columns hold."""
        cdef cnp.PyArrayObject *array
        cdef ColumnSource *source
        cdef Field *field
        cdef Py_ssize_t number
        cdef int axis, levels
        if schema.container != self.container or schema.count != self.count or (
                self.container == DICT and schema.keys != self.keys):
            return False
        for number in range(self.count):
            source = &self.sources[number]
            field = &schema.fields[number]
            if source.kind != ARRAY:
                levels = self.columns[number].levels if source.kind == RAGGED else 0
                if field.kind != (OBJECT if levels == 2 else source.kind):
                    return False
                if source.kind == RAGGED and field.descr != NULL and not equivalent(
                        field.descr, <cnp.PyArray_Descr *>self.columns[number].dtype):
                    return False
                continue
            array = source.array
            if descr_of(array) != source.plain or field.kind != (
                    ARRAY if ndim_of(array) > 1 else SCALAR):
                return False
            if not equivalent(field.descr, descr_of(array)) or _row_bytes(array) != field.stride:
                return False
            if field.kind == ARRAY and field.ndim != ndim_of(array) - 1:
                return False
            for axis in range(1, ndim_of(array)):
                if field.dims[axis - 1] != dims_of(array)[axis]:
                    return False
        return True

    cdef bint into_slot(self, Schema schema, char *payload, Py_ssize_t row, const int64_t *rows,
                        Py_ssize_t n, bint uncached) except -1:
        """Writes n rows of a slot, from `row` on, of a schema that fits: those columns whose rows
        have one size. False if an index is out of range. `uncached`: past the caches."""
        cdef Py_ssize_t number
        cdef Field *field
        cdef Places places
        begin_places(&places)
        for number in range(self.count):
            field = &schema.fields[number]
            if self.sources[number].kind == ARRAY:
                if not self.gather_column(
                        number, payload + field.offset + <uint64_t>field.stride * row,
                        field.stride, rows, n, uncached, &places):
                    return False
            elif self.sources[number].tokens != NULL and not self.has_rows(number, rows, n):
                return False
        return True

    cdef bint has_rows(self, Py_ssize_t number, const int64_t *rows, Py_ssize_t n) except -1:
        """Whether rows of a column of tokens exist; raises what is wrong with one."""
        cdef Places places
        begin_places(&places)
        try:
            return self.translate(number, &rows, n, &places) and (
                <TokenColumn>self.sources[number].tokens).has(rows, n)
        finally:
            PyMem_Free(places.taken)


cdef bint _gather(char *target, Py_ssize_t row_bytes, const fi_column *column, const char *base,
                  Py_ssize_t stride, const int64_t *rows, Py_ssize_t n, bint uncached,
                  uint32_t *chunks, bint are_known) noexcept nogil:
    if column != NULL:
        return fi_arrow_gather(target, column, rows, n, uncached, chunks, are_known)
    fi_gather_rows(target, row_bytes, base, stride, rows, n, uncached)
    return False

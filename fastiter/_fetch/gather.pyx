"""Gathers rows of a dataset's arrays into the columns of a batch, without making examples.

The result is exactly what concat_examples makes of the dataset's examples. Where a reader cannot
promise that (dtypes other than plain numbers, rows that are not contiguous, indices out of range)
it returns None or False, and its caller fetches examples, which gives NumPy's result or its error.
"""

from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.sequence cimport PySequence_GetItem
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint64_t
cimport numpy as cnp

from fastiter._clib.csrc cimport (
    FI_RESULT_BATCHES, fi_gather_rows, fi_outruns_cache, fi_rows_lie_within, fi_rows_translate)
from fastiter._clib.numpy_api cimport (
    bytes_of, descr_of, dims_of, equivalent, int64_items, itemsize_of, ndim_of, new_empty,
    strides_of)
from fastiter._ring.schema cimport (
    ARRAY, BARE, DICT, MOST_NDIM, SCALAR, TUPLE, Field, Schema, is_plain_number)

import numpy

cnp.import_array()

cdef enum:
    # Tables up to this length lie on the stack.
    STACK_ROWS = 512
    # Releasing the GIL and taking it back costs more than copying less than this.
    NOGIL_BYTES = 65536


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


cdef const int64_t *indices_of(object indices, Py_ssize_t *n) except NULL:
    cdef const int64_t *items = int64_items(indices, n)
    if items == NULL:
        raise TypeError(f"indices must be a contiguous int64 array, not {indices!r}")
    return items


cdef class ColumnReader:
    """Gathers rows of a dataset's columns, as concat_examples would join its examples.

    Safe to use in several threads at a time. Releases the GIL while it copies large columns. The
    arguments are those of `dataset_access.Columns`; arrays are numpy.ndarray.
    """

    def __cinit__(self, mode, tuple keys, list columns, bint views):
        cdef Source *source
        cdef cnp.PyArrayObject *array
        self.keys = keys
        self.views = views
        self.container = TUPLE if mode is tuple else DICT if mode is dict else BARE
        self.count = len(columns)
        self.arrays, self.tables, self.dtypes = [], [], []
        self.sources = <Source *>PyMem_Calloc(max(self.count, 1), sizeof(Source))
        if self.sources == NULL:
            raise MemoryError()
        for number, (data, rows) in enumerate(columns):
            array = <cnp.PyArrayObject *>data
            source = &self.sources[number]
            source.array = array
            if is_plain_number(data.dtype):
                source.plain = descr_of(array)
            if rows is not None:
                rows = numpy.ascontiguousarray(rows, dtype=numpy.int64)
                source.table = indices_of(rows, &source.table_rows)
            self.arrays.append(data)
            self.tables.append(rows)
            self.dtypes.append(data.dtype)

    def __dealloc__(self):
        PyMem_Free(self.sources)

    def gather(self, indices):
        """Gather a batch: an array for each column, in a tuple or a dict as the mode says.

        Returns None if a column is not of plain numbers in contiguous rows, or lacks an index.
        """
        cdef Py_ssize_t n
        cdef const int64_t *rows = indices_of(indices, &n)
        cdef list outputs = self.outputs(n)
        if outputs is None or not self.gather_rows(outputs, 0, rows, n, FI_RESULT_BATCHES):
            return None
        return self.batch(outputs)

    def gather_part(self, list outputs, Py_ssize_t start, indices, uint64_t n_batches=1):
        """Gather rows into `outputs`, from row `start` on; False if a column lacks an index.

        n_batches: how many such outputs are filled ahead of their use. If the caches do not hold so
        many, rows are written past them.
        """
        cdef Py_ssize_t n
        cdef const int64_t *rows = indices_of(indices, &n)
        for output in outputs:
            if len(outputs) != self.count or start < 0 or n > len(output) - start:
                raise ValueError(
                    f"rows {start} .. {start + n} of {self.count} columns do not lie in "
                    f"{len(outputs)} outputs of {len(output)} rows")
        return self.gather_rows(outputs, start, rows, n, n_batches)

    cdef bint gather_rows(self, list outputs, Py_ssize_t start, const int64_t *rows, Py_ssize_t n,
                          uint64_t n_batches) except -1:
        cdef cnp.PyArrayObject *output
        cdef Py_ssize_t number, row_bytes
        cdef uint64_t nbytes = 0
        cdef bint uncached
        for array in outputs:
            nbytes += cnp.PyArray_NBYTES(array)
        uncached = fi_outruns_cache(nbytes, n_batches)
        for number in range(self.count):
            output = <cnp.PyArrayObject *>PyList_GET_ITEM(outputs, number)
            row_bytes = _row_bytes(output)
            if not self.gather_column(
                    number, bytes_of(output) + start * row_bytes, row_bytes, rows, n, uncached):
                return False
        return True

    def examples(self, indices):
        """Make the examples themselves; None if a column lacks an index."""
        cdef Py_ssize_t n, position, number
        cdef const int64_t *rows = indices_of(indices, &n)
        cdef Source *source
        for number in range(self.count):
            source = &self.sources[number]
            # Rows are taken by NumPy's own indexing, which checks them against the array.
            if ndim_of(source.array) == 0 or not fi_rows_lie_within(
                    rows, n, dims_of(source.array)[0] if source.table == NULL
                    else source.table_rows):
                return None
        return [self.example(position, rows) for position in range(n)]

    cdef object example(self, Py_ssize_t position, const int64_t *rows):
        cdef Py_ssize_t number
        cdef int64_t row
        cdef tuple values = PyTuple_New(self.count)
        cdef Source *source
        for number in range(self.count):
            source = &self.sources[number]
            row = rows[position] if source.table == NULL else source.table[rows[position]]
            value = PySequence_GetItem(<object>source.array, row)
            if not self.views and type(value) is numpy.ndarray:
                value = value.copy()
            Py_INCREF(value)
            PyTuple_SET_ITEM(values, number, value)
        if self.container == TUPLE:
            return values
        return values[0] if self.container == BARE else dict(zip(self.keys, values))

    def batch(self, list outputs):
        """The batch of outputs that are complete."""
        if self.container == TUPLE:
            return tuple(outputs)
        return outputs[0] if self.container == BARE else dict(zip(self.keys, outputs))

    # ---- one column

    def outputs(self, Py_ssize_t n):
        """New arrays for n rows of each column; None if a column cannot be gathered."""
        cdef Source *source
        cdef cnp.npy_intp shape[MOST_NDIM]
        cdef Py_ssize_t number
        cdef int axis, ndim
        cdef list outputs = []
        for number in range(self.count):
            source = &self.sources[number]
            ndim = ndim_of(source.array)
            if not 1 <= ndim <= MOST_NDIM or descr_of(source.array) != source.plain or (
                    _row_bytes(source.array) < 0):
                return None
            shape[0] = n
            for axis in range(1, ndim):
                shape[axis] = dims_of(source.array)[axis]
            Py_INCREF(<object>source.plain)  # the constructor takes it over
            outputs.append(new_empty(ndim, shape, source.plain, 0))
        return outputs

    cdef bint gather_column(self, Py_ssize_t number, char *target, Py_ssize_t row_bytes,
                            const int64_t *rows, Py_ssize_t n, bint uncached) except -1:
        """Copies rows of a column to the target, or returns False, with nothing written.

        row_bytes: room for a row there. Another thread may have changed this column's shape while
        the GIL was released for another one.
        """
        cdef Source *source = &self.sources[number]
        cdef const char *base = <const char *>bytes_of(source.array)
        cdef Py_ssize_t stride, length
        cdef int64_t local[STACK_ROWS]
        cdef int64_t *translated = local
        if row_bytes < 0 or _row_bytes(source.array) != row_bytes:
            return False
        stride, length = strides_of(source.array)[0], dims_of(source.array)[0]
        try:
            if source.table != NULL:
                if not fi_rows_lie_within(rows, n, source.table_rows):
                    return False
                if n > STACK_ROWS:
                    translated = <int64_t *>PyMem_Malloc(n * sizeof(int64_t))
                    if translated == NULL:
                        raise MemoryError(f"no memory for the places of {n} rows")
                fi_rows_translate(translated, source.table, rows, n)
                rows = translated
            if not fi_rows_lie_within(rows, n, length):
                return False
            if n * row_bytes < NOGIL_BYTES:
                fi_gather_rows(target, row_bytes, base, stride, rows, n, uncached)
            else:
                with nogil:
                    fi_gather_rows(target, row_bytes, base, stride, rows, n, uncached)
            return True
        finally:
            if translated != local:
                PyMem_Free(translated)

    # ---- slots

    cdef bint fits(self, Schema schema) except -1:
        """Whether the rows of a slot of this schema are what the columns hold."""
        cdef cnp.PyArrayObject *array
        cdef Field *field
        cdef Py_ssize_t number
        cdef int axis
        if schema.container != self.container or schema.count != self.count or (
                self.container == DICT and schema.keys != self.keys):
            return False
        for number in range(self.count):
            array = self.sources[number].array
            field = &schema.fields[number]
            if descr_of(array) != self.sources[number].plain or field.kind != (
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
        """Writes n rows of a slot, from `row` on, of a schema that fits; False if an index is out
        of range. `uncached`: past the caches."""
        cdef Py_ssize_t number
        cdef Field *field
        for number in range(self.count):
            field = &schema.fields[number]
            if not self.gather_column(
                    number, payload + field.offset + <uint64_t>field.stride * row, field.stride,
                    rows, n, uncached):
                return False
        return True

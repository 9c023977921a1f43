"""Rows of columns: gathered from the arrays of a dataset, without making examples.

What a reader gives is exactly what the dataset's examples would give, joined by concat_examples.
Where it cannot promise that (dtypes that are no plain numbers, rows that are not contiguous,
indices out of range) it answers None or False, and whoever asked takes the way by examples,
which gives NumPy's result or its error.
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
    FI_RESULT_BATCHES,
    PyArray_DATA,
    PyArray_CheckExact,
    PyArray_Descr,
    PyArray_DESCR,
    PyArray_DIMS,
    PyArray_Empty,
    PyArray_EquivTypes,
    PyArray_IS_C_CONTIGUOUS,
    PyArray_NDIM,
    PyArrayObject,
    fi_gather_rows,
    fi_outruns_cache,
    fi_rows_lie_within,
    fi_rows_translate,
)
from fastiter._ring.schema cimport ARRAY, BARE, DICT, SCALAR, TUPLE, Field, Schema


import numpy

cnp.import_array()

cdef extern from "numpy/arrayobject.h" nogil:
    Py_ssize_t *PyArray_STRIDES(PyArrayObject *array)
    Py_ssize_t PyArray_ITEMSIZE(PyArrayObject *array)

cdef enum:
    MOST_NDIM = 31  # a batch has no more dimensions than its column
    # Tables up to this length lie on the stack.
    STACK_ROWS = 512
    # Releasing the GIL and taking it back costs more than copying less than this.
    NOGIL_BYTES = 65536



cdef bint _is_plain(PyArray_Descr *descr):
    """Whether elements are numbers that NumPy joins by copying their bytes."""
    cdef int num = descr.type_num
    return (
        (num <= cnp.NPY_CLONGDOUBLE or num == cnp.NPY_FLOAT16)
        and cnp.PyArray_ISNBO(descr.byteorder)
        and (<object>descr).metadata is None
    )


cdef Py_ssize_t _row_bytes(PyArrayObject *array) noexcept:
    """Bytes of one row; -1 if there are no rows, or their elements do not lie side by side."""
    cdef Py_ssize_t nbytes = PyArray_ITEMSIZE(array)
    cdef bint is_packed = True
    cdef int axis
    if PyArray_NDIM(array) == 0:
        return -1
    for axis in range(PyArray_NDIM(array) - 1, 0, -1):
        if PyArray_DIMS(array)[axis] != 1 and PyArray_STRIDES(array)[axis] != nbytes:
            is_packed = False
        nbytes *= PyArray_DIMS(array)[axis]
    # The strides of an array without elements tell nothing.
    return nbytes if is_packed or nbytes == 0 or PyArray_DIMS(array)[0] == 0 else -1


cdef const int64_t *_indices(object indices, Py_ssize_t *n) except NULL:
    cdef PyArrayObject *array = <PyArrayObject *>indices
    if not PyArray_CheckExact(array) or PyArray_NDIM(array) != 1 or (
            not PyArray_IS_C_CONTIGUOUS(array) or PyArray_DESCR(array).type_num != cnp.NPY_INT64
            or not cnp.PyArray_ISNBO(PyArray_DESCR(array).byteorder)):
        raise TypeError(f"indices must be a contiguous int64 array, not {indices!r}")
    n[0] = PyArray_DIMS(array)[0]
    return <const int64_t *>PyArray_DATA(array)


cdef uint64_t _nbytes(list arrays) except? 0:
    cdef uint64_t nbytes = 0
    for array in arrays:
        nbytes += cnp.PyArray_NBYTES(array)
    return nbytes


cdef class ColumnReader:
    """Gathers rows of the columns of a dataset.

    Safe to use in several threads at a time.

    Parameters
    ----------
    mode : tuple, dict or None
        What an example is.
    keys : tuple of str
        The columns' names.
    columns : list of (array, rows)
        ``array``: a numpy.ndarray whose first axis counts rows. ``rows``: int64 array that says
        for each row of the dataset where it is in the array, or None if they are the same.
    views : bool
        Whether examples are views of the arrays, or copies.
    """

    def __cinit__(self, mode, tuple keys, list columns, bint views):
        cdef Source *source
        cdef PyArrayObject *array
        self.mode = mode
        self.keys = keys
        self.views = views
        self.container = TUPLE if mode is tuple else DICT if mode is dict else BARE
        self.count = len(columns)
        self.arrays, self.tables, self.dtypes = [], [], []
        self.sources = <Source *>PyMem_Calloc(max(self.count, 1), sizeof(Source))
        if self.sources == NULL:
            raise MemoryError()
        for number, (data, rows) in enumerate(columns):
            if type(data) is not numpy.ndarray:
                raise TypeError(f"a column must be a numpy.ndarray, not {type(data).__name__}")
            array = <PyArrayObject *>data
            source = &self.sources[number]
            source.array = array
            if _is_plain(PyArray_DESCR(array)):
                source.plain = PyArray_DESCR(array)
            if rows is not None:
                rows = numpy.ascontiguousarray(rows, dtype=numpy.int64)
                source.table = _indices(rows, &source.table_rows)
            self.arrays.append(data)
            self.tables.append(rows)
            self.dtypes.append(data.dtype)

    def __dealloc__(self):
        PyMem_Free(self.sources)

    @property
    def array_dtypes(self):
        return tuple(self.dtypes)

    def gather(self, indices):
        cdef Py_ssize_t n, number
        cdef const int64_t *rows = _indices(indices, &n)
        cdef list outputs = self.outputs_for(n)
        cdef PyArrayObject *output
        cdef bint uncached
        if outputs is None:
            return None
        uncached = fi_outruns_cache(_nbytes(outputs), FI_RESULT_BATCHES)
        for number in range(self.count):
            output = <PyArrayObject *>PyList_GET_ITEM(outputs, number)
            if not self.gather_column(number, <char *>PyArray_DATA(output), _row_bytes(output),
                                      rows, n, uncached):
                return None
        return self.batch(outputs)

    def outputs(self, Py_ssize_t n):
        return self.outputs_for(n)

    def gather_part(self, list outputs, Py_ssize_t start, indices, uint64_t n_batches=1):
        cdef Py_ssize_t n, number
        cdef const int64_t *rows = _indices(indices, &n)
        cdef PyArrayObject *output
        cdef bint uncached = fi_outruns_cache(_nbytes(outputs), n_batches)
        if len(outputs) != self.count:
            raise ValueError(f"{len(outputs)} outputs are given for {self.count} columns")
        for number in range(self.count):
            output = <PyArrayObject *>outputs[number]
            if start < 0 or n > PyArray_DIMS(output)[0] - start:
                raise ValueError(
                    f"rows {start} .. {start + n} do not lie in outputs of "
                    f"{PyArray_DIMS(output)[0]} rows"
                )
            if not self.gather_column(
                    number, <char *>PyArray_DATA(output) + start * _row_bytes(output),
                    _row_bytes(output), rows, n, uncached):
                return False
        return True

    def assembled(self, list outputs):
        return self.batch(outputs)

    def examples(self, indices):
        cdef Py_ssize_t n, position, number
        cdef const int64_t *rows = _indices(indices, &n)
        cdef Source *source
        for number in range(self.count):
            source = &self.sources[number]
            # Rows are taken by NumPy's own indexing, which checks them against the array.
            if PyArray_NDIM(source.array) == 0 or not fi_rows_lie_within(
                    rows, n, PyArray_DIMS(source.array)[0] if source.table == NULL
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

    cdef object batch(self, list outputs):
        if self.container == TUPLE:
            return tuple(outputs)
        return outputs[0] if self.container == BARE else dict(zip(self.keys, outputs))

    # ---- one column

    cdef object outputs_for(self, Py_ssize_t n):
        """Arrays for n rows of each column, or None if a column cannot be gathered."""
        cdef Source *source
        cdef Py_ssize_t shape[MOST_NDIM]
        cdef Py_ssize_t number
        cdef int axis, ndim
        cdef list outputs = []
        for number in range(self.count):
            source = &self.sources[number]
            ndim = PyArray_NDIM(source.array)
            if not 1 <= ndim <= MOST_NDIM or PyArray_DESCR(source.array) != source.plain or (
                    _row_bytes(source.array) < 0):
                return None
            shape[0] = n
            for axis in range(1, ndim):
                shape[axis] = PyArray_DIMS(source.array)[axis]
            Py_INCREF(<object>source.plain)  # the constructor takes it over
            outputs.append(PyArray_Empty(ndim, shape, source.plain, 0))
        return outputs

    cdef bint gather_column(self, Py_ssize_t number, char *target, Py_ssize_t row_bytes,
                            const int64_t *rows, Py_ssize_t n, bint uncached) except -1:
        """Copies rows of a column to the target, or returns False, with nothing written.

        row_bytes: room for a row there. While another column was copied without the GIL, somebody
        may have changed this one's shape.
        """
        cdef Source *source = &self.sources[number]
        cdef const char *base = <const char *>PyArray_DATA(source.array)
        cdef Py_ssize_t stride, length
        cdef int64_t local[STACK_ROWS]
        cdef int64_t *translated = local
        if row_bytes < 0 or _row_bytes(source.array) != row_bytes:
            return False
        stride, length = PyArray_STRIDES(source.array)[0], PyArray_DIMS(source.array)[0]
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
        cdef PyArrayObject *array
        cdef Field *field
        cdef Py_ssize_t number
        cdef int axis
        if schema.container != self.container or schema.count != self.count or (
                self.container == DICT and schema.keys != self.keys):
            return False
        for number in range(self.count):
            array = self.sources[number].array
            field = &schema.fields[number]
            if not 1 <= PyArray_NDIM(array) <= MOST_NDIM or (
                    PyArray_DESCR(array) != self.sources[number].plain):
                return False
            if field.kind != (ARRAY if PyArray_NDIM(array) > 1 else SCALAR):
                return False
            if not PyArray_EquivTypes(<PyArray_Descr *>field.descr, PyArray_DESCR(array)) or (
                    _row_bytes(array) != field.stride):
                return False
            if field.kind == ARRAY:
                if field.ndim != PyArray_NDIM(array) - 1:
                    return False
                for axis in range(field.ndim):
                    if field.dims[axis] != PyArray_DIMS(array)[1 + axis]:
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

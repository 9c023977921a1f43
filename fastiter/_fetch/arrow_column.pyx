"""Columns in Arrow's memory layout: rows of any chunk, gathered from the buffers where they lie.

The buffers are found through the Arrow C data interface; this module needs no package for it. What
an Arrow type means is decided in `arrow_types`.
"""

import numpy

cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._clib.csrc cimport *
from fastiter._clib.memory cimport NOGIL_BYTES, zeroed
from fastiter._clib.numpy_api cimport bytes_of, int64_items, new_empty

cnp.import_array()

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)

cdef struct arrow_schema:
    # The type of an array: https://arrow.apache.org/docs/format/CDataInterface.html
    const char *format
    const char *name
    const char *metadata
    int64_t flags
    int64_t n_children
    arrow_schema **children
    arrow_schema *dictionary


cdef bytes kind_of(const arrow_schema *schema):
    """Text that differs for types whose buffers are laid out otherwise."""
    cdef int64_t number
    cdef list inner = [kind_of(schema.children[number]) for number in range(schema.n_children)]
    if schema.dictionary != NULL:
        inner.append(b"dictionary of " + kind_of(schema.dictionary))
    return b"%s(%s)" % (<bytes>schema.format, b",".join(inner))


cdef bytes kind_in(object capsule):
    return kind_of(<const arrow_schema *>PyCapsule_GetPointer(capsule, "arrow_schema"))


cdef dict LAYOUTS = {
    "fixed": FI_ARROW_FIXED,
    "bits": FI_ARROW_BITS,
    "days": FI_ARROW_DAYS,
    "lists": FI_ARROW_LISTS,
    "views": FI_ARROW_VIEWS,
}


cdef class ArrowColumn:
    """A column of chunks.

    Parameters
    ----------
    arrays : second items of the results of ``__arrow_c_array__``, one for each chunk.
    layout : "fixed", "bits" or "days": `dtype` and `shape` of a row; "lists" or "views".
    dtype : dtype of a row's elements, or of the texts' bytes.
    shape : shape of a row of "fixed".
    wide : flags for the levels of "lists", whether their offsets are int64.
    text : str or bytes, if a row is one.
    fill : 0-d array to be written in the place of nulls, or None.
    inner : sizes of the lists of a fixed size that a row of "fixed" consists of.
    row_groups : `RowGroups` that give the chunks while they are pinned, in the place of `arrays`.
    schema : first item of the result of ``__arrow_c_array__`` for an array of the row groups' type.
    """

    def __cinit__(self, list arrays, str layout, cnp.dtype dtype, tuple shape=(), tuple wide=(),
                  text=None, fill=None, tuple inner=(), row_groups=None, schema=None):
        cdef fi_column *column = &self.column
        cdef fi_arrow_array *array
        cdef Py_ssize_t level
        column.layout = LAYOUTS[layout]
        column.levels = len(wide)
        for level in range(column.levels):
            column.wide[level] = wide[level]
        column.width = 0 if layout == "bits" or (len(wide) == 1 and dtype == numpy.bool_) else dtype.itemsize
        for size in shape:
            column.width *= <size_t>size
        self.n_inner = <int>len(inner)
        for level in range(len(inner)):
            self.inner[level] = inner[level]
        self.dtype, self.shape, self.text, self.row_groups = dtype, shape, text, row_groups
        self.kind = None if schema is None else kind_in(schema)
        ends = [] if row_groups is None else row_groups.ends.tolist()
        self.arrays = [None] * len(ends)
        self.chunks = <fi_chunk *>zeroed(len(arrays) + len(ends) + 1, sizeof(fi_chunk))
        for end in ends:
            self.chunks[column.n_chunks].first = column.n_rows
            column.n_rows = end
            column.n_chunks += 1
        for capsule in arrays:
            array = <fi_arrow_array *>PyCapsule_GetPointer(capsule, "arrow_array")
            if array.length == 0:
                continue
            self.describe(column.n_chunks, column.n_rows, array)
            column.n_rows += array.length
            column.n_chunks += 1
            self.arrays.append(capsule)
        self.chunks[column.n_chunks].first = column.n_rows
        column.chunks = self.chunks
        column.guide = <uint32_t *>zeroed(fi_arrow_guide_size(column), sizeof(uint32_t))
        column.starts = <fi_chunk_start *>zeroed(column.n_chunks + 1, sizeof(fi_chunk_start))
        fi_arrow_guide(column)
        if fill is not None:
            self.fill = numpy.full(shape, fill, dtype)
            column.fill = bytes_of(<cnp.PyArrayObject *>self.fill)

    def __dealloc__(self):
        PyMem_Free(self.chunks)
        PyMem_Free(self.column.guide)
        PyMem_Free(self.column.starts)

    cdef int describe(self, Py_ssize_t number, int64_t first, const fi_arrow_array *array) except -1:
        cdef fi_chunk chunk
        if fi_arrow_chunk(&chunk, &self.column, array, self.inner, self.n_inner) != FI_OK:
            raise ValueError(
                f"the buffers of an Arrow array of {array.length} rows are not laid out as its type "
                "says: the data is damaged")
        chunk.first = first
        self.chunks[number] = chunk
        return 0

    def set_chunk(self, Py_ssize_t number, tuple given):
        """Uses an array as a chunk of a column of row groups until the next is set: ``given`` by its
        ``__arrow_c_array__``. ValueError if it is of another type or length."""
        schema, capsule = given
        cdef fi_arrow_array *array = <fi_arrow_array *>PyCapsule_GetPointer(capsule, "arrow_array")
        cdef int64_t first = self.chunks[number].first
        if self.kind is not None and kind_in(schema) != self.kind:
            raise ValueError(
                f"a row group has a column of type {kind_in(schema).decode()} (in Arrow's format "
                f"strings), which had the type {self.kind.decode()} when the dataset was made: make "
                "the dataset again")
        if array.length != self.chunks[number + 1].first - first:
            raise ValueError(
                f"a row group of {self.chunks[number + 1].first - first} rows has {array.length}")
        self.describe(number, first, array)
        fi_arrow_start(&self.column, number)
        self.arrays[number] = capsule

    def __len__(self):
        return self.column.n_rows

    @property
    def levels(self):
        """Lists in lists: 2; lists: 1; else 0."""
        return 0 if self.text is not None else self.column.levels

    def take(self, indices):
        """Rows of one size: an array (n, ...). IndexError if one does not exist."""
        cdef Py_ssize_t n = 0
        cdef const int64_t *rows = int64_items(indices, &n)
        if rows == NULL or not fi_rows_lie_within(rows, n, self.column.n_rows):
            raise IndexError(f"rows outside of a column of {self.column.n_rows}")
        found = numpy.empty((n, *self.shape), self.dtype)
        fi_arrow_gather(bytes_of(<cnp.PyArrayObject *>found), &self.column, rows, n, False,
                        NULL, False)
        return found

    # ---- lists and texts

    cdef fi_span *spans(self, const int64_t *rows, Py_ssize_t n) except NULL:
        """The places of rows, which the caller has checked and has to free."""
        cdef size_t bad = 0
        cdef fi_span *found = <fi_span *>zeroed(n, sizeof(fi_span))
        if fi_arrow_spans(found, &self.column, rows, n, &bad) != FI_OK:
            PyMem_Free(found)
            raise ValueError(
                f"the offsets of row {rows[bad]} of an Arrow column lead out of its values: the "
                "data is damaged")
        return found

    cdef fi_span *inner_spans(self, const fi_span *outer) except NULL:
        cdef fi_span *found = <fi_span *>zeroed(outer.length, sizeof(fi_span))
        if fi_arrow_inner(found, &self.column, outer) != FI_OK:
            PyMem_Free(found)
            raise ValueError(
                "the offsets of lists in an Arrow column lead out of their values: the data is "
                "damaged")
        return found

    cdef object element_array(self, const fi_span *span):
        """A new array of the elements of one list."""
        cdef cnp.npy_intp length = span.length
        cdef char *target
        Py_INCREF(self.dtype)  # the constructor takes it over
        array = new_empty(1, &length, <cnp.PyArray_Descr *>self.dtype, 0)
        target = bytes_of(<cnp.PyArrayObject *>array)
        if length == 0:
            return array
        if span.data == NULL:
            fi_arrow_bits(<uint8_t *>target, <const uint8_t *>span.chunk.values,
                          span.chunk.first_bit + span.start, length)
        else:
            memcpy(target, span.data, length * self.dtype.itemsize)
        return array

    cdef object list_at(self, const fi_span *span):
        cdef fi_span *inner
        cdef int64_t place
        if self.column.levels < 2:
            return self.element_array(span)
        inner = self.inner_spans(span)
        try:
            return [self.element_array(&inner[place]) for place in range(span.length)]
        finally:
            PyMem_Free(inner)

    cdef list values(self, const int64_t *rows, Py_ssize_t n):
        """The values of rows of lists or texts: arrays, lists of arrays, str or bytes."""
        cdef fi_span *spans = self.spans(rows, n)
        cdef Py_ssize_t i
        cdef list found = []
        try:
            for i in range(n):
                if self.text is None:
                    found.append(self.list_at(&spans[i]))
                elif self.text is bytes:
                    found.append(PyBytes_FromStringAndSize(
                        <const char *>spans[i].data, spans[i].length))
                else:
                    found.append(PyUnicode_DecodeUTF8(
                        <const char *>spans[i].data, spans[i].length, NULL))
            return found
        finally:
            PyMem_Free(spans)


cdef class PaddedLists:
    """The lists of some rows of a column, to be written as one array: `shape`, of `ndim` lengths, is
    that of a row in it."""

    def __cinit__(self, column):
        self.column = column
        self.dtype = column.dtype
        self.ndim = column.levels

    def __dealloc__(self):
        PyMem_Free(self.sources)
        PyMem_Free(self.lengths)
        PyMem_Free(self.row_lengths)
        PyMem_Free(self.expanded)

    cdef int begin(self, Py_ssize_t n, Py_ssize_t count) except -1:
        """Takes memory for n rows and a number of sources."""
        self.n, self.count = n, count
        self.sources = <const void **>zeroed(count, sizeof(void *))
        self.lengths = <int64_t *>zeroed(count, sizeof(int64_t))
        return 0

    cdef int end(self) except -1:
        self.nbytes = fi_array_bytes(self.shape, self.ndim, self.n * self.dtype.itemsize)
        if self.nbytes == <uint64_t>-1:
            raise MemoryError(f"lists padded to {self.shape[0]} elements fit in no memory")
        return 0

    cdef bint plan(self, const int64_t *rows, Py_ssize_t n, bint pads, int64_t max_length,
                   int64_t multiple) except -1:
        """Finds the lists, once; False if they are of different lengths, and `pads` is False.

        max_length, multiple: of the first axis, as in concat_examples; -1 for no maximum.
        """
        cdef ArrowColumn column = self.column
        cdef fi_span *spans = column.spans(rows, n)
        cdef Py_ssize_t i
        cdef int64_t length = 0
        try:
            self.row_lengths = <int64_t *>zeroed(n, sizeof(int64_t))
            for i in range(n):
                if 0 <= max_length < spans[i].length:
                    spans[i].length = max_length
                if not pads and spans[i].length != spans[0].length:
                    return False
                self.row_lengths[i] = spans[i].length
                length = max(length, spans[i].length)
            self.shape[0] = (length + multiple - 1) // multiple * multiple
            self.begin(n, n if self.ndim == 1 else n * self.shape[0])
            if self.ndim == 2:
                if not self.plan_inner(spans, pads):
                    return False
            else:
                for i in range(n):
                    self.sources[i], self.lengths[i] = spans[i].data, spans[i].length
                if column.column.width == 0:
                    self.expand_bits(spans)
            self.end()
            return True
        finally:
            PyMem_Free(spans)

    cdef bint plan_inner(self, const fi_span *spans, bint pads) except -1:
        cdef fi_span *inner
        cdef Py_ssize_t i, place = 0, source
        cdef int64_t length = -1
        for i in range(self.n):
            inner = (<ArrowColumn>self.column).inner_spans(&spans[i])
            try:
                for place in range(spans[i].length):
                    source = i * self.shape[0] + place
                    self.sources[source] = inner[place].data
                    self.lengths[source] = inner[place].length
                    if not pads and length >= 0 and inner[place].length != length:
                        return False
                    length = max(length, inner[place].length)
            finally:
                PyMem_Free(inner)
        self.shape[1] = max(length, 0)
        return True

    cdef int expand_bits(self, const fi_span *spans) except -1:
        cdef int64_t total = 0
        cdef Py_ssize_t i
        for i in range(self.n):
            total += self.lengths[i]
        self.expanded = <char *>zeroed(total, 1)
        total = 0
        for i in range(self.n):
            self.sources[i] = self.expanded + total
            if self.lengths[i] > 0:
                fi_arrow_bits(<uint8_t *>self.expanded + total,
                              <const uint8_t *>spans[i].chunk.values,
                              spans[i].chunk.first_bit + spans[i].start, self.lengths[i])
            total += self.lengths[i]
        return 0

    cdef void write(self, char *target, const void *fill) noexcept:
        """Writes `nbytes`. `fill`: one element."""
        cdef const int64_t *shape = &self.shape[self.ndim - 1]
        cdef size_t itemsize = self.dtype.itemsize
        if self.nbytes < NOGIL_BYTES:
            fi_pad(target, shape, 1, itemsize, self.sources, self.lengths, self.count, fill)
        else:
            with nogil:
                fi_pad(target, shape, 1, itemsize, self.sources, self.lengths, self.count, fill)

"""Reads rows of a dataset into a `RowSink`: by example, by lists of indices, or from its columns."""

import numpy

from cpython.long cimport PyLong_FromLongLong
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t

from fastiter._fetch.gather cimport indices_of
from fastiter._ring.schema cimport RowSink

from fastiter._fetch.dataset_access import plain_columns, rows_getter
from fastiter._order.example_context import ExampleContext
from fastiter._util.failures import STOPS as _STOPS
from fastiter._util.failures import Failure, is_skippable
from fastiter._util.loaded import loaded

cdef extern from "Python.h":
    PyObject *new_example "PyObject_GetItem"(object, object) except NULL


def can_share_rows(keys, Py_ssize_t most):
    """Whether workers can share the rows of these keys: 1 to `most`, in a known container."""
    kinds = list, tuple, numpy.ndarray, loaded("torch", "Tensor")
    return type(keys) in kinds and 0 < len(keys) <= most


cdef inline object key_of(RowSink sink):
    """Index or key of the row that a sink has begun."""
    if sink.keys is None:
        return PyLong_FromLongLong(sink.index)
    return sink.keys[sink.index - sink.first_number]


cdef class ListSink(RowSink):
    """Keeps the examples of a batch as a list, in the caller's memory.

    `indices`: int64 (n,), contiguous. `origin`: seed and plan of the batch. Unless it `tolerates`
    failures, the first exception passes; those by which a dataset stops its program always do.
    """

    cdef object array  # that `indices` lie in
    cdef const int64_t *indices
    cdef tuple origin
    cdef readonly list found  # examples of the rows that have not failed
    cdef readonly list failures

    def __cinit__(self, indices, tuple origin, bint tolerates):
        cdef Py_ssize_t n
        self.array, self.indices = indices, indices_of(indices, &n)
        self.origin, self.tolerates = origin, tolerates
        self.found, self.failures = [], []

    cdef bint begin_row(self, uint32_t row) noexcept:
        self.row = row
        self.index = self.indices[row]
        return True

    cdef int put_example(self, uint32_t row, PyObject *taken) except -1:
        cdef object example = <object>taken
        Py_DECREF(example)
        self.found.append(example)
        return 0

    cdef int fail_row(self, uint32_t row, object error) except -1:
        if not self.tolerates or isinstance(error, _STOPS):
            raise error
        self.failures.append(Failure.of(error, f"dataset index {self.index}", row))
        return 0

    cdef object call(self, object getter, object rows, list indices):
        return ExampleContext(self.origin[0], self.origin[1], None, rows).run(getter, indices)


cdef class DatasetReader:
    """Reads a dataset by one example at a time; the base of those that read many."""

    def __init__(self, dataset):
        self.dataset = dataset

    cdef int read(self, RowSink sink, uint32_t first, uint32_t count) except -1:
        """Reads rows of a batch: those that the sink has begin end in its `put_example` or `fail_row`."""
        cdef uint32_t row = first, stop = first + count
        while row < stop:
            try:  # outside of the inner loop: to enter it takes as long as a small copy
                while row < stop:
                    if sink.begin_row(row):
                        sink.put_example(row, new_example(self.dataset, key_of(sink)))
                    row += 1
            except BaseException as error:
                sink.fail_row(row, error)
                row += 1
        return 0

    @property
    def is_current(self):
        """Whether the dataset still consists of the columns that it had, if it had any."""
        if self.columns is not None:
            for delegate, dataset in self.columns.delegates:
                if delegate.dataset is not dataset:
                    return False
        return True

    def fill(self, RowSink sink, uint32_t first, uint32_t count):
        self.read(sink, first, count)

    def examples(self, indices, tuple origin, bint tolerates=False, first=0, stop=None):
        """Examples that have not failed, and the `Failure` of each other row, of the rows `first`
        to below `stop`. The other arguments are those of a `ListSink`."""
        cdef ListSink sink = ListSink.__new__(ListSink, indices, origin, tolerates)
        count = (len(indices) if stop is None else stop) - first
        ExampleContext(origin[0], origin[1], sink).run(self.fill, sink, first, count)
        return sink.found, sink.failures


cdef class ManyReader(DatasetReader):
    """Reads the rows of a range by one call of the dataset. If that fails, reads each by itself, to
    find the rows that fail."""

    def __init__(self, dataset, getter):
        self.dataset, self.getter = dataset, getter

    cdef int read(self, RowSink sink, uint32_t first, uint32_t count) except -1:
        cdef uint32_t row
        cdef Py_ssize_t place
        cdef list rows = [], indices = []
        for row in range(first, first + count):
            if sink.begin_row(row):
                rows.append(row)
                indices.append(sink.index)
        if not rows:
            return 0
        examples = failure = None
        try:
            examples = sink.call(self.getter, rows, list(indices))
        except BaseException as error:
            if not sink.tolerates:
                raise
            if len(rows) == 1 or not is_skippable(error):
                failure = error
        for place in range(len(rows)):
            row, sink.index = rows[place], indices[place]
            try:
                if failure is not None:
                    raise failure
                example = examples[place] if examples is not None else sink.call(
                    self.getter, [row], [sink.index])[0]
                Py_INCREF(example)
                sink.put_example(row, <PyObject *>example)
                example = None
            except BaseException as error:
                sink.fail_row(row, error)
        return 0

    def examples(self, indices, tuple origin, bint tolerates=False, first=0, stop=None):
        cdef ListSink sink = ListSink.__new__(ListSink, indices, origin, tolerates)
        cdef list numbers = indices[first:stop].tolist()
        rows = range(first, first + len(numbers))
        try:
            return sink.call(self.getter, rows, numbers), []
        except BaseException as error:
            if not tolerates:
                raise
            if len(numbers) == 1 or not is_skippable(error):
                sink.begin_row(first)
                sink.fail_row(first, error)
                return [], sink.failures
        for row in rows:
            self.read(sink, row, 1)
        return sink.found, sink.failures


cdef class ColumnsReader(DatasetReader):
    """Gathers rows from a dataset's columns, where the sink has columns like these. Reads what
    cannot be gathered by example: the dataset itself says what is wrong with it."""

    def __init__(self, dataset, columns):
        self.dataset, self.columns = dataset, columns

    cdef int read(self, RowSink sink, uint32_t first, uint32_t count) except -1:
        cdef uint32_t done = sink.gather(self.columns, first, count)
        if done < count:
            DatasetReader.read(self, sink, first + done, count - done)
        return 0

    def examples(self, indices, tuple origin, bint tolerates=False, first=0, stop=None):
        try:
            found = self.columns.examples(indices[first:stop])
        except (OSError, ValueError):
            found = None
        if found is None:
            return DatasetReader.examples(self, indices, origin, tolerates, first, stop)
        return found, []


def reader_of(dataset):
    """The reader of a dataset: by what it is, and what it offers."""
    columns = plain_columns(dataset)
    if columns is not None:
        return ColumnsReader(dataset, columns)
    getter = rows_getter(dataset)
    return DatasetReader(dataset) if getter is None else ManyReader(dataset, getter)

"""The rows of one batch in memory of this process, which several threads fill.

Once a schema of the examples is known, the thread that fetched an example copies it into the
batch's arrays, while it is in that core's cache, and does not keep it. An example that does not fit
the schema is kept, and the batch is made of examples (`BatchBuffer.examples`).
"""

cimport cython
cimport numpy as cnp
from cpython.list cimport PyList_GET_ITEM
from cpython.long cimport PyLong_FromLongLong
from cpython.mem cimport PyMem_Free
from cpython.object cimport PyObject, PyObject_GetItem
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._collate.buffers cimport empty_array
from fastiter._clib.csrc cimport (
    fi_call_cost, fi_call_cost_add, fi_call_cost_claim, fi_copy, fi_now_ns, fi_outruns_cache)
from fastiter._clib.memory cimport NOGIL_BYTES, zeroed
from fastiter._clib.numpy_api cimport bytes_of
from fastiter._fetch.gather cimport indices_of
from fastiter._ring.schema cimport (
    ColumnWriter, MOST_FIELDS, MOST_NDIM, ARRAY, BARE, BOOL, DICT, FLOAT, INT, Field, Schema)

cnp.import_array()

cdef enum:
    # Smaller arrays are copied at once, larger ones together with those of the rows that follow.
    LEAST_LARGE = 512
    MOST_COPIES = 64
    # Copied in one go: a core's cache holds that many bytes, and the examples they come from.
    MOST_BYTES = 262144

cdef enum:
    MISSING
    WRITTEN  # into the fields
    KEPT  # as an example

cdef struct Copy:
    char *target
    const char *source
    Py_ssize_t size
    PyObject *owner  # of the source; a reference


cdef class BatchBuffer


cdef class RangeWriter(ColumnWriter):
    """Writes a range of rows of a `BatchBuffer`; copies large arrays together, without the GIL."""

    cdef BatchBuffer buffer
    cdef Copy copies[MOST_COPIES]
    cdef Py_ssize_t count
    cdef Py_ssize_t bytes

    def __cinit__(self, BatchBuffer buffer):
        self.buffer = buffer
        self.schema = buffer.schema
        self.columns = buffer.columns
        self.uncached = buffer.uncached
        self.least_large = LEAST_LARGE

    def __dealloc__(self):
        self.drop_copies()

    cdef void drop_copies(self):
        cdef Py_ssize_t count = self.count, i
        self.count = self.bytes = 0
        for i in range(count):
            Py_DECREF(<object>self.copies[i].owner)

    cdef void make_copies(self):
        if self.bytes >= NOGIL_BYTES:
            with nogil:
                self.copy_all()
        else:
            self.copy_all()
        self.drop_copies()

    cdef void copy_all(self) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(self.count):
            fi_copy(
                self.copies[i].target, self.copies[i].source, self.copies[i].size, self.uncached)

    cdef int copy_large(self, char *place, const char *source, PyObject *owner, Py_ssize_t size,
                        bint uncached) except -1:
        cdef Copy *copy
        if self.count == MOST_COPIES:
            self.make_copies()
        copy = &self.copies[self.count]
        copy.target, copy.source, copy.size = place, source, size
        copy.owner = owner
        Py_INCREF(<object>owner)
        self.count += 1
        self.bytes += size
        return 0

    cdef int write_other(self, Py_ssize_t number, Py_ssize_t row, PyObject *value) except -1:
        """Keeps the value itself."""
        if self.schema.container == BARE and isinstance(<object>value, (tuple, dict)):
            return 0  # an example with fields of its own
        (<list>PyList_GET_ITEM(self.buffer.fields, number))[row] = <object>value
        return 1

    cdef int put_row(self, Py_ssize_t row, object example) except -1:
        if self.schema is not None and self.write(row, example):
            self.buffer.states[row] = WRITTEN
        else:
            self.buffer.kept[row] = example
            self.buffer.states[row] = KEPT
        if self.bytes >= MOST_BYTES:
            self.make_copies()
        return 0


@cython.final
cdef class Position:
    """The row that a thread fetches; where the time for it is limited, since when, too.

    The rows of a claim can be taken away from a thread that hangs: unless it `may_write` already,
    what it fetched is not written.
    """

    cdef readonly Py_ssize_t row
    cdef readonly Py_ssize_t rows  # that are fetched by one call
    cdef readonly int64_t since  # ns, on the clock of `now`; 0: it does nothing that is limited
    cdef readonly bint is_lost
    cdef bint is_limited
    cdef bint writes

    def __init__(self, bint is_limited=False):
        self.is_limited = is_limited

    cpdef void begin(self, Py_ssize_t row, Py_ssize_t rows) noexcept:
        """A call for some rows begins."""
        self.row = row
        if self.is_limited:
            self.rows = rows
            self.writes = False
            self.since = fi_now_ns()

    def end(self):
        """End the time that is limited."""
        self.since = 0

    def may_write(self):
        """Whether what was fetched is written; it cannot be taken away then."""
        with cython.critical_section(self):
            self.writes = not self.is_lost
            return self.writes

    def take_away(self, Py_ssize_t row, int64_t since):
        """Has what is fetched since then not be written; False if it is too late for that."""
        with cython.critical_section(self):
            if self.row == row and self.since == since and not self.writes:
                self.is_lost = True
            return self.is_lost


cdef class CallCost:
    """The cost of calls of the dataset that fetch several rows; shared by threads."""

    cdef fi_call_cost cost

    def note(self, uint32_t rows, int64_t nanoseconds):
        """Learns from a call that has fetched `rows` rows."""
        with cython.critical_section(self):
            fi_call_cost_add(&self.cost, rows, nanoseconds)

    def claim(self, uint32_t n, uint32_t left, uint32_t share, uint32_t even):
        """Number of the `left` unclaimed rows of a batch of `n` that the next call should fetch.

        `share` would be right if calls had no fixed cost; `even` rows leave as many for each thread
        that has no other batch to work on.
        """
        with cython.critical_section(self):
            return fi_call_cost_claim(&self.cost, n, left, share, even)


cdef class BatchBuffer:
    """The rows of one batch, in memory of this process.

    Several threads may fill different rows at a time; what comes out is asked for when all rows are
    there. Without a schema all rows are kept as examples. ``in_place`` tells for each field whether
    its rows are copied into an array; the values of the others are kept. Where the caches do not
    hold ``n_batches`` batches, arrays are written past them.
    """

    cdef Schema schema
    cdef Py_ssize_t rows
    cdef list kept
    cdef readonly list fields  # for each field its array, or the list of the rows' values
    cdef public object field_plan  # for the owner
    cdef char *columns[MOST_FIELDS]  # of the fields that are copied into an array; else NULL
    cdef char *states
    cdef bint uncached
    cdef public bint stopped  # set by any thread, it ends `fetch` before its next row

    def __cinit__(self, Py_ssize_t rows, Schema schema=None, in_place=(), uint64_t n_batches=1):
        cdef Py_ssize_t number
        cdef cnp.npy_intp shape[MOST_NDIM + 1]
        cdef Field *f
        cdef int axis
        self.rows = rows
        self.schema = schema
        self.kept = [None] * rows
        self.fields = []
        self.states = <char *>zeroed(rows, 1)
        if schema is None:
            return
        self.uncached = fi_outruns_cache(rows * schema.row_bytes, n_batches)
        for number in range(schema.count):
            f = &schema.fields[number]
            self.columns[number] = NULL
            if not in_place[number]:
                self.fields.append([None] * rows)
                continue
            shape[0] = rows
            for axis in range(f.ndim):
                shape[1 + axis] = f.dims[axis]
            array = empty_array(1 + f.ndim, shape, f.descr, rows * f.stride)
            self.columns[number] = bytes_of(<cnp.PyArrayObject *>array)
            self.fields.append(array)

    def __dealloc__(self):
        PyMem_Free(self.states)

    # ---- filling rows

    def fetch(self, dataset, indices, Py_ssize_t first, Py_ssize_t stop, Position at):
        """Fills the rows first .. stop - 1, of this batch, with ``dataset[indices[row]]``.

        Returns None, or the first row that failed and its exception; the rows after it are not
        filled; no more are if the rows were taken away. `indices`: int64[rows], of the whole batch.
        `at` tells the row meanwhile.
        """
        cdef RangeWriter writer = self.writer(first, stop)
        cdef Py_ssize_t row = first, n
        cdef const int64_t *numbers = indices_of(indices, &n)
        if n != self.rows:
            raise ValueError(f"{n} indices are given for a batch of {self.rows} rows")
        try:
            while row < stop and not self.stopped:
                at.begin(row, 1)
                if at.is_limited:
                    example = PyObject_GetItem(dataset, PyLong_FromLongLong(numbers[row]))
                    if not at.may_write():
                        return None
                    writer.put_row(row, example)
                    writer.make_copies()  # while no other thread can have the row
                    example = None
                else:
                    writer.put_row(
                        row, PyObject_GetItem(dataset, PyLong_FromLongLong(numbers[row])))
                row += 1
        except BaseException as error:
            if at.is_limited and not at.may_write():
                return None
            return row, error
        finally:
            writer.make_copies()
        return None

    def put(self, Py_ssize_t first, list examples):
        """Fills rows of this batch, from `first` on, with examples."""
        cdef RangeWriter writer = self.writer(first, first + len(examples))
        cdef Py_ssize_t row = first
        try:
            for example in examples:
                writer.put_row(row, example)
                row += 1
        finally:
            writer.make_copies()

    cdef RangeWriter writer(self, Py_ssize_t first, Py_ssize_t stop):
        if not 0 <= first <= stop <= self.rows:
            raise ValueError(f"rows {first} .. {stop} do not lie in a batch of {self.rows}")
        return RangeWriter.__new__(RangeWriter, self)

    # ---- what came of it

    @property
    def is_complete(self):
        """Whether every row is in the fields."""
        cdef Py_ssize_t row
        if self.schema is None:
            return False
        for row in range(self.rows):
            if self.states[row] != WRITTEN:
                return False
        return True

    def irregular(self):
        """The examples that are kept."""
        cdef Py_ssize_t row
        return [self.kept[row] for row in range(self.rows) if self.states[row] == KEPT]

    def examples(self):
        """The examples of all rows that were filled; those in the fields are made anew, with arrays
        that are views of the fields', and named tuples as plain ones."""
        cdef Py_ssize_t row
        if self.schema is None:
            return self.irregular()
        return [
            self.kept[row] if self.states[row] == KEPT else self.read(row)
            for row in range(self.rows)
            if self.states[row] != MISSING
        ]

    cdef object read(self, Py_ssize_t row):
        """An example made of the fields again."""
        cdef Schema schema = self.schema
        values = [
            self.read_field(&schema.fields[number], self.fields[number], row)
            for number in range(schema.count)
        ]
        if schema.container == BARE:
            return values[0]
        return dict(zip(schema.keys, values)) if schema.container == DICT else tuple(values)

    cdef object read_field(self, Field *f, object field, Py_ssize_t row):
        if type(field) is list:
            return field[row]
        if f.kind == ARRAY:
            return field[row, ...]
        return field.item(row) if f.kind in (INT, FLOAT, BOOL) else field[row]

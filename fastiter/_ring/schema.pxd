cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.tensors cimport fi_dl_tensor
from fastiter._ring.arena cimport WorkerRing

cdef enum:
    MOST_NDIM = 32
    # Array subtypes, as `_util.array_subtypes` numbers them.
    TENSOR = 1
    MEMMAP = 2

cpdef enum:
    MOST_FIELDS = 64  # a lease marks the columns that were exported in 64 bits
    # Containers of an example: none, or one of these; NAMED is a tuple with names for its items, a
    # TREE has containers in containers, and its fields are the leaves.
    BARE = 0
    TUPLE = 1
    LIST = 2
    DICT = 3
    NAMED = 4
    TREE = 5
    # Kinds of field.
    ARRAY = 0
    RAGGED = 1
    INT = 2
    FLOAT = 3
    BOOL = 4
    SCALAR = 5
    OBJECT = 6
    TEXT = 7  # str or bytes
    # Answers of `dtype_traits`.
    COPYABLE = 1
    STACKABLE = 2
    NUMBER = 4

cpdef int dtype_traits(cnp.dtype dtype) except -1
cpdef bint is_plain_number(cnp.dtype dtype) except -1

cdef struct Field:
    int kind
    int ndim
    bint is_stackable  # its column is what numpy.concatenate makes of the rows
    int subtype  # what the examples hold if not plain arrays
    void *array_type  # of the arrays that are written
    bint timed  # datetime64 or timedelta64: the scalar's type does not tell its unit
    cnp.PyArray_Descr *descr  # of the elements; kept alive by Schema.dtypes
    cnp.PyTypeObject *scalar
    int tensor_code  # DLPack's of the elements' dtype; -1 if not read by it
    cnp.npy_intp dims[MOST_NDIM]
    cnp.npy_intp itemsize
    cnp.npy_intp stride  # bytes from row to row
    uint64_t offset  # of the column in the slot


cdef class Schema:
    cdef readonly int container
    cdef readonly tuple keys
    cdef readonly tuple specs
    cdef readonly Py_ssize_t rows
    cdef readonly uint64_t bytes  # of all columns; the slot's heap starts there
    cdef readonly uint64_t row_bytes  # of one row in all columns
    cdef readonly list dtypes  # of the columns' elements; None for a field of objects
    cdef Field *fields
    cdef Py_ssize_t count
    cdef readonly object type  # of the examples, if they are named tuples
    cdef readonly tuple tree  # of a TREE: its outermost node, see `Schema`
    cdef readonly dict subtypes
    cdef readonly bint has_lists  # whether a field becomes a column only when rows are joined


cdef class RowSink:
    cdef readonly int64_t row  # that is read by itself, or -1
    cdef int64_t index  # its dataset index
    cdef object keys  # of the batch, where these are no indices: `index` is then a number
    cdef int64_t first_number  # that of the first key
    cdef bint tolerates  # whether rows that come after a failed one are read
    cdef bint begin_row(self, uint32_t row) noexcept
    cdef int put_example(self, uint32_t row, PyObject *taken) except -1
    cdef int fail_row(self, uint32_t row, object error) except -1
    cdef object call(self, object getter, object rows, list indices)
    cdef uint32_t gather(self, object reader, uint32_t first, uint32_t count) except? 0xFFFFFFFF


cdef class ColumnWriter(RowSink):
    cdef Schema schema
    cdef char **columns  # the first row of each column; NULL for a field that `write_other` writes
    cdef Py_ssize_t least_large  # bytes from which on an array is copied by `copy_large`
    cdef bint copies_at_once  # so that what is copied need not be kept as it is
    cdef bint uncached  # columns are written past the caches
    cdef cnp.PyArray_Descr *last_dtypes[MOST_FIELDS]  # seen last, equal to the fields'; or NULL
    cdef list given  # arrays of the row's columns that the dataset was given; or None
    cdef bint is_mixed  # they are in use, and not all in their own places
    cdef void use_schema(self, Schema schema) noexcept
    cdef int write(self, Py_ssize_t row, object example) except -1
    cdef int hold(self, object example, PyObject **values) except -1
    cdef int write_tree(self, Py_ssize_t row, object example) except -1
    cdef int write_fields(self, Py_ssize_t row, PyObject **values) except -1
    cdef bint mixes(self, Py_ssize_t row, PyObject **values) except -1
    cdef bint is_array_of(self, Py_ssize_t number, PyObject *value)
    cdef int copy_array(self, Field *f, char *place, PyObject *array, Py_ssize_t size,
                        bint uncached) except -1
    cdef bint describes(self, Field *f, PyObject *value, fi_dl_tensor *tensor)
    cdef int copy_bytes(self, char *place, const char *source, PyObject *owner, Py_ssize_t size,
                        bint uncached) except -1
    cdef int copy_large(self, char *place, const char *source, PyObject *owner, Py_ssize_t size,
                        bint uncached) except -1
    cdef int write_other(self, Py_ssize_t number, Py_ssize_t row, PyObject *value) except -1


cdef class SlotWriter(ColumnWriter):
    cdef readonly WorkerRing end
    cdef char *payload  # of the slot in which `places` lie
    cdef char *places[MOST_FIELDS]
    cdef int write_into_slot(self, Py_ssize_t row, object example) except -1
    cdef int use_slot(self) except -1
    cdef int write_text(self, int64_t *entry, object value) except -1


cdef inline int64_t *entry_of(Field *f, char *payload, Py_ssize_t row) noexcept:
    """A row's entry in the column of a field whose values lie in the heap."""
    return <int64_t *>(payload + f.offset + <uint64_t>f.stride * row)


cdef bint has_shape(const int64_t *dims, Field *f) noexcept

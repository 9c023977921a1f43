"""Schemas: what the examples of a dataset have in common, and how a slot stores them.

A `Schema` holds the examples' container, and each field's kind, dtype and shape. Fields of equal
shape are stored in columns; ragged arrays in the slot's heap, with a column of offsets and shapes;
other objects are packed into the heap, with a column of offsets and lengths. An example that does
not fit is spilled: packed as a whole. `fastiter._ring.column_writer` writes columns, and
`fastiter._ring.views` reads them.
"""

import pickle
import sys

import numpy

cimport numpy as cnp
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint64_t

from fastiter._clib.csrc cimport fi_align_up

cnp.import_array()

# Containers of an example.
BARE, TUPLE, LIST, DICT, NAMED = range(5)
# Kinds of field.
ARRAY, RAGGED, INT, FLOAT, BOOL, SCALAR, OBJECT = range(7)

MOST_FIELDS = FIELD_LIMIT

cdef enum:
    ALIGNMENT = 64

cdef tuple NUMBERS = (numpy.dtype(numpy.int64), numpy.dtype(numpy.float64), numpy.dtype(numpy.bool_))


def _handable(dtype):
    """True if numpy.concatenate keeps this dtype: it makes byte order native and repacks
    structures."""
    return dtype.isnative and dtype.kind != "V"


cdef class Schema:
    """What the rows of a slot hold, and where.

    Parameters
    ----------
    container : BARE, TUPLE, LIST, DICT or NAMED, a tuple of a type with names for its items.
    keys : the keys of a DICT, in order; the type of a NAMED; else None.
    specs : per field (kind, dtype or None, shape or number of dimensions).
    rows : rows that a slot has room for.
    subtypes : what the values of ARRAY and RAGGED fields are if not plain arrays, by the numbers of
        the fields. They lie in the slot as arrays do.

    Attributes
    ----------
    bytes : int
        Size of all columns; the slot's heap starts there.
    row_bytes : int
        Of one row in all columns.
    type : type or None
        Of the examples, if they are named tuples.
    """

    def __cinit__(self, int container, keys, specs, Py_ssize_t rows, subtypes=None):
        cdef Field *f
        cdef uint64_t end = 0
        self.container = container
        self.type = keys if container == _NAMED else None
        self.keys = None if container != _DICT else tuple(
            sys.intern(key) if type(key) is str else key for key in keys)
        self.specs = tuple(specs)
        self.subtypes = dict(subtypes or {})
        self.rows = rows
        self.count = len(self.specs)
        if self.count > FIELD_LIMIT:
            raise ValueError(f"an example of {self.count} fields; at most {FIELD_LIMIT} have columns")
        self.dtypes = []
        self.fields = <Field *>PyMem_Calloc(self.count, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError()
        for number, (kind, dtype, shape) in enumerate(self.specs):
            f = &self.fields[number]
            f.kind = kind
            f.subtype = self.subtypes.get(number, 0)
            f.array_type = <void *>(numpy.memmap if f.subtype == _MEMMAP else numpy.ndarray)
            if kind in (_INT, _FLOAT, _BOOL):
                dtype = NUMBERS[kind - _INT]
            elif dtype is not None and dtype.kind != "V":
                # What pickle makes is equal to NumPy's own, which arrays have; identity is faster.
                dtype = numpy.dtype(dtype.str)
            self.dtypes.append(dtype)
            if dtype is not None:
                f.descr = <cnp.PyArray_Descr *>dtype
                f.itemsize = dtype.itemsize
                f.handable = _handable(dtype)
                f.timed = dtype.kind in "mM"
                f.scalar = <cnp.PyTypeObject *>dtype.type
            f.stride = f.itemsize
            if kind == _ARRAY:
                f.ndim = len(shape)
                for axis in range(f.ndim):
                    f.dims[axis] = shape[axis]
                    f.stride *= f.dims[axis]
            elif kind == _RAGGED:
                f.ndim = shape
                f.stride = (1 + f.ndim) * sizeof(int64_t)
            elif kind == _OBJECT:
                f.stride = 2 * sizeof(int64_t)
            self.row_bytes += f.stride
            f.offset = end
            # One row more than the batch: the batch converter's entry for the field as a whole.
            end = fi_align_up(end + <uint64_t>f.stride * (rows + 1), ALIGNMENT)
        self.bytes = end

    def __dealloc__(self):
        PyMem_Free(self.fields)

    def record(self):
        """What `load` makes an equal schema of."""
        return pickle.dumps(
            (self.container, self.type or self.keys, self.specs, self.subtypes), protocol=5)

    @staticmethod
    def load(record, rows):
        container, keys, specs, subtypes = pickle.loads(record)
        return Schema(container, keys, specs, rows, subtypes)

    def of_rows(self, rows):
        """The same for slots of so many rows."""
        return Schema(self.container, self.type or self.keys, self.specs, rows, self.subtypes)

    def same_as(self, Schema other):
        return (self.container, self.type, self.keys, self.specs, self.subtypes) == (
            other.container, other.type, other.keys, other.specs, other.subtypes)

    @property
    def has_ragged_fields(self):
        """True if every field can be put together, and a ragged one needs the batch converter for it."""
        kinds = [spec[0] for spec in self.specs]
        return (
            _RAGGED in kinds
            and _OBJECT not in kinds
            and self.container != _LIST
            and all(self.fields[number].handable for number in range(self.count))
        )

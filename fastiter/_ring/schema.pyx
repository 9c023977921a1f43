"""The layout of rows in a slot, and the writers that put examples into it.

A `Schema` holds the examples' container, and each field's kind, dtype and shape. Fields of equal
shape are stored in columns; ragged arrays in the slot's heap, with a column of offsets and shapes;
texts and packed objects in the heap, with a column of offsets and lengths. An example that does not
fit is spilled: packed as a whole. `fastiter._ring.row_reader` reads the rows again.
"""

import sys

import numpy

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.mem cimport PyMem_Free
from cpython.object cimport PyObject, PyObject_RichCompareBool, Py_EQ
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_TYPE, Py_XDECREF, Py_XINCREF
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._clib.csrc cimport *
from fastiter._clib.memory cimport NOGIL_BYTES, zeroed
from fastiter._clib.numpy_api cimport (
    bytes_of, descr_of, dims_of, equivalent, is_contiguous, ndim_of, scalar_into, strides_of)
from fastiter._clib.tensors cimport fi_dl_tensor, fi_torch_describes, fi_torch_learn, fi_torch_type
from fastiter._ring.arena cimport WorkerRing, as_packed

from fastiter._util.array_subtypes import array_of
from fastiter._util.loaded import loaded

cnp.import_array()

cdef extern from "Python.h":
    PyObject **items_of "&PyTuple_GET_ITEM"(object example, int first)
    void *type_of "Py_TYPE"(PyObject *value)
    bint PyUnicode_CheckExact(object text)
    int PyUnicode_KIND(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    void *PyUnicode_DATA(object text)

cdef enum:
    ALIGNMENT = 64

cdef object MISSING = object()
cdef dict TENSOR_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLPack's, by NumPy's kinds
cdef tuple NUMBERS = tuple(map(numpy.dtype, (numpy.int64, numpy.float64, numpy.bool_)))


cpdef int dtype_traits(cnp.dtype dtype) except -1:
    """Permitted uses of the bytes of a dtype's elements, as a sum of flags.

    COPYABLE: They mean the same in another process, or in another array of this dtype. The dtype is
        one of NumPy's own, without objects, and without metadata, which a column would lose.
    STACKABLE: Also, numpy.concatenate copies them and keeps the dtype. It makes the byte order
        native and repacks structures. Elements of no bytes are left to NumPy, whose constructors
        give them one.
    NUMBER: Also, they are numbers or bool, in any byte order.
    """
    cdef int num = dtype.type_num
    cdef int traits = COPYABLE
    if not 0 <= num <= cnp.NPY_FLOAT16 or dtype.metadata is not None or (
            num == cnp.NPY_OBJECT or num == cnp.NPY_VOID and dtype.hasobject):
        return 0
    if num <= cnp.NPY_CLONGDOUBLE or num == cnp.NPY_FLOAT16:
        traits |= NUMBER
    if cnp.PyArray_ISNBO(dtype.byteorder) and num != cnp.NPY_VOID and dtype.itemsize > 0:
        traits |= STACKABLE
    return traits


cpdef bint is_plain_number(cnp.dtype dtype) except -1:
    """Whether numpy.concatenate copies the bytes of such numbers, in arrays or by themselves."""
    return dtype_traits(dtype) & (STACKABLE | NUMBER) == STACKABLE | NUMBER


cdef class Schema:
    """Content and layout of the rows of a slot.

    Parameters
    ----------
    keys : the keys of a DICT, in order; the type of a NAMED; the outermost node of a TREE; else None.
        A node is (container, its keys or type, children), a child None for a field, or a node.
    specs : per field (kind, dtype or None, shape or number of dimensions). Objects that have both are
        lists of arrays, which are an array of that number of dimensions when padded together.
    rows : rows that a slot has room for.
    subtypes : types of the values of ARRAY and RAGGED fields that are no plain arrays, by the
        numbers of the fields. They lie in the slot as arrays do.
    """

    def __cinit__(self, int container, keys, specs, Py_ssize_t rows, subtypes=None):
        cdef Field *f
        cdef uint64_t end = 0
        self.container = container
        self.type = keys if container == NAMED else None
        self.tree = keys if container == TREE else None
        self.keys = None if container != DICT else tuple(
            sys.intern(key) if type(key) is str else key for key in keys)
        self.specs = tuple(specs)
        self.subtypes = dict(subtypes or {})
        self.rows = rows
        self.count = len(self.specs)
        if self.count > MOST_FIELDS:
            raise ValueError(f"{self.count} fields in an example; {MOST_FIELDS} can be columns")
        self.dtypes = []
        self.fields = <Field *>zeroed(self.count, sizeof(Field))
        for number, (kind, dtype, shape) in enumerate(self.specs):
            f = &self.fields[number]
            f.kind = kind
            f.subtype = self.subtypes.get(number, 0)
            f.array_type = <void *>(numpy.memmap if f.subtype == MEMMAP else numpy.ndarray)
            if kind in (INT, FLOAT, BOOL):
                dtype = NUMBERS[kind - INT]
            elif dtype is not None and dtype.kind != "V":
                # What pickle makes is equal to NumPy's own, which arrays have; identity is faster.
                dtype = numpy.dtype(dtype.str)
            self.dtypes.append(dtype)
            if dtype is not None:
                f.descr = <cnp.PyArray_Descr *>dtype
                f.itemsize = dtype.itemsize
                f.is_stackable = dtype_traits(dtype) & STACKABLE
                f.timed = dtype.kind in "mM"
                f.scalar = <cnp.PyTypeObject *>dtype.type
                # A complex tensor may be conjugated lazily.
                f.tensor_code = TENSOR_CODES.get(dtype.kind, -1)
            f.stride = f.itemsize
            if kind == ARRAY:
                f.ndim = len(shape)
                for axis in range(f.ndim):
                    f.dims[axis] = shape[axis]
                    f.stride *= f.dims[axis]
            elif kind == RAGGED:
                f.ndim = shape
                f.stride = (1 + f.ndim) * sizeof(int64_t)
            elif kind in (OBJECT, TEXT):
                f.ndim = shape or 0
                f.stride = (1 + max(f.ndim, 1)) * sizeof(int64_t)
            self.row_bytes += f.stride
            f.offset = end
            # In the heap's columns one row more: the batch converter's entry for the whole field.
            end = fi_align_up(
                end + <uint64_t>f.stride * (rows + (kind in (RAGGED, OBJECT, TEXT))), ALIGNMENT)
        self.bytes = end
        self.has_lists = any(self.is_joined(number) for number in range(self.count))

    def __dealloc__(self):
        PyMem_Free(self.fields)

    def __reduce__(self):
        return Schema, self.parts

    @property
    def parts(self):
        """The arguments that make an equal schema."""
        keys = self.type or self.tree or self.keys
        return self.container, keys, self.specs, self.rows, self.subtypes

    def is_joined(self, Py_ssize_t number):
        """Whether a field holds ragged arrays, or objects that are lists of arrays."""
        return self.fields[number].kind == RAGGED or (
            self.fields[number].kind == OBJECT and self.fields[number].ndim > 0)

    def can_be_columns(self, as_list):
        """Whether every field can become an array; or, where `as_list` says so, a list."""
        return self.container not in (LIST, TREE) and all(
            is_list or self.fields[number].is_stackable for number, is_list in enumerate(as_list))

    @property
    def has_ragged_fields(self):
        """Whether every field can become an array, and a ragged one has to be padded for it."""
        return self.has_lists and self.can_be_columns([False] * self.count)


# ---- writers -------------------------------------------------------------------------------------


cdef class RowSink:
    """Takes the rows of a batch that a `_fetch.reader.DatasetReader` reads, in one thread."""

    cdef bint begin_row(self, uint32_t row) noexcept:
        """Whether the row is to be read, of which `index` then is the dataset index."""
        return False

    cdef int put_example(self, uint32_t row, PyObject *taken) except -1:
        """Takes over an example, and the reference to it."""
        raise NotImplementedError

    cdef int fail_row(self, uint32_t row, object error) except -1:
        """Takes the exception of a row; or raises it, where it ends the batch."""
        raise NotImplementedError

    cdef object call(self, object getter, object rows, list indices):
        """The list of examples at some indices, by a call of the dataset."""
        raise NotImplementedError

    cdef uint32_t gather(self, object reader, uint32_t first, uint32_t count) except? 0xFFFFFFFF:
        """Has a `ColumnReader` write rows, where there are columns like its own; returns how many
        of them, from the first on, need not be read."""
        return 0


cdef class ColumnWriter(RowSink):
    """Writes examples into rows of columns; used by one thread at a time.

    A subclass sets `columns`, and defines how large arrays are copied (`copy_large`), and where
    values go that are not stored in a column (`write_other`).
    """

    def __dealloc__(self):
        ColumnWriter.use_schema(self, None)

    cdef void use_schema(self, Schema schema) noexcept:
        """Writes examples of another schema from now on."""
        cdef Py_ssize_t number
        for number in range(MOST_FIELDS):
            Py_XDECREF(<PyObject *>self.last_dtypes[number])
            self.last_dtypes[number] = NULL
        self.schema = schema

    @cython.final
    cdef int write(self, Py_ssize_t row, object example) except -1:
        """1: the example is in its row. 0: it does not fit the schema."""
        cdef PyObject *values[MOST_FIELDS]
        cdef Schema schema = self.schema
        cdef Py_ssize_t number
        if schema.container == TUPLE or schema.container == NAMED:
            if schema.container == TUPLE:
                if not PyTuple_CheckExact(example):
                    return 0
            elif <PyObject *>Py_TYPE(example) != <PyObject *>schema.type:
                return 0
            if PyTuple_GET_SIZE(example) != schema.count:
                return 0
            return self.write_fields(row, items_of(example, 0))
        if schema.container == BARE:
            values[0] = <PyObject *>example
            return self.write_fields(row, values)
        if schema.container == TREE:
            return self.write_tree(row, example)
        # Code that pickles a field, or another thread, may change a list or a dict meanwhile.
        if not self.hold(example, values):
            return 0
        try:
            return self.write_fields(row, values)
        finally:
            for number in range(schema.count):
                Py_DECREF(<object>values[number])

    @cython.final
    cdef int hold(self, object example, PyObject **values) except -1:
        """Takes references to the values of a list or a dict; 0, and none, if they do not fit."""
        cdef Py_ssize_t number
        cdef int fits
        with cython.critical_section(example):  # another thread may change it
            fits = find_values(self.schema, example, values)
            for number in range(self.schema.count if fits else 0):
                Py_XINCREF(values[number])
        return fits

    @cython.final
    cdef int write_tree(self, Py_ssize_t row, object example) except -1:
        cdef PyObject *values[MOST_FIELDS]
        cdef Py_ssize_t number, count = 0
        try:
            if not hold_leaves(self.schema.tree, example, values, &count):
                return 0
            return self.write_fields(row, values)
        finally:
            for number in range(count):
                Py_DECREF(<object>values[number])

    @cython.final
    cdef int write_fields(self, Py_ssize_t row, PyObject **values) except -1:
        cdef Py_ssize_t number
        cdef PyObject *value
        cdef char *place
        cdef Field *f
        cdef fi_dl_tensor tensor
        if self.given is not None and self.mixes(row, values):
            self.is_mixed = True
            return 0
        for number in range(self.schema.count):
            f = &self.schema.fields[number]
            value = values[number]
            if self.columns[number] == NULL:
                if not self.write_other(number, row, value):
                    return 0
                continue
            place = self.columns[number] + f.stride * row
            if f.kind != ARRAY:
                if not write_number(f, place, value):
                    return 0
                continue
            if f.subtype == TENSOR:
                if self.describes(f, value, &tensor):
                    if not has_shape(tensor.shape, f):
                        return 0
                    self.copy_bytes(place, tensor.data, value, f.stride, self.uncached)
                    continue
                array = array_of(<object>value)  # keeps it alive during the copy
                value = <PyObject *>array
            if not self.is_array_of(number, value) or not (
                    has_shape(<int64_t *>dims_of(<cnp.PyArrayObject *>value), f)):
                return 0
            self.copy_array(f, place, value, f.stride, self.uncached)
        return 1

    cdef bint mixes(self, Py_ssize_t row, PyObject **values) except -1:
        """Whether to write the values may change one that is still to be written."""
        return False

    @cython.final
    cdef bint describes(self, Field *f, PyObject *value, fi_dl_tensor *tensor):
        """Whether the value is a tensor of the field's dtype and number of dimensions whose elements
        can be copied from where they lie. If not, `array_of` may still make an array of it."""
        if not self.copies_at_once:  # else its memory may change meanwhile
            return False
        if fi_torch_type == NULL:
            tensor_class = loaded("torch", "Tensor")
            if tensor_class:
                fi_torch_learn(tensor_class)
        return fi_torch_describes(value, tensor) and tensor.ndim == f.ndim and (
            tensor.code == f.tensor_code and tensor.bits == 8 * f.itemsize)

    @cython.final
    cdef bint is_array_of(self, Py_ssize_t number, PyObject *value):
        """Whether the value is an array of exactly the field's type, its dtype and its number of
        dimensions."""
        cdef Field *f = &self.schema.fields[number]
        cdef cnp.PyArray_Descr *descr
        if type_of(value) != f.array_type or ndim_of(<cnp.PyArrayObject *>value) != f.ndim:
            return False
        descr = descr_of(<cnp.PyArrayObject *>value)
        if descr == f.descr or descr == self.last_dtypes[number]:
            return True
        if not equivalent(descr, f.descr):
            return False
        Py_XINCREF(<PyObject *>descr)
        Py_XDECREF(<PyObject *>self.last_dtypes[number])
        self.last_dtypes[number] = descr
        return True

    @cython.final
    cdef int copy_array(self, Field *f, char *place, PyObject *array, Py_ssize_t size,
                        bint uncached) except -1:
        """Copies an array of the field's dtype, C-contiguous or not, of `size` bytes."""
        cdef cnp.PyArrayObject *source = <cnp.PyArrayObject *>array
        cdef const char *data
        cdef int64_t dims[MOST_NDIM]
        cdef int64_t strides[MOST_NDIM]
        cdef int axis
        if not is_contiguous(source):
            for axis in range(f.ndim):  # another thread may change them
                dims[axis], strides[axis] = dims_of(source)[axis], strides_of(source)[axis]
            data = bytes_of(source)
            if size < NOGIL_BYTES:
                fi_copy_strided(place, data, f.ndim, dims, strides, f.itemsize)
            else:
                with nogil:
                    fi_copy_strided(place, data, f.ndim, dims, strides, f.itemsize)
        else:
            self.copy_bytes(place, bytes_of(source), array, size, uncached)
        return 1

    @cython.final
    cdef int copy_bytes(self, char *place, const char *source, PyObject *owner, Py_ssize_t size,
                        bint uncached) except -1:
        """Copies elements that lie one after the other; `owner` keeps them alive."""
        if source == place:
            return 0
        if size < self.least_large:
            memcpy(place, source, size)
        else:
            self.copy_large(place, source, owner, size, uncached)
        return 0

    cdef int copy_large(self, char *place, const char *source, PyObject *owner, Py_ssize_t size,
                        bint uncached) except -1:
        """As `copy_bytes`, at least `least_large` bytes."""
        raise NotImplementedError

    cdef int write_other(self, Py_ssize_t number, Py_ssize_t row, PyObject *value) except -1:
        """Stores the value of a field that has no column here; 0 if it does not fit the schema."""
        raise NotImplementedError


cdef class SlotWriter(ColumnWriter):
    """Writes examples into the slot that a worker process has, those that need it into the heap."""

    def __cinit__(self, WorkerRing end, *_):
        self.end = end
        self.columns = self.places
        self.least_large = FI_UNCACHED_LEAST
        self.copies_at_once = True

    cdef void use_schema(self, Schema schema) noexcept:
        ColumnWriter.use_schema(self, schema)
        self.payload = NULL

    @cython.final
    cdef int write_into_slot(self, Py_ssize_t row, object example) except -1:
        """As `write`, into the current slot. 0 also if there is no schema."""
        if self.schema is None:
            return 0
        self.use_slot()
        return self.write(row, example)

    @cython.final
    cdef int use_slot(self) except -1:
        """Writes into the current slot from now on. There is a schema."""
        cdef Py_ssize_t number
        cdef Field *f
        cdef WorkerRing end = self.end
        cdef uint64_t size = self.schema.bytes
        if self.payload and fi_slot_is_at(end.worker.ring, end.claim.slot, self.payload, size):
            return 0
        self.payload = end.payload(size)
        for number in range(self.schema.count):
            f = &self.schema.fields[number]
            self.places[number] = (
                NULL if f.kind in (RAGGED, OBJECT, TEXT) else self.payload + f.offset)
        return 0

    cdef int copy_large(self, char *place, const char *source, PyObject *owner, Py_ssize_t size,
                        bint uncached) except -1:
        if size < NOGIL_BYTES:
            fi_copy(place, source, size, uncached)
        else:
            with nogil:
                fi_copy(place, source, size, uncached)
        return 0

    cdef int write_other(self, Py_ssize_t number, Py_ssize_t row, PyObject *value) except -1:
        """Puts a ragged array, or an object that is packed, into the slot's heap."""
        cdef Field *f = &self.schema.fields[number]
        cdef int64_t *entry = entry_of(f, self.payload, row)
        cdef Py_ssize_t size
        cdef char *place
        cdef int axis
        cdef fi_dl_tensor tensor
        cdef const int64_t *dims
        cdef bint is_described = False
        if f.kind == OBJECT:
            entry[0] = self.end.pack(
                as_packed(<object>value), <uint32_t>row, FI_PACKED_FIELD, <uint64_t *>&entry[1])
            return 1
        if f.kind == TEXT:
            return self.write_text(entry, <object>value)
        if f.subtype == TENSOR:
            is_described = self.describes(f, value, &tensor)
            if not is_described:
                array = array_of(<object>value)  # keeps it alive during the copy
                value = <PyObject *>array
        if is_described:
            dims = tensor.shape
        elif self.is_array_of(number, value):
            dims = <const int64_t *>dims_of(<cnp.PyArrayObject *>value)
        else:
            return 0
        size = f.itemsize
        for axis in range(f.ndim):
            size *= dims[axis]
        place = self.end.take_array(entry, dims, f.ndim, size)
        if is_described:
            self.copy_bytes(place, tensor.data, value, size, False)
        else:
            self.copy_array(f, place, value, size, False)
        return 1

    cdef int write_text(self, int64_t *entry, object value) except -1:
        """Puts the characters of a str, or a bytes object, into the slot's heap."""
        cdef Py_ssize_t size
        cdef const char *source
        cdef int width = 0  # bytes of a character; 0 for bytes
        if PyUnicode_CheckExact(value):
            width = PyUnicode_KIND(value)
            size = PyUnicode_GET_LENGTH(value) * width
            source = <const char *>PyUnicode_DATA(value)
        elif PyBytes_CheckExact(value):
            size = PyBytes_GET_SIZE(value)
            source = PyBytes_AS_STRING(value)
        else:
            return 0
        entry[0] = <int64_t>self.end.heap_take(size)
        entry[1] = size * 8 + width
        memcpy(self.end.place(entry[0]), source, size)
        return 1


cdef bint has_keys(dict example, tuple keys) except -1:
    """Whether a dict has these keys, in type and order, too: a batch has its first example's."""
    cdef Py_ssize_t number = 0
    if PyDict_Size(example) != PyTuple_GET_SIZE(keys):
        return False
    for key in example:
        known = keys[number]
        if key is not known and (type(key) is not type(known) or key != known):
            return False
        number += 1
    return True


cdef int hold_leaves(tuple node, object example, PyObject **values, Py_ssize_t *count) except -1:
    """Appends references to the leaves of an example to `values`; 0 if it is not of this tree."""
    cdef int container = <int>node[0]
    cdef tuple children = <tuple>node[2]
    cdef Py_ssize_t number, length = PyTuple_GET_SIZE(children)
    if container == DICT:
        if not PyDict_CheckExact(example) or not has_keys(<dict>example, <tuple>node[1]):
            return 0
    elif container == LIST:
        if not PyList_CheckExact(example) or len(<list>example) != length:
            return 0
    elif container == TUPLE:
        if not PyTuple_CheckExact(example) or PyTuple_GET_SIZE(example) != length:
            return 0
    elif <PyObject *>Py_TYPE(example) != <PyObject *>node[1]:
        return 0
    for number in range(length):
        if container == DICT:
            value = (<dict>example).get((<tuple>node[1])[number], MISSING)
        elif container == LIST:
            value = (<list>example)[number] if number < len(<list>example) else MISSING
        else:
            value = <object>PyTuple_GET_ITEM(example, number)
        if value is MISSING:
            return 0
        child = <object>PyTuple_GET_ITEM(children, number)
        if child is not None:
            if not hold_leaves(<tuple>child, value, values, count):
                return 0
        else:
            Py_INCREF(value)
            values[count[0]] = <PyObject *>value
            count[0] += 1
    return 1


cdef int find_values(Schema schema, object example, PyObject **values) except -1:
    """Borrowed references to the values of a list or a dict; 0 if they do not fit the schema."""
    cdef Py_ssize_t number, place = 0
    cdef PyObject *key
    cdef PyObject *known
    if schema.container == LIST:
        if not PyList_CheckExact(example) or PyList_GET_SIZE(example) != schema.count:
            return 0
        for number in range(schema.count):
            values[number] = <PyObject *>PyList_GET_ITEM(example, number)
        return 1
    if not PyDict_CheckExact(example) or PyDict_Size(example) != schema.count:
        return 0
    for number in range(schema.count):
        if not PyDict_Next(example, &place, &key, &values[number]):
            return 0
        known = <PyObject *>PyTuple_GET_ITEM(schema.keys, number)
        # Keys are strings and integers: to compare two of one type runs no code of the user's.
        if key != known and not (type_of(key) == type_of(known) and
                PyObject_RichCompareBool(<object>key, <object>known, Py_EQ)):
            return 0
    return 1


cdef bint has_shape(const int64_t *dims, Field *f) noexcept:
    cdef int axis
    for axis in range(f.ndim):
        if dims[axis] != f.dims[axis]:
            return False
    return True


cdef int write_number(Field *f, char *place, PyObject *value) except -1:
    """Writes a number of exactly the field's type; 0 if the value is not one."""
    cdef int overflow = 0
    if f.kind == INT:
        if not PyLong_CheckExact(<object>value):
            return 0
        (<int64_t *>place)[0] = PyLong_AsLongLongAndOverflow(<object>value, &overflow)
        return overflow == 0
    if f.kind == FLOAT:
        if not PyFloat_CheckExact(<object>value):
            return 0
        (<double *>place)[0] = PyFloat_AS_DOUBLE(<object>value)
        return 1
    if f.kind == BOOL:
        if <object>value is not True and <object>value is not False:
            return 0
        (<uint8_t *>place)[0] = <object>value is True
        return 1
    if type_of(value) != <void *>f.scalar or (
            f.timed and (<object>value).dtype != <object>f.descr):
        return 0
    scalar_into(value, place)
    return 1

"""Writes an example into its row of the columns of a batch.

Worker processes and worker threads share this: the columns lie in a slot of shared memory, or in
arrays of this process.
"""

cimport cython
cimport numpy as cnp
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject, PyObject_RichCompareBool, Py_EQ
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_TYPE, Py_XDECREF, Py_XINCREF
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from fastiter._clib.numpy_api cimport (
    PyArray_Type, bytes_of, copy_into, descr_of, dims_of, equivalent, is_contiguous, ndim_of,
    new_array, scalar_into)
from fastiter._ring.row_reader cimport (
    FIELD_LIMIT, _ARRAY, _BARE, _BOOL, _FLOAT, _INT, _LIST, _NAMED, _TENSOR, _TUPLE, Field, Schema)
from fastiter._util.torch_tensors import array_of

cnp.import_array()

cdef extern from "Python.h":
    PyObject **items_of "&PyTuple_GET_ITEM"(object example, int first)
    void *type_of "Py_TYPE"(PyObject *value)


cdef class ColumnWriter:
    """Writes examples into rows of columns; used by one thread at a time.

    A subclass sets `columns`, and says how large arrays are copied (`copy_large`) and what becomes of
    values that are not stored in a column (`write_other`).
    """

    def __dealloc__(self):
        cdef Py_ssize_t number
        for number in range(FIELD_LIMIT):
            Py_XDECREF(<PyObject *>self.last_dtypes[number])

    cdef void use_schema(self, Schema schema) noexcept:
        """Writes examples of another schema from now on."""
        cdef Py_ssize_t number
        for number in range(FIELD_LIMIT):
            Py_XDECREF(<PyObject *>self.last_dtypes[number])
            self.last_dtypes[number] = NULL
        self.schema = schema

    @cython.final
    cdef int write(self, Py_ssize_t row, object example) except -1:
        """1: the example is in its row. 0: it does not fit the schema."""
        cdef PyObject *values[FIELD_LIMIT]
        cdef Schema schema = self.schema
        cdef Py_ssize_t number
        if schema.container == _TUPLE or schema.container == _NAMED:
            if schema.container == _TUPLE:
                if not PyTuple_CheckExact(example):
                    return 0
            elif <PyObject *>Py_TYPE(example) != <PyObject *>schema.type:
                return 0
            if PyTuple_GET_SIZE(example) != schema.count:
                return 0
            return self.write_fields(row, items_of(example, 0))
        if schema.container == _BARE:
            values[0] = <PyObject *>example
            return self.write_fields(row, values)
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
    cdef int write_fields(self, Py_ssize_t row, PyObject **values) except -1:
        cdef Py_ssize_t number
        cdef PyObject *value
        cdef char *place
        cdef Field *f
        for number in range(self.schema.count):
            f = &self.schema.fields[number]
            value = values[number]
            if self.columns[number] == NULL:
                if not self.write_other(number, row, value):
                    return 0
                continue
            place = self.columns[number] + f.stride * row
            if f.kind != _ARRAY:
                if not write_number(f, place, value):
                    return 0
                continue
            if f.subtype == _TENSOR:
                array = array_of(<object>value)  # keeps it alive during the copy
                value = <PyObject *>array
            if not self.is_array_of(number, value) or not has_shape(value, f):
                return 0
            self.copy_array(f, place, value, f.stride, self.uncached)
        return 1

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
        if not is_contiguous(source):
            Py_INCREF(<object>f.descr)  # the constructor takes it over
            target = new_array(&PyArray_Type, f.descr, f.ndim, dims_of(source), NULL, place,
                               cnp.NPY_ARRAY_CARRAY, NULL)
            copy_into(<cnp.PyArrayObject *>target, source)
        elif size < self.least_large:
            memcpy(place, bytes_of(source), size)
        else:
            self.copy_large(place, array, size, uncached)
        return 1

    cdef int copy_large(self, char *place, PyObject *array, Py_ssize_t size,
                        bint uncached) except -1:
        """Copies a C-contiguous array of at least `least_large` bytes."""
        raise NotImplementedError

    cdef int write_other(self, Py_ssize_t number, Py_ssize_t row, PyObject *value) except -1:
        """Stores the value of a field that has no column here; 0 if it does not fit the schema."""
        raise NotImplementedError


cdef int find_values(Schema schema, object example, PyObject **values) except -1:
    """Borrowed references to the values of a list or a dict; 0 if they do not fit the schema."""
    cdef Py_ssize_t number, place = 0
    cdef PyObject *key
    cdef PyObject *known
    if schema.container == _LIST:
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


cdef bint has_shape(PyObject *array, Field *f) noexcept:
    cdef int axis
    for axis in range(f.ndim):
        if dims_of(<cnp.PyArrayObject *>array)[axis] != f.dims[axis]:
            return False
    return True


cdef int write_number(Field *f, char *place, PyObject *value) except -1:
    """Writes a number of exactly the field's type; 0 if the value is not one."""
    cdef int overflow = 0
    if f.kind == _INT:
        if not PyLong_CheckExact(<object>value):
            return 0
        (<int64_t *>place)[0] = PyLong_AsLongLongAndOverflow(<object>value, &overflow)
        return overflow == 0
    if f.kind == _FLOAT:
        if not PyFloat_CheckExact(<object>value):
            return 0
        (<double *>place)[0] = PyFloat_AS_DOUBLE(<object>value)
        return 1
    if f.kind == _BOOL:
        if <object>value is not True and <object>value is not False:
            return 0
        (<uint8_t *>place)[0] = <object>value is True
        return 1
    if type_of(value) != <void *>f.scalar or (
            f.timed and (<object>value).dtype != <object>f.descr):
        return 0
    scalar_into(value, place)
    return 1

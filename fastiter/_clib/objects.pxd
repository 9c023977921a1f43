# CPython's objects by their fields, for loops over many of them. Borrowed pointers only: nothing
# here counts a reference or runs Python code.

from cpython.object cimport PyObject

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030B0000
    #include "longintrepr.h"
    #endif

    /* Whether an exact int has at most one digit, and its value then. */
    #if PY_VERSION_HEX >= 0x030C0000
    #define fi_int_is_small(object) PyUnstable_Long_IsCompact((PyLongObject *)(object))
    #define fi_int_value(object) PyUnstable_Long_CompactValue((PyLongObject *)(object))
    #else
    #define fi_int_is_small(object) ((size_t)(Py_SIZE(object) + 1) <= 2)
    #define fi_int_value(object) (Py_SIZE(object) == 0 ? 0 : \
        Py_SIZE(object) * (Py_ssize_t)((PyLongObject *)(object))->ob_digit[0])
    #endif

    /* Without the GIL another thread may change a list in the middle of any loop over it. */
    #ifdef Py_GIL_DISABLED
    #define FI_LISTS_CHANGE 1
    #else
    #define FI_LISTS_CHANGE 0
    #endif

    #define fi_type(object) ((PyObject *)Py_TYPE(object))
    /* Whether obj[i] is tuple's own: true of named tuples too. */
    #define fi_indexed_as_tuple(object) (PyTuple_Check(object) && Py_TYPE(object)->tp_as_mapping \
        && Py_TYPE(object)->tp_as_mapping->mp_subscript \
           == PyTuple_Type.tp_as_mapping->mp_subscript)
    /* A new object of a tuple type, made past its constructor; its items are still NULL. */
    #define fi_new_tuple(type, count) \
        ((PyTypeObject *)(type))->tp_alloc((PyTypeObject *)(type), count)
    """
    object fi_new_tuple(object type, Py_ssize_t count)
    bint fi_int_is_small(PyObject *object) nogil
    Py_ssize_t fi_int_value(PyObject *object) nogil
    const bint FI_LISTS_CHANGE
    void fi_prefetch "__builtin_prefetch"(const void *address) nogil
    PyObject *fi_type(PyObject *object) nogil
    bint fi_indexed_as_tuple(PyObject *object) nogil

cdef extern from "Python.h":
    void Py_INCREF(PyObject *object)
    void Py_DECREF(PyObject *object)
    bint PyTuple_CheckExact(PyObject *object)
    bint PyList_CheckExact(PyObject *object)
    bint PyDict_CheckExact(PyObject *object)
    bint PyUnicode_CheckExact(PyObject *object)
    int PyUnicode_Compare(PyObject *left, PyObject *right)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *items)
    Py_ssize_t PyList_GET_SIZE(PyObject *items)
    Py_ssize_t PyDict_Size(PyObject *items)
    bint PyDict_Next(PyObject *items, Py_ssize_t *place, PyObject **key, PyObject **value)
    PyObject *PyTuple_GET_ITEM(PyObject *items, Py_ssize_t i)
    PyObject *PyList_GET_ITEM(PyObject *items, Py_ssize_t i)
    double PyFloat_AS_DOUBLE(PyObject *number)
    long long PyLong_AsLongLongAndOverflow(PyObject *number, int *overflow)
    PyObject *Py_True
    PyObject *Py_False

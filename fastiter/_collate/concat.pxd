from cpython.object cimport PyObject

from fastiter._clib.borrowed cimport Table


cdef bint is_delivered(PyObject *value) noexcept
# One field of a table as an array, `out` if that is not None; None if it is not joined here.
cdef object stack_field(Table *table, Py_ssize_t field, object out)

from cpython.object cimport PyObject

from fastiter._clib.borrowed cimport Table


# Whether it lies in the shared memory of a batch, of which a whole column may be had.
cdef bint is_delivered(PyObject *value) noexcept
# One field of a table as an array, `out` if that is not None; None for what has to be joined in
# another way.
cdef object stack_field(Table *table, Py_ssize_t field, object out)

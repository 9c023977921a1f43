# Tuples of any type, named ones too, made and read past their constructors and their __getitem__.

cdef extern from *:
    """
    /* A new object of a tuple type, its items still NULL. */
    static PyObject *fi_new_tuple(PyObject *type, Py_ssize_t count)
    {
        return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, count);
    }
    /* Whether an object, exact or not, is indexed as a tuple is. */
    static int fi_is_tuple(PyObject *object)
    {
        return PyTuple_Check(object) && Py_TYPE(object)->tp_as_mapping &&
               Py_TYPE(object)->tp_as_mapping->mp_subscript ==
                   PyTuple_Type.tp_as_mapping->mp_subscript;
    }
    """
    object fi_new_tuple(object type, Py_ssize_t count)
    bint fi_is_tuple(object example)

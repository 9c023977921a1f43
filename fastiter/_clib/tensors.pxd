# Tensors of torch, read by C functions: those of the table that DLPack has a library offer to others
# (`__dlpack_c_exchange_api__`), and getters of torch's class. torch's headers are not needed.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    /* DLPack 1, as far as it is read here. */
    typedef struct {
        char *data;
        int32_t device_type, device_id, ndim;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } fi_dl_tensor;

    typedef struct fi_dl_table {
        uint32_t major, minor;
        struct fi_dl_table *older;
        void *others[3];
        int (*describe)(void *tensor, fi_dl_tensor *found);
    } fi_dl_table;

    enum { FI_DL_FLOAT = 2, FI_DL_BFLOAT = 4, FI_DL_COMPLEX = 5 };

    static struct {
        PyObject *type; /* torch's Tensor; NULL before torch is loaded */
        int (*describe)(void *tensor, fi_dl_tensor *found); /* NULL if torch has no such function */
        getter requires_grad;
        void *requires_grad_closure;
        PyObject *is_neg;
    } fi_torch;

    static void fi_torch_learn(PyObject *type)
    {
        PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
        PyObject *gradient = PyObject_GetAttrString(type, "requires_grad");
        PyObject *is_neg = PyObject_GetAttrString(type, "is_neg");
        fi_dl_table *table = NULL;
        if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
            table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        while (table != NULL && table->major > 1)
            table = table->older;
        if (table != NULL && table->major == 1 && is_neg != NULL && gradient != NULL
            && Py_IS_TYPE(gradient, &PyGetSetDescr_Type)) {
            const PyGetSetDef *getset = ((PyGetSetDescrObject *)gradient)->d_getset;
            fi_torch.describe = table->describe;
            fi_torch.requires_grad = getset->get;
            fi_torch.requires_grad_closure = getset->closure;
        }
        PyErr_Clear();
        Py_XDECREF(capsule);
        Py_XDECREF(gradient); /* the class has it, as long as the process lives */
        fi_torch.is_neg = is_neg;
        Py_INCREF(type);
        fi_torch.type = type;
    }

    /* Whether a getter or method of torch gave False. */
    static int fi_torch_denies(PyObject *answer)
    {
        int denied = answer == Py_False;
        if (answer == NULL)
            PyErr_Clear();
        Py_XDECREF(answer);
        return denied;
    }

    #if PY_VERSION_HEX >= 0x030D0000 && !defined(Py_GIL_DISABLED)
    /* A visit passes the dictionary, or if there is none, each attribute's value. 2: it is a dict. */
    static int fi_visit_attribute(PyObject *found, void *Py_UNUSED(context))
    {
        return PyDict_CheckExact(found) ? 2 : 1;
    }
    #endif

    /* Whether an object has attributes of its own. CPython makes the dictionary that holds them when
     * it is first asked for: where there is none yet, it is not, or each tensor would get one. */
    static int fi_has_attributes(PyObject *value)
    {
    #if PY_VERSION_HEX >= 0x030D0000 && !defined(Py_GIL_DISABLED)
        int has_managed = (Py_TYPE(value)->tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0;
        int found = has_managed ? PyObject_VisitManagedDict(value, fi_visit_attribute, NULL) : 2;
        if (found != 2)
            return found;
    #else
        PyObject **place = _PyObject_GetDictPtr(value);
        if (place != NULL && *place == NULL)
            return 0;
    #endif
        PyObject *attributes = PyObject_GenericGetDict(value, NULL);
        int has_some = attributes == NULL || PyDict_GET_SIZE(attributes) > 0;
        Py_XDECREF(attributes);
        return has_some;
    }

    /* Whether the elements of a tensor lie one after the other in the host's memory, and are its
     * values: not if it requires gradients, has attributes, or is negated lazily. */
    static int fi_torch_describes(PyObject *value, fi_dl_tensor *found)
    {
        if (fi_torch.describe == NULL || (PyObject *)Py_TYPE(value) != fi_torch.type)
            return 0;
        if (fi_has_attributes(value) || fi_torch.describe(value, found) != 0) {
            PyErr_Clear(); /* it is sparse, for example */
            return 0;
        }
        int64_t step = 1;
        for (int axis = found->ndim - 1; axis >= 0; axis--) {
            if (found->shape[axis] != 1 && found->strides && found->strides[axis] != step)
                return 0;
            step *= found->shape[axis];
        }
        found->data += found->byte_offset;
        if (found->device_type != 1 || found->lanes != 1 || step <= 0)
            return 0;
        /* Only floating point has gradients, and parts of a conjugate, which are negated lazily. */
        if (found->code != FI_DL_FLOAT && found->code != FI_DL_BFLOAT)
            return found->code != FI_DL_COMPLEX;
        return fi_torch_denies(fi_torch.requires_grad(value, fi_torch.requires_grad_closure))
            && fi_torch_denies(PyObject_CallOneArg(fi_torch.is_neg, value));
    }
    """
    ctypedef struct fi_dl_tensor:
        char *data
        int ndim
        uint8_t code
        uint8_t bits
        int64_t *shape
    PyObject *fi_torch_type "fi_torch.type"
    void fi_torch_learn(object type)
    bint fi_torch_describes(PyObject *value, fi_dl_tensor *found)

"""What a parent makes of the rows in a taken slot: examples, columns, and columns of examples.

The arrays are views whose base is the slot's `Lease`. Numbers that come from shared memory are
checked before anything is made of them; the schema's own are trusted.
"""

cimport cython
cimport numpy as cnp
from cpython.dict cimport PyDict_CheckExact, PyDict_Next
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_FromLongLong
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport (
    PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memmove

from fastiter._collate.concat cimport is_delivered, stack_field
from fastiter._clib.numpy_api cimport (
    PyArray_Type, base_of, bytes_of, descr_of, dims_of, equivalent, is_contiguous, ndim_of,
    new_array, scalar_of, set_base)
from fastiter._ring.lease cimport Lease
from fastiter._ring.row_reader cimport (
    FIELD_LIMIT, MOST_NDIM, Field, Schema, _ARRAY, _BARE, _BOOL, _DICT, _FLOAT, _INT, _LIST, _NAMED,
    _OBJECT, _RAGGED, _SCALAR, _TUPLE)
from fastiter._clib.csrc cimport fi_place_seed
from fastiter._clib.ring_words import PACKED_FIELD as _PACKED_FIELD
from fastiter._clib.borrowed cimport (
    AHEAD, FI_LISTS_CHANGE, Table, drop, fi_prefetch, rows_of, table_of_fields, table_of_one)
from fastiter._util.array_subtypes import dressed
from fastiter._ring.serialization import unpack
from fastiter._clib.tuples cimport fi_is_tuple, fi_new_tuple
from fastiter.errors import OverwrittenError

cnp.import_array()

cdef extern from "Python.h":
    void *type_of "Py_TYPE"(PyObject *value)

cdef uint64_t MOST_BYTES = 1 << 46
cdef uint32_t PACKED_FIELD = _PACKED_FIELD


cdef int check_part(Lease lease, uint64_t offset, uint64_t size) except -1:
    if offset > <uint64_t>lease.bytes or size > <uint64_t>lease.bytes - offset:
        raise OverwrittenError(
            f"shared memory was overwritten: an array of {size} bytes at {offset} does not lie in "
            f"a slot of {lease.bytes} bytes"
        )
    return 0


cdef inline object view(Lease lease, Field *f, int ndim, const cnp.npy_intp *dims, uint64_t offset,
                        bint copy):
    """An array over the slot's bytes at `offset`, which lie there."""
    Py_INCREF(<object>f.descr)
    array = new_array(&PyArray_Type, f.descr, ndim, dims, NULL, lease.payload + offset,
                      cnp.NPY_ARRAY_CARRAY, NULL)
    if copy:
        return array.copy()
    Py_INCREF(lease)
    set_base(<cnp.PyArrayObject *>array, <PyObject *>lease)
    return array


cdef object checked_view(Lease lease, Field *f, int ndim, const cnp.npy_intp *dims,
                         uint64_t offset, bint copy):
    """The same, for dimensions and an offset that come from shared memory."""
    cdef uint64_t size = f.itemsize
    cdef int axis
    for axis in range(ndim):
        if dims[axis] < 0 or (dims[axis] and size > MOST_BYTES // <uint64_t>dims[axis]):
            raise OverwrittenError(f"shared memory was overwritten: axis {axis} of {dims[axis]}")
        size *= dims[axis]
    check_part(lease, offset, size)
    return view(lease, f, ndim, dims, offset, copy)


# ---- examples ------------------------------------------------------------------------------------


def read(Schema schema, Lease lease, bint copy, dict odd, set without=None):
    """The examples of a slot, as a list.

    Parameters
    ----------
    copy : give arrays memory of their own, instead of views of the slot.
    odd : examples of the rows that are not in the columns.
    without : rows to be left out.
    """
    cdef Py_ssize_t row
    cdef list batch = []
    check_part(lease, 0, schema.bytes)
    for row in range(lease.rows):
        if odd and row in odd:
            batch.append(odd[row])
        elif not without or row not in without:
            batch.append(example_of(schema, lease, row, copy))
    return batch


cdef inline object example_of(Schema schema, Lease lease, Py_ssize_t row, bint copy):
    """One example. The caller has seen that the columns lie in the slot."""
    cdef Py_ssize_t number, count = schema.count
    cdef int container = schema.container
    cdef Field *fields = schema.fields
    cdef dict named
    if container == _TUPLE or container == _NAMED:
        example = PyTuple_New(count) if container == _TUPLE else (
            fi_new_tuple(schema.type, count))
        for number in range(count):
            value = read_field(lease, row, &fields[number], copy)
            Py_INCREF(value)
            PyTuple_SET_ITEM(example, number, value)
        return example
    if container == _BARE:
        return read_field(lease, row, &fields[0], copy)
    if container == _LIST:
        return [read_field(lease, row, &fields[number], copy) for number in range(count)]
    named = {}
    for number in range(count):
        named[<object>PyTuple_GET_ITEM(schema.keys, number)] = read_field(
            lease, row, &fields[number], copy)
    return named


cdef object read_example(Schema schema, Lease lease, Py_ssize_t row, bint copy):
    """The same, for other modules."""
    return example_of(schema, lease, row, copy)


cdef inline object read_field(Lease lease, Py_ssize_t row, Field *f, bint copy):
    cdef uint64_t offset = f.offset + <uint64_t>f.stride * row
    cdef char *place = lease.payload + offset
    cdef int64_t *entry = <int64_t *>place
    cdef cnp.npy_intp dims[MOST_NDIM]
    cdef int axis
    if f.kind == _ARRAY:
        array = view(lease, f, f.ndim, f.dims, offset, copy)
        return dressed(array, f.guise) if f.guise else array
    if f.kind == _INT:
        return PyLong_FromLongLong(entry[0])
    if f.kind == _FLOAT:
        return (<double *>place)[0]
    if f.kind == _BOOL:
        return (<uint8_t *>place)[0] != 0
    if f.kind == _SCALAR:
        return scalar_of(place, f.descr, NULL)
    if f.kind == _RAGGED:
        for axis in range(f.ndim):
            dims[axis] = entry[1 + axis]
        array = checked_view(lease, f, f.ndim, dims, entry[0], copy)
        return dressed(array, f.guise) if f.guise else array
    part = lease.part(<uint64_t>entry[0], <uint64_t>entry[1])
    seed = fi_place_seed(
        lease.q, <uint32_t>(row if lease.places is None else lease.places[row]), PACKED_FIELD)
    return unpack(memoryview(bytearray(part)) if copy else part, seed)


def close_up(Schema schema, Lease lease, list rows):
    """Makes a taken batch one of fewer rows: moves `rows`, ascending, together at the slot's start.

    What lies in the heap stays where it is. `schema`: None if there are no columns.
    """
    cdef Py_ssize_t number, place, start, stop, count = len(rows)
    cdef Field *f
    cdef char *column
    if schema is not None:
        check_part(lease, 0, schema.bytes)
        place = 0
        while place < count:
            start = rows[place]
            stop = start + 1
            while place + stop - start < count and rows[place + stop - start] == stop:
                stop += 1
            for number in range(schema.count if start > place else 0):
                f = &schema.fields[number]
                column = lease.payload + f.offset
                with nogil:
                    memmove(column + place * f.stride, column + start * f.stride,
                            (stop - start) * f.stride)
            place += stop - start
    lease.rows = count
    lease.places = rows


# ---- columns -------------------------------------------------------------------------------------


def columns(Schema schema, Lease lease, bint converted, bint copy):
    """The batch as concat_examples would give it, or None if the columns do not hold that.

    `converted`: the finisher has put the ragged fields together.
    """
    cdef Py_ssize_t number
    if schema.container == _LIST:
        return None
    outputs = []
    for number in range(schema.count):
        array = column(schema, lease, &schema.fields[number], converted, copy)
        if array is None:
            return None
        outputs.append(array)
    if schema.container == _BARE:
        return outputs[0]
    return dict(zip(schema.keys, outputs)) if schema.container == _DICT else tuple(outputs)


cdef object column(Schema schema, Lease lease, Field *f, bint converted, bint copy):
    cdef cnp.npy_intp dims[MOST_NDIM + 1]
    cdef int64_t *entry
    cdef int axis
    if f.kind == _OBJECT or not f.handable or f.ndim == MOST_NDIM:
        return None
    dims[0] = lease.rows
    if f.kind != _RAGGED:
        for axis in range(f.ndim):
            dims[1 + axis] = f.dims[axis]
        return checked_view(lease, f, 1 + f.ndim, dims, f.offset, copy)
    if not converted:
        return None
    # The finisher's entry follows those of the rows.
    entry = <int64_t *>(lease.payload + f.offset + <uint64_t>f.stride * schema.rows)
    for axis in range(f.ndim):
        dims[1 + axis] = entry[1 + axis]
    return checked_view(lease, f, 1 + f.ndim, dims, entry[0], copy)


def lengths(Schema schema, Lease lease, Py_ssize_t number, int64_t max_length):
    """Length of the first axis of each row of a field of arrays, `max_length` (if not negative) at
    most: int64 (rows,), with memory of its own."""
    cdef Field *f = &schema.fields[number]
    cdef cnp.npy_intp rows = lease.rows
    cdef char *place = lease.payload + f.offset
    cdef int64_t *target
    cdef Py_ssize_t row
    check_part(lease, 0, schema.bytes)
    found = cnp.PyArray_EMPTY(1, &rows, cnp.NPY_INT64, 0)
    target = <int64_t *>bytes_of(<cnp.PyArrayObject *>found)
    for row in range(rows):
        target[row] = f.dims[0] if f.kind == _ARRAY else (<int64_t *>(place + f.stride * row))[1]
        if 0 <= max_length < target[row]:
            target[row] = max_length
    return found


# ---- hand-over to concat_examples ----------------------------------------------------------------


def pick(batch, key):
    """The field `key` of each example of a batch, as a list."""
    cdef list examples, values
    cdef Py_ssize_t row, place
    if not PyList_CheckExact(batch) or type(key) is not int:
        return [example[key] for example in batch]
    # A copy, for an example's own __getitem__ may change the list.
    examples = batch[:]
    values = []
    place = key
    for row in range(PyList_GET_SIZE(examples)):
        example = <object>PyList_GET_ITEM(examples, row)
        if fi_is_tuple(example) and 0 <= place < PyTuple_GET_SIZE(example):
            values.append(<object>PyTuple_GET_ITEM(example, place))
        else:
            values.append(example[key])
    return values


def hand_over(list values):
    """One field of a batch without copying, or None.

    The column is handed over if the values are, in order and complete, the arrays of one field
    of one taken slot, none replaced, reshaped, or moved. From then on the column and the
    examples share memory. A second time the same field is not handed over: two results
    must not share memory with each other.
    """
    cdef Table table
    cdef Py_ssize_t number
    if not values:
        return None
    rows = rows_of(values)
    table_of_one(&table, rows)
    try:
        number = field_of(&table, 0)
        if number < 0 or not claim(table.items[0], number):
            return None
        return give(table.items[0], number)
    finally:
        drop(&table)


def join_delivered(batch):
    """What concat_examples makes of a batch as an iterator delivered it: columns handed over as in
    `hand_over`, and the arrays of what are no arrays.

    Returns None, and hands nothing over, if no field, or not every field of arrays from shared
    memory, can be handed over.
    """
    cdef Table table
    cdef Py_ssize_t field
    cdef Py_ssize_t numbers[FIELD_LIMIT]
    cdef tuple names = None
    cdef list results
    if not PyList_CheckExact(batch) or not batch:
        return None
    rows = rows_of(batch)
    first = rows[0]
    if not has_delivered(first):
        return None
    if type(first) is dict:
        names = tuple(first)
    elif isinstance(first, tuple):
        names = tuple(range(len(first)))
    results = [None] * (1 if names is None else len(names))
    if len(results) > FIELD_LIMIT:
        return None
    if names is None:
        table_of_one(&table, rows)
    elif not table_of_fields(&table, rows, names):
        return None
    try:
        for field in range(table.count):
            if is_delivered(table.items[field * table.n]):
                numbers[field] = field_of(&table, field)
                if numbers[field] < 0 or given_before(&table, numbers, field):
                    return None
        for field in range(table.count):
            if not is_delivered(table.items[field * table.n]):
                results[field] = stack_field(&table, field, None)
                if results[field] is None:
                    return None
        # Another thread may have been here while a field was stacked.
        if not claim_all(&table, numbers):
            return None
        for field in range(table.count):
            if results[field] is None:
                results[field] = give(table.items[field * table.n], numbers[field])
    finally:
        drop(&table)
    if names is None:
        return results[0]
    return dict(zip(names, results)) if type(first) is dict else tuple(results)


cdef bint has_delivered(object example):
    """Whether an array of the example lies in the shared memory of a batch."""
    cdef Py_ssize_t place = 0
    cdef PyObject *key
    cdef PyObject *value
    if PyTuple_Check(example):
        for place in range(PyTuple_GET_SIZE(example)):
            if is_delivered(<PyObject *>PyTuple_GET_ITEM(example, place)):
                return True
        return False
    if not PyDict_CheckExact(example):
        return is_delivered(<PyObject *>example)
    if FI_LISTS_CHANGE:  # nothing guards a dict either
        return any([is_delivered(<PyObject *>item) for item in list((<dict>example).values())])
    while PyDict_Next(example, &place, &key, &value):
        if is_delivered(value):
            return True
    return False


cdef bint given_before(Table *table, const Py_ssize_t *numbers, Py_ssize_t field) noexcept:
    """Whether an earlier field of the table is the same field of the same slot."""
    cdef PyObject *base = base_of(<cnp.PyArrayObject *>table.items[field * table.n])
    cdef Py_ssize_t earlier
    for earlier in range(field):
        if is_delivered(table.items[earlier * table.n]) and numbers[earlier] == numbers[field] and (
                base_of(<cnp.PyArrayObject *>table.items[earlier * table.n]) == base):
            return True
    return False


cdef Py_ssize_t field_of(Table *table, Py_ssize_t column) except -2:
    """Number of the field of a slot whose arrays these are, in order and complete; -1 if they are
    not, or the field was handed over before."""
    cdef PyObject **values = table.items + column * table.n
    cdef Lease lease
    cdef Schema schema
    cdef Field *f = NULL
    cdef PyObject *base
    cdef cnp.PyArrayObject *array
    cdef Py_ssize_t row, number
    cdef int axis
    cdef char *start
    if not is_delivered(values[0]):
        return -1
    base = base_of(<cnp.PyArrayObject *>values[0])
    lease = <Lease>base
    if lease.schema is None or lease.rows != table.n:
        return -1
    schema = lease.schema
    start = bytes_of(<cnp.PyArrayObject *>values[0])
    for number in range(schema.count):
        if schema.fields[number].kind == _ARRAY and schema.fields[number].handable and (
                lease.payload + schema.fields[number].offset == start):
            f = &schema.fields[number]
            # Empty columns share their start with a neighbour: the dtype tells.
            if equivalent(descr_of(<cnp.PyArrayObject *>values[0]), f.descr):
                break
    if f == NULL or lease.handed >> number & 1 or f.stride == 0 or f.ndim == MOST_NDIM:
        return -1
    for row in range(table.n):
        if row + AHEAD < table.n:
            fi_prefetch(values[row + AHEAD])
        array = <cnp.PyArrayObject *>values[row]
        if type_of(values[row]) != <void *>&PyArray_Type:
            return -1
        if base_of(array) != base or bytes_of(array) != start + row * f.stride or (
                ndim_of(array) != f.ndim) or not is_contiguous(array) or (
                descr_of(array) != f.descr
                and not equivalent(descr_of(array), f.descr)):
            return -1
        for axis in range(f.ndim):
            if dims_of(array)[axis] != f.dims[axis]:
                return -1
    return number


cdef bint claim(PyObject *first, Py_ssize_t number):
    """Whether this call, and no other, is the one that gives the field away."""
    cdef Lease lease = <Lease>base_of(<cnp.PyArrayObject *>first)
    cdef uint64_t bit = <uint64_t>1 << number
    cdef bint is_free
    with cython.critical_section(lease):
        is_free = not lease.handed & bit
        lease.handed |= bit
    return is_free


cdef bint claim_all(Table *table, const Py_ssize_t *numbers):
    """Claims every field of the table that lies in shared memory, or none."""
    cdef Lease lease
    cdef Py_ssize_t field, earlier
    for field in range(table.count):
        if is_delivered(table.items[field * table.n]) and not claim(
                table.items[field * table.n], numbers[field]):
            for earlier in range(field):
                if is_delivered(table.items[earlier * table.n]):
                    lease = <Lease>base_of(<cnp.PyArrayObject *>table.items[earlier * table.n])
                    with cython.critical_section(lease):
                        lease.handed &= ~(<uint64_t>1 << numbers[earlier])
            return False
    return True


cdef object give(PyObject *first, Py_ssize_t number):
    """The column of a claimed field, by the array of its first row."""
    cdef Lease lease = <Lease>base_of(<cnp.PyArrayObject *>first)
    cdef Schema schema = lease.schema
    return column(schema, lease, &schema.fields[number], False, False)

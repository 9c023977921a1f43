"""Rows of a slot that are gathered in C from a dataset's columns, without examples."""

import numpy

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport bytes_of
from fastiter._fetch.arrow_column cimport PaddedLists
from fastiter._fetch.gather cimport ColumnReader
from fastiter._fetch.reader import reader_of
from fastiter._ring.arena cimport WorkerRing
from fastiter._ring.schema cimport ARRAY, OBJECT, Field, Schema, entry_of
from fastiter._ring.slot_rows cimport SlotRows

cnp.import_array()


cdef class ColumnRows(SlotRows):
    """The part of a worker's rows that its dataset's columns hold, if it consists of columns."""

    def __cinit__(self, WorkerRing end, dataset, *_):
        self.reader = reader_of(dataset)
        if self.reader.columns is not None:
            self.gatherer = self.reader.columns
            self.is_paged = self.gatherer.row_groups is not None

    @cython.final
    cdef bint are_columns_fitting(self) except -1:
        """Whether the slot's columns match the dataset's columns."""
        self.load_schema()
        return self.keys is None and self.schema is not None and self.reader.is_current and (
            self.gatherer.fits(self.schema))

    cdef uint32_t gather(self, object reader, uint32_t first, uint32_t count) except? 0xFFFFFFFF:
        """Owns rows, and gathers those it has won, part by part where their row groups have to be
        there. An index may be out of range, a text none, a file damaged: the dataset says so."""
        cdef WorkerRing end = self.end
        cdef uint32_t row = first, done, stop = first + count
        if not self.are_columns_fitting():
            return 0
        while row < stop:
            done = row
            while row < stop and fi_row_own(&end.worker, &end.claim, row):
                row += 1
            self.owned_stop = row
            if row > done:
                fi_worker_stat_fetch_begins(end.stat, self.index_of(done))
                done = self.gather_owned(done, row)
                fi_worker_stat_fetch_ends(end.stat)
            if done < row:
                return done - first
            if row < stop:  # another worker owns that row
                row += 1
        return count

    @cython.final
    cdef uint32_t gather_owned(self, uint32_t first, uint32_t stop) except? 0xFFFFFFFF:
        """The first of these rows that is not gathered."""
        cdef uint32_t row, done = first, start, end
        if not self.is_paged:
            return stop if self.gather_rows(first, stop) else first
        indices = numpy.array([self.index_of(row) for row in range(first, stop)], numpy.int64)
        try:
            for start, end in self.gatherer.pieces(indices):
                if not self.gather_rows(first + start, first + end):
                    break
                done = first + end
        except Exception:
            pass
        return done

    @cython.final
    cdef bint gather_rows(self, uint32_t first, uint32_t stop) except -1:
        cdef WorkerRing end = self.end
        cdef uint32_t row, count = stop - first
        try:
            if not self.gatherer.into_slot(
                    self.schema, end.payload(self.schema.bytes), first,
                    fi_row_index(end.worker.ring, end.claim.slot, first), count, self.uncached):
                return False
        except ValueError:  # offsets are wrong
            return False
        if not self.gatherer.is_fixed and not self.write_values(first, count):
            return False
        for row in range(first, stop):
            fi_row_done(&end.worker, &end.claim, row, FI_ROW_OK)
        fi_worker_stat_count(end.stat, count, count * self.row_bytes, 0)
        self.n_gathered += count
        return True

    @cython.final
    cdef bint write_values(self, uint32_t first, uint32_t count) except -1:
        """Writes rows of those columns whose rows differ in size; lists only where `finish` does not
        find them by itself. False if a value cannot be had."""
        cdef ColumnReader reader = self.gatherer
        cdef const int64_t *rows = fi_row_index(self.end.worker.ring, self.end.claim.slot, first)
        cdef Py_ssize_t number
        cdef uint32_t row
        self.use_slot()
        for number in range(reader.count):
            if reader.sources[number].kind == ARRAY:
                continue
            if self.pads_alone and self.schema.is_joined(number):
                for row in range(first, first + count):  # no array lies there
                    entry_of(&self.schema.fields[number], self.payload, row)[0] = -1
                continue
            try:
                values = reader.values(number, rows, count)
                if values is None:
                    return False
                for row in range(count):
                    self.write_other(number, first + row, <PyObject *>values[row])
            except Exception:
                return False
        return True

    # ---- lists of a whole batch

    def pad_fields(self, list rules, list rows):
        """Joins each ragged field of `rows`, ascending, or of all rows, into one array in the slot.

        Each rule begins with a 0-d array of the field's dtype to pad with, or None to join arrays
        of equal shapes only; the greatest length of the first axis, or -1; the number that the
        padded first axis is a multiple of. Returns False if a field cannot be joined here: the
        parent does it then, or raises.
        """
        cdef Schema schema = self.schema
        cdef Py_ssize_t number
        cdef bint reads = self.gatherer is not None and not self.is_paged and (
            self.are_columns_fitting())
        for number in range(schema.count):
            if not schema.is_joined(number):
                continue
            fill, max_length, multiple = rules[number][:3]
            if reads:
                if not self.gather_lists(number, rows, rules[number]):
                    return False
            elif schema.fields[number].kind == OBJECT or not self.pad_field(
                    &schema.fields[number], rows, fill, max_length, multiple):
                return False
        return True

    cdef bint gather_lists(self, Py_ssize_t number, list rows, object rule) except -1:
        """Joins lists that lie in the dataset's columns, as `pad_field` those in the slot."""
        cdef ColumnReader reader = self.gatherer
        cdef PaddedLists lists
        cdef Field *f = &self.schema.fields[number]
        cdef char *payload = self.end.payload(self.schema.bytes)
        cdef int64_t *entry = entry_of(f, payload, self.schema.rows)  # that of the joined array
        cdef Py_ssize_t n = self.end.claim.n, i
        cdef const int64_t *indices = fi_row_index(self.end.worker.ring, self.end.claim.slot, 0)
        cdef const char *fill = payload  # not read if there is no fill value
        if rows is not None:
            chosen = numpy.array([self.index_of(row) for row in rows], numpy.int64)
            indices, n = <const int64_t *>bytes_of(<cnp.PyArrayObject *>chosen), len(rows)
        lists = reader.lists_of(number, indices, n, rule)
        if lists is None:
            return False
        if rule[0] is not None:
            fill = bytes_of(<cnp.PyArrayObject *>rule[0])
        lists.write(self.end.take_array(entry, lists.shape, lists.ndim, lists.nbytes), fill)
        for i in range(n):  # concat_examples may have to tell them
            entry_of(f, payload, i if rows is None else rows[i])[1] = lists.row_lengths[i]
        return True

    cdef int write_all_values(self) except -1:
        """Writes the rows that the parent is going to read, since `finish` has not joined them."""
        cdef uint32_t row
        try:
            for row in range(self.end.claim.n):
                if fi_row_code(self.end.worker.ring, self.end.claim.slot, row,
                               self.end.claim.q) == FI_ROW_OK:
                    self.write_values(row, 1)
        except Exception:
            pass  # the parent finds that no row is there
        return 0

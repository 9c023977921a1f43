from libc.stdint cimport int64_t, uint32_t

from fastiter._ring.schema cimport RowSink

cdef class DatasetReader:
    cdef readonly object dataset
    cdef readonly object columns  # the `ColumnReader`, where rows are gathered; or None
    cdef readonly object getter  # where one call fetches many examples; or None
    cdef int read(self, RowSink sink, uint32_t first, uint32_t count) except -1

cdef class ManyReader(DatasetReader):
    pass

cdef class ColumnsReader(DatasetReader):
    pass

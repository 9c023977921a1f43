"""The record of how worker processes spend their time: turned on, turned off, and read."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from fastiter._clib.csrc cimport *
from fastiter._ring.parent_ring cimport ParentRing

# Kind, begin and length in ns, dataset index of the first row, rows, and number of the batch.
Event = tuple[str, int, int, int, int, int]

cdef dict KINDS = {
    FI_EVENT_FETCH: "fetch", FI_EVENT_WRITE: "write", FI_EVENT_FINISH: "finish",
    FI_EVENT_WAIT: "wait",
}


def start(ParentRing ring):
    cdef uint64_t need = 0, have = 0
    cdef int rc
    with nogil:
        rc = fi_trace_start(&ring.arena.ring, &need, &have)
    if rc != FI_OK:
        raise MemoryError(
            f"no memory to record a trace: {need} bytes needed, {have} available (status {rc})")


def stop(ParentRing ring):
    fi_trace_stop(&ring.arena.ring)


def events(ParentRing ring, uint32_t worker):
    cdef fi_event *found
    cdef uint32_t count, i
    if worker >= ring.arena.ring.geometry.workers:
        raise ValueError(f"worker {worker} of {ring.arena.ring.geometry.workers}")
    found = <fi_event *>malloc(FI_TRACE_EVENTS * sizeof(fi_event))
    if found == NULL:
        raise MemoryError()
    try:
        with nogil:
            count = fi_trace_read(&ring.arena.ring, worker, found)
        return [
            (KINDS.get(found[i].rows_kind & 255, "overwritten"), found[i].began_ns,
             found[i].took_ns, found[i].index, found[i].rows_kind >> 8, found[i].batch)
            for i in range(count)
        ]
    finally:
        free(found)

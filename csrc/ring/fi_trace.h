/* Records of the workers' time, if the program asks for it: one event for each stretch.
 *
 * Each worker has a record of its own in the control area of the segment, whose pages are
 * allocated when they are first wanted. The last FI_TRACE_EVENTS events of each worker are kept. The
 * parent reads them when it has turned recording off. Like fi_worker_stat, events serve messages alone.
 */
#ifndef FI_TRACE_H
#define FI_TRACE_H

#include "ring/fi_ring.h"

enum fi_event_kind { FI_EVENT_FETCH = 1, FI_EVENT_WRITE, FI_EVENT_FINISH, FI_EVENT_WAIT, FI_EVENT_HEDGE,
                     FI_EVENT_LOST };

typedef struct fi_event {
    int64_t began_ns; /* by fi_now_ns */
    int64_t took_ns;
    int64_t index; /* dataset index of the first row */
    uint32_t batch; /* low 32 bits of the sequence */
    uint32_t rows_kind; /* rows:24 | kind:8 */
} fi_event;

#define FI_TRACE_EVENTS (FI_TRACE_BYTES / sizeof(fi_event) - 2)

/* The first 64 bytes of FI_TRACE_BYTES; the events follow. */
typedef struct fi_trace {
    _Alignas(FI_CACHE_LINE) _Atomic uint64_t count; /* recorded since the start of recording */
    _Alignas(FI_CACHE_LINE) fi_event events[FI_TRACE_EVENTS];
} fi_trace;

_Static_assert(sizeof(fi_trace) == FI_TRACE_BYTES, "the byte map says so");

/* Worker. Asked for each range; the line it looks at is that of the board, which it reads anyway. */
static inline bool fi_traces(const fi_ring *ring)
{
    return fi_load_acquire(&ring->board->trace) != 0;
}
void fi_trace_put(const fi_ring *ring, uint32_t worker, enum fi_event_kind kind,
                  const fi_event *event, uint32_t rows);

/* Parent. Allocates the records' pages (FI_E_MEMORY with need and have; EBADF: the descriptor is closed, or
 * that of another file), empties them, and has workers record from their next range on. */
int fi_trace_start(const fi_ring *ring, uint64_t *need, uint64_t *have);
void fi_trace_stop(const fi_ring *ring);
/* Copies the events that worker has recorded, the oldest first, into `out`, which has room for
 * FI_TRACE_EVENTS; returns how many. Those that were overwritten meanwhile are left out. */
uint32_t fi_trace_read(const fi_ring *ring, uint32_t worker, fi_event *out);

#endif

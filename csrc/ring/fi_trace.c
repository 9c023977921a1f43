#include "ring/fi_trace.h"

#include <errno.h>

static fi_trace *trace_of(const fi_ring *ring, uint32_t worker)
{
    return (fi_trace *)(ring->traces + (uint64_t)worker * FI_TRACE_BYTES);
}

void fi_trace_put(const fi_ring *ring, uint32_t worker, enum fi_event_kind kind,
                  const fi_event *event, uint32_t rows)
{
    fi_trace *trace = trace_of(ring, worker);
    uint64_t count = fi_load_relaxed(&trace->count);
    fi_event *place = trace->events + count % FI_TRACE_EVENTS;
    *place = *event;
    place->rows_kind = (rows < 1u << 24 ? rows : (1u << 24) - 1) << 8 | (uint32_t)kind;
    fi_store_release(&trace->count, count + 1); /* for fi_trace_read */
}

int fi_trace_start(const fi_ring *ring, uint64_t *need, uint64_t *have)
{
    uint32_t workers = ring->geometry.workers;
    if (!fi_ring_has_file(ring))
        return EBADF;
    int rc = fi_shm_commit(ring->fd, (uint64_t)(ring->traces - ring->base),
                           (uint64_t)workers * FI_TRACE_BYTES, need, have);
    if (rc != FI_OK)
        return rc;
    for (uint32_t worker = 0; worker < workers; worker++)
        fi_store_relaxed(&trace_of(ring, worker)->count, 0);
    /* Pairs with fi_traces: who sees it finds pages and a count of 0. */
    fi_store_release(&ring->board->trace, 1);
    return FI_OK;
}

void fi_trace_stop(const fi_ring *ring)
{
    fi_store_relaxed(&ring->board->trace, 0);
}

uint32_t fi_trace_read(const fi_ring *ring, uint32_t worker, fi_event *out)
{
    fi_trace *trace = trace_of(ring, worker);
    uint64_t count = fi_load_acquire(&trace->count);
    uint64_t first = count > FI_TRACE_EVENTS ? count - FI_TRACE_EVENTS : 0;
    for (uint64_t i = first; i < count; i++)
        out[i - first] = trace->events[i % FI_TRACE_EVENTS];
    /* A worker may have gone on with the range that it had claimed, over the oldest ones. */
    uint64_t now = fi_load_acquire(&trace->count);
    uint64_t kept = now + 1 > FI_TRACE_EVENTS ? now + 1 - FI_TRACE_EVENTS : 0;
    uint32_t gone = (uint32_t)fi_min_u64(kept > first ? kept - first : 0, count - first);
    for (uint64_t i = gone; gone > 0 && i < count - first; i++)
        out[i - gone] = out[i];
    return (uint32_t)(count - first - gone);
}

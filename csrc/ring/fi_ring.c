/* Layout of the shared segment, the pages and heaps of its slots, and the parent's doorbell. */
#include "ring/fi_ring.h"

#include <errno.h>
#include <stdlib.h>

#include "os/fi_platform.h"
#include "ring/fi_window.h"

/* ---- layout ------------------------------------------------------------------------------ */

typedef struct layout {
    uint64_t map, pwait, bells, worker_stats, slots, words, indices, entries, schemas;
    uint64_t start_errors, traces, payload, total;
} layout;

static uint64_t place(uint64_t *end, uint64_t bytes, uint64_t alignment)
{
    uint64_t start = fi_align_up(*end, alignment);
    *end = start + bytes;
    return start;
}

static int lay_out(const fi_geometry *g, layout *out)
{
    if (g->slots < 1 || g->slots > 1u << 16 || g->workers < 1 || g->workers > 0xffff ||
        g->rows < 1 || g->rows > 1u << 30 || g->schemas < 1 || g->schemas > 1u << 10 ||
        g->slot_bytes < FI_PAGE || g->slot_bytes > (uint64_t)1 << 44 ||
        g->slot_bytes % FI_PAGE != 0)
        return FI_E_RANGE;
    uint64_t rows = (uint64_t)g->slots * g->rows; /* at most 2^46 */
    uint64_t end = sizeof(fi_board);
    out->map = place(&end, g->slots * sizeof(uint32_t), FI_CACHE_LINE);
    out->pwait = place(&end, sizeof(uint64_t), FI_CACHE_LINE);
    out->bells = place(&end, g->workers * sizeof(uint32_t), FI_CACHE_LINE);
    out->worker_stats = place(&end, g->workers * sizeof(fi_worker_stat), FI_CACHE_LINE);
    out->slots = place(&end, g->slots * sizeof(fi_slot), FI_CACHE_LINE);
    out->words = place(&end, rows * sizeof(uint64_t), FI_CACHE_LINE);
    out->indices = place(&end, rows * sizeof(int64_t), FI_CACHE_LINE);
    out->entries = place(&end, rows * sizeof(fi_entry), FI_CACHE_LINE);
    out->schemas = place(&end, (uint64_t)g->schemas * FI_SCHEMA_BYTES, FI_PAGE);
    out->start_errors = place(&end, (uint64_t)g->workers * FI_START_ERROR_BYTES, FI_PAGE);
    out->traces = place(&end, (uint64_t)g->workers * FI_TRACE_BYTES, FI_PAGE);
    out->payload = place(&end, g->slots * g->slot_bytes, FI_HUGE_PAGE);
    out->total = end;
    return FI_OK;
}

int fi_ring_size(const fi_geometry *geometry, uint64_t *control, uint64_t *total)
{
    layout at;
    int rc = lay_out(geometry, &at);
    if (rc == FI_OK) {
        *control = at.payload; /* mapped as a whole: what is sparse in it is small */
        *total = at.total;
    }
    return rc;
}

bool fi_ring_has_file(const fi_ring *ring)
{
    return fi_shm_file(ring->fd) == ring->file;
}

bool fi_ring_has_event(const fi_ring *ring)
{
    return fi_shm_file(ring->event) == ring->event_file;
}

void fi_ring_decommit(const fi_ring *ring, uint64_t offset, uint64_t bytes)
{
    if (fi_ring_has_file(ring))
        fi_shm_decommit(ring->fd, offset, bytes);
}

int fi_ring_attach(fi_ring *ring, const fi_geometry *geometry, void *base, int fd, int event)
{
    layout at;
    int rc = lay_out(geometry, &at);
    if (rc != FI_OK)
        return rc;
    char *b = base;
    fi_window *windows = calloc(geometry->slots, sizeof *windows);
    uint32_t *next = calloc(geometry->slots, sizeof *next);
    if (!windows || !next) {
        free(windows);
        free(next);
        return ENOMEM;
    }
    for (uint32_t slot = 0; slot < geometry->slots; slot++)
        atomic_init(&windows[slot].holders, 1);
    *ring = (fi_ring){
        .geometry = *geometry,
        .base = b,
        .fd = fd,
        .file = fi_shm_file(fd),
        .event = event,
        .event_file = fi_shm_file(event),
        .board = (fi_board *)b,
        .map = (_Atomic uint32_t *)(b + at.map),
        .pwait = (_Atomic uint64_t *)(b + at.pwait),
        .bells = (_Atomic uint32_t *)(b + at.bells),
        .worker_stats = (fi_worker_stat *)(b + at.worker_stats),
        .slots = (fi_slot *)(b + at.slots),
        .words = (_Atomic uint64_t *)(b + at.words),
        .indices = (int64_t *)(b + at.indices),
        .entries = (fi_entry *)(b + at.entries),
        .schemas = b + at.schemas,
        .start_errors = b + at.start_errors,
        .traces = b + at.traces,
        .payload = at.payload,
        .windows = windows,
        .returned = {.next = next},
    };
    return FI_OK;
}

void fi_ring_detach(fi_ring *ring)
{
    for (uint32_t slot = 0; ring->windows && slot < ring->geometry.slots; slot++)
        fi_slot_unmap(ring, slot);
    free(ring->windows);
    free(ring->returned.next);
    ring->windows = NULL;
    ring->returned.next = NULL;
}

/* Gives an area of the control area its pages: a write to one without memory would be a SIGBUS. One by
 * one: where the kernel has none for a later one it takes earlier ones back, which others may use. */
static int allocate(const fi_ring *ring, const void *area, uint64_t bytes)
{
    uint64_t start = (uint64_t)((const char *)area - ring->base), page = start / FI_PAGE * FI_PAGE;
    int rc = FI_OK;
    for (; rc == FI_OK && page < start + bytes; page += FI_PAGE)
        rc = fi_shm_allocate(ring->fd, page, FI_PAGE);
    return rc;
}

int fi_ring_allocate(const fi_ring *ring)
{
    int rc = allocate(ring, ring->base, (uint64_t)((const char *)ring->words - ring->base));
    return rc == FI_OK ? allocate(ring, ring->schemas, 1) : rc; /* the first, which may stay empty */
}

static int allocate_rows(const fi_ring *ring, uint32_t slot)
{
    uint64_t rows = ring->geometry.rows, first = slot * rows;
    int rc = allocate(ring, ring->words + first, rows * sizeof *ring->words);
    if (rc == FI_OK)
        rc = allocate(ring, ring->indices + first, rows * sizeof *ring->indices);
    return rc == FI_OK ? allocate(ring, ring->entries + first, rows * sizeof *ring->entries) : rc;
}

/* ---- payload: pages and heap --------------------------------------------------------------- */

int fi_slot_commit(const fi_ring *ring, uint32_t slot, uint64_t committed, uint64_t bytes,
                   uint64_t *need, uint64_t *have)
{
    if (bytes <= committed)
        return FI_OK;
    if (bytes > ring->geometry.slot_bytes) {
        *need = bytes;
        *have = ring->geometry.slot_bytes;
        return FI_E_FULL;
    }
    if (!fi_ring_has_file(ring))
        return EBADF;
    bytes = fi_align_up(bytes, FI_PAGE);
    int rc = fi_shm_commit(ring->fd, fi_slot_place(ring, slot) + committed, bytes - committed, need,
                           have);
    if (rc == FI_OK && committed == 0)
        rc = allocate_rows(ring, slot);
    /* Committing twice is harmless, so two who do it at once need not know of each other. */
    if (rc == FI_OK)
        fi_raise_to(&ring->slots[slot].committed, bytes);
    return rc;
}

/* Sees to it that the heap has pages up to `end`, and a few more where there is memory: each commit
 * asks the kernel how much is free. All slots keep what they have, so the surplus stays small. */
static int commit_heap(const fi_ring *ring, uint32_t slot, uint64_t end, uint64_t *need,
                       uint64_t *have)
{
    uint64_t committed = fi_slot_committed(ring, slot);
    if (end <= committed)
        return FI_OK;
    uint64_t ahead = fi_min_u64(end + fi_max_u64(end / 64, (uint64_t)1 << 16), ring->geometry.slot_bytes);
    int rc = fi_slot_commit(ring, slot, committed, ahead, need, have);
    return rc == FI_OK ? rc : fi_slot_commit(ring, slot, committed, end, need, have);
}

int fi_heap_take(const fi_ring *ring, uint32_t slot, uint64_t bytes, uint64_t *offset,
                 uint64_t *need, uint64_t *have)
{
    fi_slot *s = ring->slots + slot;
    uint64_t limit = ring->geometry.slot_bytes;
    uint64_t word = fi_load_relaxed(&s->heap), now, start, end;
    do {
        if (fi_heap_offset(word, &now) != FI_OK)
            return FI_E_CORRUPT;
        start = fi_align_up(now, FI_CACHE_LINE);
        if (start > limit || bytes > limit - start) {
            *need = bytes;
            *have = start < limit ? limit - start : 0;
            return FI_E_FULL;
        }
        end = start + bytes;
        /* The pages first: where they are refused, what follows lies in front of them. */
        int rc = commit_heap(ring, slot, end, need, have);
        if (rc == FI_OK && (rc = fi_slot_reach(ring, slot, end)) == FI_E_SPACE)
            *need = end;
        if (rc != FI_OK)
            return rc;
    } while (!atomic_compare_exchange_weak_explicit(&s->heap, &word, fi_heap_word(end),
                                                    memory_order_relaxed, memory_order_relaxed));
    *offset = start;
    return FI_OK;
}

/* ---- doorbell ------------------------------------------------------------------------------- */

void fi_wake_parent(const fi_ring *ring, uint64_t q)
{
    uint64_t waits = fi_load_relaxed(ring->pwait);
    if (waits != FI_ANY && waits != q)
        return;
    /* The worker that changes it to 0 rings; others save the calls. A dataset may have closed the bell. */
    if (atomic_exchange_explicit(ring->pwait, 0, memory_order_relaxed) != 0 && fi_ring_has_event(ring))
        fi_event_ring(ring->event);
}

int64_t fi_oldest_fetch(const fi_ring *ring)
{
    int64_t oldest = 0;
    for (uint32_t w = 0; w < ring->geometry.workers; w++) {
        int64_t since = fi_load_relaxed(&ring->worker_stats[w].since);
        if (since > 0 && (oldest == 0 || since < oldest))
            oldest = since;
    }
    return oldest;
}

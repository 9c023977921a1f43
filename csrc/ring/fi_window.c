/* Mappings of the slots in one process. */
#include "ring/fi_window.h"

#include <errno.h>

#include "os/fi_platform.h"

/* Bytes of the mapping number i of a slot. */
static uint64_t window_bytes(const fi_ring *ring, uint32_t i)
{
    return fi_min_u64(FI_LEAST_WINDOW << i, ring->geometry.slot_bytes);
}

int fi_slot_map(const fi_ring *ring, uint32_t slot, uint64_t bytes)
{
    fi_window *window = ring->windows + slot;
    uint32_t i = 0;
    void *address;
    if (bytes > ring->geometry.slot_bytes)
        return FI_E_RANGE;
    while (window_bytes(ring, i) < bytes)
        i++;
    if (!fi_ring_has_file(ring))
        return EBADF;
    int rc = fi_shm_map(ring->fd, fi_slot_place(ring, slot), window_bytes(ring, i), false, &address);
    if (rc != FI_OK)
        return rc == ENOMEM ? FI_E_SPACE : rc;
    if (ring->is_hidden)
        (void)fi_shm_inherit(address, window_bytes(ring, i), false);
    window->each[i] = window->address = address;
    window->bytes = window_bytes(ring, i);
    return FI_OK;
}

int fi_slot_reach_all(const fi_ring *ring, uint32_t slot, uint64_t *bytes)
{
    *bytes = fi_slot_committed(ring, slot);
    if (*bytes <= ring->windows[slot].bytes)
        return FI_OK;
    uint64_t allocated = fi_shm_allocated(ring->fd);
    if (allocated > 0 && *bytes > allocated)
        return FI_E_CORRUPT;
    return fi_slot_map(ring, slot, *bytes);
}

static void unmap_all_but(const fi_ring *ring, uint32_t slot, const char *kept)
{
    fi_window *window = ring->windows + slot;
    for (uint32_t i = 0; i < FI_WINDOWS; i++)
        if (window->each[i] && window->each[i] != kept) {
            (void)fi_shm_unmap(window->each[i], window_bytes(ring, i));
            window->each[i] = NULL;
        }
}

void fi_slot_unmap_smaller(const fi_ring *ring, uint32_t slot)
{
    unmap_all_but(ring, slot, ring->windows[slot].address);
}

void fi_slot_unmap(const fi_ring *ring, uint32_t slot)
{
    unmap_all_but(ring, slot, NULL);
    ring->windows[slot].address = NULL;
    ring->windows[slot].bytes = 0;
}

bool fi_slot_offset(const fi_ring *ring, uint32_t slot, const void *place, uint64_t *offset)
{
    const fi_window *window = ring->windows + slot;
    for (uint32_t i = 0; i < FI_WINDOWS; i++) {
        *offset = (uint64_t)((uintptr_t)place - (uintptr_t)window->each[i]);
        if (window->each[i] && *offset < window_bytes(ring, i))
            return true;
    }
    return false;
}

int fi_ring_forget(fi_ring *ring, uint64_t control)
{
    int rc = fi_shm_forget(ring->base, control);
    for (uint32_t slot = 0; rc == FI_OK && slot < ring->geometry.slots; slot++)
        for (uint32_t i = 0; rc == FI_OK && i < FI_WINDOWS; i++)
            if (ring->windows[slot].each[i])
                rc = fi_shm_forget(ring->windows[slot].each[i], window_bytes(ring, i));
    return rc;
}

int fi_ring_inherit(fi_ring *ring, uint64_t control, bool inherited)
{
    int rc = fi_shm_inherit(ring->base, control, inherited);
    ring->is_hidden = !inherited;
    for (uint32_t slot = 0; rc == FI_OK && slot < ring->geometry.slots; slot++)
        for (uint32_t i = 0; rc == FI_OK && i < FI_WINDOWS; i++)
            if (ring->windows[slot].each[i])
                rc = fi_shm_inherit(ring->windows[slot].each[i], window_bytes(ring, i), inherited);
    return rc;
}

/* ---- leases, and the end -------------------------------------------------------------------- */

bool fi_slot_let_go(const fi_ring *ring, uint32_t slot, bool is_shared)
{
    fi_window *window = ring->windows + slot;
    if (is_shared)
        fi_store_relaxed(&window->is_shared, true);
    /* Acquire and release, pairs with the same of the other holders: the last one sees whether the
     * slot is shared, and none of them touches its bytes any more. */
    return atomic_fetch_sub_explicit(&window->holders, 1, memory_order_acq_rel) == 1;
}

void fi_slot_free(const fi_ring *ring, uint32_t slot)
{
    const fi_window *window = ring->windows + slot;
    if (window->bytes > 0 && !fi_load_relaxed(&window->is_shared))
        fi_shm_remove(window->address, window->bytes); /* other slots may keep the file */
    fi_slot_unmap(ring, slot);
}

/* A range of the file that is to be given back, in as few calls as possible. */
typedef struct file_range {
    uint64_t start, end;
} file_range;

static void give_back(const fi_ring *ring, file_range *range, uint64_t start, uint64_t end)
{
    if (start != range->end) {
        if (range->end > range->start)
            fi_ring_decommit(ring, range->start, range->end - range->start);
        range->start = start;
    }
    range->end = end;
}

/* The whole pages of an area of the control area. */
static void give_back_pages(const fi_ring *ring, const void *start, const void *end)
{
    uint64_t from = fi_align_up((uint64_t)((const char *)start - ring->base), FI_PAGE);
    uint64_t to = (uint64_t)((const char *)end - ring->base) / FI_PAGE * FI_PAGE;
    if (from < to)
        fi_ring_decommit(ring, from, to - from);
}

/* The ring needs the slot no more. Returns how many bytes of it others may need. */
static uint64_t end_ring_hold(const fi_ring *ring, uint32_t slot, bool keeps_held)
{
    fi_window *window = ring->windows + slot;
    if (keeps_held && fi_slot_is_held(ring, slot))
        return ring->geometry.slot_bytes;
    if (!fi_slot_let_go(ring, slot, false))
        return window->used > 0 ? fi_align_up(window->used, FI_PAGE) : ring->geometry.slot_bytes;
    fi_slot_unmap(ring, slot);
    return fi_load_relaxed(&window->is_shared) ? ring->geometry.slot_bytes : 0;
}

void fi_ring_close(fi_ring *ring, bool keeps_held)
{
    const fi_entry *entries = ring->entries;
    file_range unused = {0, 0};
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        uint64_t start = fi_slot_place(ring, slot), needed = end_ring_hold(ring, slot, keeps_held);
        give_back(ring, &unused, start + needed, start + ring->geometry.slot_bytes);
        if (needed > 0) {
            give_back_pages(ring, entries, fi_row_entry(ring, slot, 0));
            entries = fi_row_entry(ring, slot + 1, 0);
        }
    }
    give_back(ring, &unused, 0, 0);
    give_back_pages(ring, entries, ring->schemas);
    give_back_pages(ring, ring->words, ring->entries);
    give_back_pages(ring, ring->schemas, ring->start_errors);
}

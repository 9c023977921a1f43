/* The parent's half of the ring when something went wrong: workers that died or hang give back what
 * they owned, hints are restored, and batches that corrupt words keep from their end are given up. */
#include "ring/fi_ring_parent.h"

#include "os/fi_platform.h"

static bool scheduled(const fi_slot_record *record)
{
    return record->phase == FI_FILL || record->phase == FI_DRAIN;
}

/* ---- death ----------------------------------------------------------------------------------- */

/* The protocol writes no flags beside an owner; corrupt ones must not hide the loss. */
static bool is_of(uint64_t word, uint64_t q, uint32_t worker, uint32_t code)
{
    return (word & ~(uint64_t)0xff) == fi_word(q, worker, code, 0);
}

static bool has_row(uint64_t word, uint64_t q, uint32_t worker, bool is_written)
{
    return (is_written && is_of(word, q, worker, FI_OWNED)) || is_of(word, q, worker, FI_FETCH);
}

/* Does a worker fetch a row that it has announced only? Then the row is free already. */
static bool has_announced(const fi_parent *parent, uint32_t worker, uint32_t slot, uint32_t row)
{
    const fi_ring *ring = parent->ring;
    uint64_t q = parent->slot[slot].q;
    return fi_worker_stat_fetches(ring->worker_stats + worker, fi_own_indices(parent, slot)[row]) &&
           fi_load_acquire(fi_row_word(ring, slot, row)) == fi_word(q, 0, FI_TODO, 0);
}

uint32_t fi_parent_losses(const fi_parent *parent, uint32_t worker, fi_loss *losses, uint32_t most)
{
    const fi_ring *ring = parent->ring;
    uint32_t found = 0;
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        const fi_slot_record *record = parent->slot + slot;
        if (!scheduled(record))
            continue;
        for (uint32_t row = 0; row < record->n && found < most; row++) {
            if (has_row(fi_load_acquire(fi_row_word(ring, slot, row)), record->q, worker, true))
                losses[found++] = (fi_loss){slot, row, record->q};
        }
        if (found < most &&
            is_of(fi_load_acquire(&ring->slots[slot].state), record->q, worker, FI_FINISHING))
            losses[found++] = (fi_loss){slot, FI_LOSS_FINISH, record->q};
    }
    for (uint32_t slot = 0; found == 0 && most > 0 && slot < ring->geometry.slots; slot++) {
        const fi_slot_record *record = parent->slot + slot;
        for (uint32_t row = 0; scheduled(record) && row < record->n && found == 0; row++)
            if (has_announced(parent, worker, slot, row))
                losses[found++] = (fi_loss){slot, row, record->q};
    }
    return found;
}

void fi_parent_return(fi_parent *parent, uint32_t worker, bool is_dead, const fi_loss *loss, bool poison)
{
    fi_ring *ring = parent->ring;
    bool filling = parent->slot[loss->slot].phase == FI_FILL;
    if (loss->row == FI_LOSS_FINISH) {
        if (!is_dead)
            return;
        uint64_t back = !filling ? fi_word(loss->q, 0, FI_CANCELLED, 0)
                        : poison ? fi_ready_word(loss->q, FI_FINISH_POISON)
                                 : fi_word(loss->q, 0, FI_FILLING, 0);
        fi_store_release(&ring->slots[loss->slot].state, back);
        return;
    }
    uint32_t code = !filling ? FI_CANCELLED : poison ? FI_POISON : FI_TODO;
    /* A1, pairs with W5: the next owner may overwrite what the dead one left. A swap, since a row that was only
     * fetched may have got another owner. */
    _Atomic uint64_t *place = fi_row_word(ring, loss->slot, loss->row);
    uint64_t word = fi_load_relaxed(place);
    if (poison && has_announced(parent, worker, loss->slot, loss->row))
        (void)fi_parent_give_up_row(parent, loss->slot, loss->row);
    while (has_row(word, loss->q, worker, is_dead) &&
           !atomic_compare_exchange_weak_explicit(place, &word, fi_word(loss->q, 0, code, 0),
                                                  memory_order_release, memory_order_relaxed)) {
    }
    fi_worker_stat_fetch_ends(ring->worker_stats + worker); /* or it would have announced the row */
}

/* ---- hints ----------------------------------------------------------------------------------- */

/* R3 and R4: every hint back to the start, then tell the workers to sweep again from the head. */
static void rewind_hints(fi_parent *parent)
{
    fi_ring *ring = parent->ring;
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++) {
        const fi_slot_record *record = parent->slot + slot;
        if (record->phase != FI_FILL)
            continue;
        fi_store_release(&ring->slots[slot].claim, fi_claim_word(record->q, 0)); /* R3 */
        fi_store_relaxed(ring->map + record->q % ring->geometry.slots, slot);
    }
    fi_store_release(&ring->board->head, parent->head);
    fi_store_release(&ring->board->tail, parent->tail);
    fi_store_relaxed(&ring->board->stop, parent->stopping);
    fi_store_relaxed(&ring->board->worker_count, parent->worker_count);
    atomic_fetch_add_explicit(&ring->board->redo, 1, memory_order_release); /* R4, pairs with W1 */
}

void fi_parent_rewind(fi_parent *parent, uint32_t worker)
{
    rewind_hints(parent);
    fi_store_relaxed(parent->ring->bells + worker, 0); /* R5 */
    if (parent->bell_pipes)
        fi_bell_pipe_drain(parent->bell_pipes + worker);
}

void fi_parent_restore_hints(fi_parent *parent)
{
    rewind_hints(parent);
    fi_fence(4); /* F4 (D2), pairs with F3: redo before the bells are overwritten */
    for (uint32_t w = 0; w < parent->ring->geometry.workers; w++)
        fi_bell_force(parent->ring->bells + w, parent->bell_pipes ? parent->bell_pipes + w : NULL);
}

void fi_parent_offer_singly(fi_parent *parent)
{
    for (uint32_t slot = 0; slot < parent->ring->geometry.slots; slot++)
        if (parent->slot[slot].phase == FI_FILL)
            fi_store_relaxed(&parent->ring->slots[slot].single, 1);
}

bool fi_parent_is_asleep(const fi_parent *parent, uint32_t worker)
{
    return fi_load_relaxed(parent->ring->bells + worker) == 1;
}

bool fi_parent_stalled(const fi_parent *parent)
{
    const fi_ring *ring = parent->ring;
    uint32_t slot, flags;
    if (parent->head == parent->tail && parent->draining == 0)
        return false;
    /* Acquire, and the state after the bells: a READY was stored before its worker's bell (F2). */
    uint32_t workers = parent->worker_count > 0 ? parent->worker_count : ring->geometry.workers;
    for (uint32_t w = 0; w < workers; w++)
        if (fi_load_acquire(ring->bells + w) != 1)
            return false;
    return fi_parent_ready(parent, &slot, &flags) != FI_OK;
}

void fi_parent_give_up(fi_parent *parent)
{
    uint32_t flags;
    for (uint32_t slot = 0; slot < parent->ring->geometry.slots; slot++) {
        fi_slot_record *record = parent->slot + slot;
        if (record->phase == FI_FILL) {
            record->corrupt |= !fi_parent_is_ready(parent, slot, &flags);
        } else if (record->phase == FI_DRAIN) {
            parent->draining--;
            fi_make_free(parent, slot);
        }
    }
}

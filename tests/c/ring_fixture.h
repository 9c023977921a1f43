/* A ring, its parent and three workers in one thread, in which a sleep ends the claim instead. */
#ifndef FASTITER_TESTS_RING_FIXTURE_H
#define FASTITER_TESTS_RING_FIXTURE_H

#include <string.h>
#include <unistd.h>

#include "check.h"
#include "collect.h"
#include "map_slots.h"
#include "os/fi_platform.h"

static void fall_asleep(_Atomic uint32_t *bell);
static bool asleep, rested;
static int64_t nap; /* for how long it would sleep */

/* fi_ring_worker.c with a sleep that returns, for no other thread could wake this one. */
#define fi_bell_sleep(bell, pipe, ns) (nap = (ns), fall_asleep(bell))
#include "../../csrc/ring/fi_ring_worker.c"

#include "ring/fi_ring_parent.h"

enum { SLOTS = 4, WORKERS = 3, ROWS = 64, SLOT_BYTES = 1 << 16, HEAP = 256, CLAIM_SLEEP = 99 };

typedef struct fixture {
    fi_ring ring;
    fi_parent parent;
    fi_worker workers[WORKERS];
    uint64_t control;
    int event[2];
} fixture;

static fixture *now; /* the one that fall_asleep belongs to */

static void fall_asleep(_Atomic uint32_t *bell)
{
    CHECK_EQ(fi_load_relaxed(bell), 1);
    if (now->workers[bell - now->ring.bells].hedges && !rested) {
        rested = true; /* it looks for late rows when it has slept once */
        return;
    }
    asleep = true;
    fi_store_relaxed(&now->ring.board->stop, 1); /* makes the claim end */
}

static inline void set_up(fixture *f, uint32_t spares)
{
    fi_geometry geometry = {SLOTS, WORKERS, ROWS, 2, SLOT_BYTES};
    uint64_t total;
    int fd;
    void *base;
    CHECK_EQ(fi_ring_size(&geometry, &f->control, &total), FI_OK);
    CHECK_EQ(fi_shm_open(total, &fd), FI_OK);
    CHECK_EQ(fi_shm_map(fd, 0, f->control, false, &base), FI_OK);
    CHECK_EQ(fi_event_open(f->event), FI_OK);
    CHECK_EQ(fi_ring_attach(&f->ring, &geometry, base, fd, f->event[1]), FI_OK);
    CHECK_EQ(fi_parent_init(&f->parent, &f->ring, spares, NULL), FI_OK);
    map_slots(&f->ring);
    for (uint32_t w = 0; w < WORKERS; w++)
        fi_worker_init(f->workers + w, &f->ring, w, -1);
    now = f;
}

static inline void tear_down(fixture *f)
{
    fi_parent_clear(&f->parent);
    fi_ring_detach(&f->ring);
    CHECK_EQ(fi_shm_unmap(f->ring.base, f->control), FI_OK);
    close(f->ring.fd);
    close(f->event[0]);
    if (f->event[1] != f->event[0])
        close(f->event[1]);
}

static inline bool parent_was_rung(fixture *f)
{
    uint8_t ready;
    CHECK_EQ(fi_wait(f->event, 1, 0, &ready), FI_OK);
    fi_event_drain(f->event[0]);
    return ready;
}

static inline uint64_t schedule(fixture *f, uint32_t n)
{
    int64_t indices[ROWS];
    uint64_t q;
    uint32_t slot;
    CHECK_EQ(fi_parent_next_slot(&f->parent, 0, &slot), FI_OK);
    for (uint32_t row = 0; row < n; row++)
        indices[row] = 1000 * (int64_t)f->parent.tail + row;
    CHECK_EQ(fi_parent_schedule(&f->parent, slot, indices, n, 1, HEAP, false, &q), FI_OK);
    return q;
}

static inline uint64_t row_word(const fixture *f, uint32_t slot, uint32_t row)
{
    return atomic_load(fi_row_word(&f->ring, slot, row));
}

static inline uint64_t state_word(const fixture *f, uint32_t slot)
{
    return atomic_load(&f->ring.slots[slot].state);
}

static inline uint32_t slot_of(const fixture *f, uint64_t q)
{
    return f->parent.slot_of[q % SLOTS];
}

/* Next claim of worker w; CLAIM_SLEEP: it would sleep now. */
static inline int next_claim(fixture *f, uint32_t w, fi_claim *claim)
{
    asleep = rested = false;
    f->workers[w].last_look = 0;
    int kind = fi_worker_next(f->workers + w, claim);
    if (asleep) {
        CHECK_EQ(kind, FI_CLAIM_STOP);
        fi_store_relaxed(&f->ring.board->stop, 0);
        return CLAIM_SLEEP;
    }
    return kind;
}

static inline void own_all(fixture *f, uint32_t w, const fi_claim *claim, uint32_t code)
{
    for (uint32_t row = claim->first; row < claim->first + claim->count; row++)
        if (fi_row_own(f->workers + w, claim, row) && code)
            fi_row_done(f->workers + w, claim, row, code);
}

/* Worker w does all there is to do. */
static inline void work_all(fixture *f, uint32_t w)
{
    fi_claim claim;
    for (int kind; (kind = next_claim(f, w, &claim)) != CLAIM_SLEEP;) {
        if (kind == FI_CLAIM_FINISH)
            fi_worker_ready(f->workers + w, &claim, 0);
        else
            own_all(f, w, &claim, FI_ROW_OK);
    }
}

/* Worker w owns every row of the oldest batch it has not passed, and completes none. */
static inline void own_batch(fixture *f, uint32_t w, fi_claim *claim, uint32_t n)
{
    for (uint32_t owned = 0; owned < n; owned += claim->count) {
        CHECK_EQ(next_claim(f, w, claim), FI_CLAIM_ROWS);
        own_all(f, w, claim, 0);
    }
}

static inline void take_ready(fixture *f, bool copied)
{
    uint32_t slot, flags, odd, row;
    uint64_t word;
    CHECK_EQ(fi_parent_ready(&f->parent, &slot, &flags), FI_OK);
    CHECK_EQ(fi_parent_check(&f->parent, slot, &odd, &row, &word), FI_OK);
    CHECK_EQ(odd, 0);
    fi_parent_take(&f->parent, slot, copied);
}

/* R2 to R6 for worker w; returns how many things it had in hand. */
static inline uint32_t recover(fixture *f, uint32_t w, bool poison)
{
    fi_loss losses[3];
    uint32_t count, sum = 0;
    while ((count = fi_parent_losses(&f->parent, w, losses, 3)) > 0) {
        for (uint32_t i = 0; i < count; i++)
            fi_parent_return(&f->parent, w, true, losses + i, poison);
        sum += count;
    }
    fi_parent_rewind(&f->parent, w);
    fi_parent_ring_all(&f->parent);
    return sum;
}

#endif

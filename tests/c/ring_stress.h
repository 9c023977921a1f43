/* A parent that drives batches through a ring whose workers die at any moment. Contents, order,
 * padding and held leases are compared word for word. test_ring_threads.c and test_ring_fork.c say
 * how a worker starts, dies and is known to be dead.
 */
#ifndef FASTITER_TESTS_RING_STRESS_H
#define FASTITER_TESTS_RING_STRESS_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "collect.h"
#include "map_slots.h"
#include "os/fi_platform.h"
#include "ring_stress_rows.h"

/* ---- parent -------------------------------------------------------------------------------- */

typedef struct plan {
    int64_t first; /* index of row 0; the others follow */
    uint64_t q;
    uint32_t n;
    bool poisoned[MOST_ROWS];
    bool finish_poisoned;
} plan;

typedef struct stress {
    fi_ring ring;
    fi_parent parent;
    uint64_t control, random;
    int event[2];
    bool pipes, corrupt; /* bells are pipes; hints are overwritten at random */
    bool overtakes;      /* any batch that is ready is taken, not the oldest one */
    fi_bell_pipe bell_pipes[MOST_WORKERS];
    uint32_t prefetch, most_leases;
    plan plans[MOST_SLOTS]; /* of each slot, valid until the slot is scheduled anew */
    uint32_t leases[MOST_SLOTS], lease_count;
    bool alive[MOST_WORKERS];
    uint64_t absent_until[MOST_WORKERS]; /* a dead worker is replaced at this batch */
    int64_t planned, delivered;          /* next index to plan, to deliver */
    uint64_t batches, deaths, redone, refinished, poisoned, resets, restores, overtaken;
    void (*start)(struct stress *, uint32_t worker);
    bool (*is_dead)(struct stress *, uint32_t worker); /* and reaped */
    int (*death_descriptor)(struct stress *, uint32_t worker);
    void (*disturb)(struct stress *);
    void (*release)(struct stress *, uint32_t slot);
} stress;

static void verify(const stress *t, uint32_t slot, bool outputs)
{
    const fi_ring *ring = &t->ring;
    const plan *p = t->plans + slot;
    const uint64_t *output = output_of(ring, slot);
    for (uint32_t row = 0; row < MOST_ROWS; row++) {
        if (row >= p->n) {
            CHECK(!outputs || output[row] == (PADDING ^ p->q));
            continue;
        }
        int64_t index = p->first + row;
        uint32_t code = p->poisoned[row] ? FI_POISON : row_kind(index);
        CHECK_EQ(fi_row_code(ring, slot, row, p->q), code);
        CHECK(!outputs || output[row] == output_word(p->q, index, code));
        const uint64_t *found = column_row(ring, slot, row);
        uint32_t words = code == FI_POISON ? 0 : ROW_WORDS;
        if (code == FI_SPILL || code == FI_ERROR) {
            uint64_t offset, bytes;
            fi_entry_get(ring, slot, row, &offset, &bytes);
            words = packed_words(index);
            CHECK_EQ(bytes, words * 8);
            CHECK(offset >= HEAP_START && offset % 64 == 0 && offset + bytes <= SLOT_BYTES);
            found = (const uint64_t *)(fi_slot_payload(ring, slot) + offset);
        }
        for (uint32_t word = 0; word < words; word++)
            CHECK(found[word] == row_content(p->q, index, word));
    }
}

static void schedule_one(stress *t)
{
    fi_parent *parent = &t->parent;
    int64_t indices[MOST_ROWS];
    uint32_t slot;
    uint64_t need, have;
    CHECK_EQ(fi_parent_next_slot(parent, HEAP_START, &slot), FI_OK);
    CHECK_EQ(fi_slot_commit(&t->ring, slot, 0, HEAP_START, &need, &have), FI_OK);
    plan *p = t->plans + slot;
    *p = (plan){.first = t->planned, .n = 1 + (uint32_t)draw(&t->random, MOST_ROWS)};
    for (uint32_t row = 0; row < p->n; row++)
        indices[row] = t->planned++;
    CHECK_EQ(fi_parent_schedule(parent, slot, indices, p->n, 0, HEAP_START,
                                draw(&t->random, 8) == 0, &p->q),
             FI_OK);
}

static void start_worker(stress *t, uint32_t worker)
{
    t->alive[worker] = true;
    t->start(t, worker);
}

/* R2 to R6 for one whose death is known. */
static void recover(stress *t, uint32_t worker)
{
    fi_parent *parent = &t->parent;
    fi_loss losses[4]; /* fewer than there may be, to go round more than once */
    uint32_t count, lost = 0;
    while ((count = fi_parent_losses(parent, worker, losses, 4)) > 0) {
        for (uint32_t i = 0; i < count; i++) {
            plan *p = t->plans + losses[i].slot;
            bool filling = parent->slot[losses[i].slot].phase == FI_FILL;
            bool poison = draw(&t->random, 16) == 0;
            CHECK(losses[i].q == p->q);
            if (losses[i].row == FI_LOSS_FINISH) {
                p->finish_poisoned |= filling && poison;
                t->refinished += filling && !poison;
            } else {
                CHECK(losses[i].row < p->n);
                p->poisoned[losses[i].row] |= filling && poison;
                t->redone += filling && !poison;
            }
            t->poisoned += filling && poison;
            fi_parent_return(parent, worker, true, losses + i, poison);
        }
        lost += count;
    }
    if (lost > 0 && draw(&t->random, 4) == 0)
        fi_parent_offer_singly(parent);
    fi_parent_rewind(parent, worker);
}

static void recover_dead(stress *t)
{
    bool any = false;
    for (uint32_t w = 0; w < t->ring.geometry.workers; w++) {
        if (!t->alive[w] || !t->is_dead(t, w))
            continue;
        t->alive[w] = false;
        t->absent_until[w] = t->batches + draw(&t->random, 2) * draw(&t->random, 200);
        t->deaths++;
        recover(t, w);
        any = true;
    }
    if (any)
        fi_parent_ring_all(&t->parent);
}

/* Replaces the dead whose time has come; somebody must live. */
static void start_due(stress *t)
{
    uint32_t alive = 0;
    for (uint32_t w = 0; w < t->ring.geometry.workers; w++) {
        if (!t->alive[w] && t->absent_until[w] <= t->batches)
            start_worker(t, w);
        alive += t->alive[w];
    }
    if (alive == 0)
        start_worker(t, (uint32_t)draw(&t->random, t->ring.geometry.workers));
}

static void corrupt_hints(stress *t)
{
    fi_ring *ring = &t->ring;
    uint64_t word = mix(t->random) >> draw(&t->random, 64);
    uint32_t slot = (uint32_t)draw(&t->random, ring->geometry.slots);
    uint32_t worker = (uint32_t)draw(&t->random, ring->geometry.workers);
    switch (draw(&t->random, 40)) {
    case 0: atomic_store(&ring->slots[slot].claim, word); break;
    case 1: atomic_store(&ring->slots[slot].claim, t->parent.slot[slot].q << 32 | word % 64); break;
    case 2: atomic_store(&ring->slots[slot].single, (uint32_t)word); break;
    case 3: atomic_store(ring->map + slot, (uint32_t)word); break;
    case 4: atomic_store(ring->map + slot, (uint32_t)(word % ring->geometry.slots)); break;
    case 5: atomic_store(ring->bells + worker, (uint32_t)(word % 3)); break;
    case 6: atomic_store(ring->pwait, word); break;
    case 7: atomic_store(&ring->board->head, word); break;
    case 8: atomic_store(&ring->board->tail, word); break;
    case 9: atomic_store(&ring->board->redo, (uint32_t)word); break;
    default: break;
    }
}

/* Every word that could say why nothing moves. */
static void dump(const stress *t)
{
    const fi_ring *ring = &t->ring;
    const fi_parent *parent = &t->parent;
    fprintf(stderr, "head %" PRIu64 ", tail %" PRIu64 ", %u free, %u leased, %u draining\n",
            parent->head, parent->tail, parent->free_count, parent->leased, parent->draining);
    for (uint32_t w = 0; w < ring->geometry.workers; w++)
        fprintf(stderr, "worker %u: %s, bell %u\n", w, t->alive[w] ? "alive" : "dead",
                atomic_load(ring->bells + w));
    for (uint32_t s = 0; s < ring->geometry.slots; s++) {
        const fi_slot_record *record = parent->slot + s;
        fprintf(stderr, "slot %u: phase %d q %" PRIx64 " claim %" PRIx64 " state %" PRIx64 ":", s,
                (int)record->phase, record->q, atomic_load(&ring->slots[s].claim),
                atomic_load(&ring->slots[s].state));
        for (uint32_t row = 0; row < record->n; row++)
            fprintf(stderr, " %" PRIx64, atomic_load(fi_row_word(ring, s, row)));
        fputc('\n', stderr);
    }
}

/* T4. */
static void wait_for_event(stress *t)
{
    int descriptors[1 + MOST_WORKERS] = {t->event[0]};
    uint8_t ready[1 + MOST_WORKERS];
    uint32_t count = 1;
    for (uint32_t w = 0; w < t->ring.geometry.workers; w++)
        if (t->alive[w] && t->death_descriptor(t, w) >= 0)
            descriptors[count++] = t->death_descriptor(t, w);
    int64_t limit = (int64_t)(t->corrupt ? 2 : 20000) * 1000000, before = fi_now_ns();
    int rc = fi_wait(descriptors, count, limit, ready);
    CHECK(rc == FI_OK || rc == EINTR);
    fi_parent_cancel_sleep(&t->parent);
    fi_event_drain(t->event[0]);
    if (!t->corrupt || fi_now_ns() - before < limit)
        return;
    fi_parent_restore_hints(&t->parent);
    t->restores++;
}

/* Whether there is a batch to take: the head, or one of those that overtake it. */
static bool find_ready(stress *t, uint32_t *slot, uint32_t *flags)
{
    const fi_parent *parent = &t->parent;
    uint32_t slots = t->ring.geometry.slots, first = (uint32_t)draw(&t->random, slots);
    for (uint32_t i = 0; t->overtakes && i < slots; i++) {
        *slot = (first + i) % slots;
        if (parent->slot[*slot].phase == FI_FILL && fi_parent_is_ready(parent, *slot, flags))
            return true;
    }
    return !t->overtakes && fi_parent_ready(parent, slot, flags) == FI_OK;
}

static uint32_t under_way(const fi_parent *parent)
{
    return parent->ring->geometry.slots - parent->free_count - parent->leased - parent->draining;
}

/* Blocks until there is a batch to take. */
static uint32_t wait_for_batch(stress *t, uint32_t *flags)
{
    fi_parent *parent = &t->parent;
    uint32_t slot;
    const int64_t limit = 20 * INT64_C(1000000000), start = fi_now_ns();
    for (;;) {
        if (fi_now_ns() - start > limit) { /* a lost wake-up, whatever else came meanwhile */
            dump(t);
            CHECK(!"a batch within 20 seconds");
        }
        collect(parent);
        start_due(t);
        uint64_t depth = 1 + draw(&t->random, t->prefetch);
        while (under_way(parent) < depth && parent->free_count > 0)
            schedule_one(t);
        fi_parent_publish(parent);
        t->disturb(t);
        if (t->corrupt)
            corrupt_hints(t);
        if (find_ready(t, &slot, flags))
            return slot;
        bool any = parent->head == parent->tail;
        fi_parent_announce_sleep(parent, any || t->overtakes ? FI_ANY : parent->head);
        if (any)
            collect(parent);
        if (!find_ready(t, &slot, flags) && !(any && parent->free_count > 0))
            wait_for_event(t);
        fi_parent_cancel_sleep(parent);
        recover_dead(t);
    }
}

static void release_one(stress *t)
{
    uint32_t which = (uint32_t)draw(&t->random, t->lease_count);
    uint32_t slot = t->leases[which];
    t->leases[which] = t->leases[--t->lease_count];
    verify(t, slot, false); /* bit for bit what it was */
    t->release(t, slot);
}

static void take_one(stress *t)
{
    fi_parent *parent = &t->parent;
    uint32_t flags, odd, row, expected_odd = 0, slot = wait_for_batch(t, &flags);
    uint64_t word;
    const plan *p = t->plans + slot;
    CHECK(p->q == parent->slot[slot].q);
    CHECK(t->overtakes || (p->q == parent->head && p->first == t->delivered));
    t->overtaken += p->q > parent->head;
    CHECK_EQ(fi_parent_check(parent, slot, &odd, &row, &word), FI_OK);
    CHECK_EQ(flags, p->finish_poisoned ? FI_FINISH_POISON : 0);
    for (uint32_t r = 0; r < p->n; r++)
        expected_odd += p->poisoned[r] || row_kind(p->first + r) != FI_ROW_OK;
    CHECK_EQ(odd, expected_odd);
    verify(t, slot, !flags);
    t->delivered += p->n;
    t->batches++;
    bool lease = fi_parent_usable(parent) > 0 && t->lease_count < t->most_leases &&
                 draw(&t->random, 4) != 0;
    fi_parent_take(parent, slot, !lease);
    if (lease)
        t->leases[t->lease_count++] = slot;
    while (t->lease_count > 0 && draw(&t->random, 2))
        release_one(t);
    if (draw(&t->random, 50) == 0) {
        t->disturb(t);
        fi_parent_reset(parent);
        if (!t->overtakes)
            t->planned = t->delivered;
        t->resets++;
    }
}

/* The caller has set how workers start and die, `pipes`, `corrupt` and `random`. `first_q`: another
 * first sequence than the ring's own, or 0. */
static void stress_open(stress *t, uint32_t slots, uint32_t workers, uint64_t first_q)
{
    fi_geometry geometry = {slots, workers, MOST_ROWS, 1, SLOT_BYTES};
    uint64_t total, need, have;
    int fd;
    void *base;
    CHECK(slots <= MOST_SLOTS && workers <= MOST_WORKERS);
    CHECK_EQ(fi_ring_size(&geometry, &t->control, &total), FI_OK);
    CHECK_EQ(fi_shm_open(total, &fd), FI_OK);
    CHECK_EQ(fi_shm_map(fd, 0, t->control, false, &base), FI_OK);
    CHECK_EQ(fi_shm_commit(fd, 0, t->control, &need, &have), FI_OK);
    CHECK_EQ(fi_event_open(t->event), FI_OK);
    CHECK_EQ(fi_ring_attach(&t->ring, &geometry, base, fd, t->event[1]), FI_OK);
    map_slots(&t->ring);
    for (uint32_t w = 0; t->pipes && w < workers; w++)
        CHECK_EQ(fi_bell_pipe_open(t->bell_pipes + w), FI_OK);
    CHECK_EQ(fi_parent_init(&t->parent, &t->ring, 0, t->pipes ? t->bell_pipes : NULL), FI_OK);
    fi_parent_set_hedge(&t->parent, 1);
    if (first_q) {
        t->parent.head = t->parent.tail = first_q;
        atomic_store(&t->ring.board->head, first_q);
        atomic_store(&t->ring.board->tail, first_q);
    }
    t->prefetch = slots;
    t->most_leases = slots / 2;
    for (uint32_t w = 0; w < workers; w++)
        start_worker(t, w);
}

static void stress_close(stress *t)
{
    while (t->lease_count > 0)
        release_one(t);
    fi_parent_clear(&t->parent);
    fi_ring_detach(&t->ring);
    CHECK_EQ(fi_shm_unmap(t->ring.base, t->control), FI_OK);
    close(t->ring.fd);
    close(t->event[0]);
    if (t->event[1] != t->event[0])
        close(t->event[1]);
    for (uint32_t w = 0; t->pipes && w < t->ring.geometry.workers; w++)
        fi_bell_pipe_close(t->bell_pipes + w);
}

/* Runs for so many seconds, and on until each thing that it is about has happened. */
static void stress_run(stress *t, double seconds)
{
    int64_t end = fi_now_ns() + (int64_t)(seconds * 1e9);
    while (fi_now_ns() < end || t->batches < 50 || t->deaths < 10 || t->redone < 3 ||
           t->resets < 2 || (t->overtakes && t->overtaken < 10) || (t->corrupt && t->restores < 3)
#ifdef LATE_NS
           || atomic_load(&t->ring.board->won) < 3
#endif
    )
        take_one(t);
}

static void stress_report(const stress *t, const char *name)
{
    printf("%s: %" PRIu64 " batches, %" PRIu64 " deaths, %" PRIu64 " rows and %" PRIu64
           " finishes redone, %" PRIu64 " given up, %" PRIu64 " resets, %" PRIu64
           " times hints restored, %" PRIu64 " out of order\n",
           name, t->batches, t->deaths, t->redone, t->refinished, t->poisoned, t->resets,
           t->restores, t->overtaken);
}

/* Seconds for each configuration: the argument, or STRESS_SECONDS, or what is short. */
static double stress_seconds(int argc, char **argv)
{
    const char *text = argc > 1 ? argv[1] : getenv("STRESS_SECONDS");
    double seconds = text ? atof(text) : 0.6;
    CHECK(seconds > 0);
    return seconds;
}

static uint64_t stress_seed(void)
{
    const char *text = getenv("STRESS_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)fi_now_ns();
    printf("STRESS_SEED=%" PRIu64 "\n", seed);
    fflush(stdout);
    return seed;
}

#endif

/* The ring in one thread: recovery after a death at each step, leases and forks, the limits of the
 * payload's heap. */
#include "ring/fi_views.h"
#include "ring_fixture.h"

/* ---- recovery ------------------------------------------------------------------------------ */

static void test_losses(void)
{
    fixture f;
    fi_claim claim;
    fi_loss losses[ROWS];
    set_up(&f, 0);
    uint64_t q = schedule(&f, 5);
    own_batch(&f, 2, &claim, 5);
    fi_row_done(f.workers + 2, &claim, 1, FI_ROW_OK);
    CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, ROWS), 0);
    CHECK_EQ(fi_parent_losses(&f.parent, 2, losses, 2), 2); /* no more than asked for */
    CHECK_EQ(fi_parent_losses(&f.parent, 2, losses, ROWS), 4);
    CHECK(losses[1].slot == slot_of(&f, q) && losses[1].row == 2 && losses[1].q == q);
    fi_parent_return(&f.parent, 2, true, losses, false);
    fi_parent_return(&f.parent, 2, true, losses + 1, true);
    CHECK(row_word(&f, claim.slot, 0) == fi_word(q, 0, FI_TODO, 0));
    CHECK(row_word(&f, claim.slot, 1) == fi_word(q, 0, FI_ROW_OK, 0));
    CHECK(row_word(&f, claim.slot, 2) == fi_word(q, 0, FI_POISON, 0));
    fi_parent_reset(&f.parent);
    CHECK_EQ(recover(&f, 2, false), 2);
    CHECK(row_word(&f, claim.slot, 3) == fi_word(q, 0, FI_CANCELLED, 0));
    CHECK(row_word(&f, claim.slot, 4) == fi_word(q, 0, FI_CANCELLED, 0));
    collect(&f.parent);
    CHECK_EQ(f.parent.free_count, SLOTS);
    tear_down(&f);
}

static void test_lost_finish(void)
{
    fixture f;
    fi_claim claim;
    uint32_t slot, flags;
    for (int kind = 0; kind < 3; kind++) { /* again, poison, while draining */
        set_up(&f, 0);
        uint64_t q = schedule(&f, 1);
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
        own_all(&f, 0, &claim, FI_ROW_OK);
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_FINISH);
        CHECK_EQ(next_claim(&f, 1, &claim), CLAIM_SLEEP);
        if (kind == 2)
            fi_parent_reset(&f.parent);
        CHECK_EQ(recover(&f, 0, kind == 1), 1);
        if (kind == 2) {
            CHECK(state_word(&f, claim.slot) == fi_word(q, 0, FI_CANCELLED, 0));
            collect(&f.parent);
            CHECK_EQ(f.parent.free_count, SLOTS);
        } else if (kind == 1) {
            CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_OK);
            CHECK_EQ(flags, FI_FINISH_POISON);
        } else {
            CHECK(state_word(&f, claim.slot) == fi_word(q, 0, FI_FILLING, 0));
            CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS); /* a survivor sweeps again, */
            CHECK(!fi_row_own(f.workers + 1, &claim, 0));
            CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_FINISH); /* and repeats the finish */
        }
        tear_down(&f);
    }
}

/* A death after each step of worker 0; worker 1 had fallen asleep and does the rest. */
static void test_survivor_completes(void)
{
    enum { AFTER_CLAIM, AFTER_OWN, AFTER_DONE, IN_FINISH, AFTER_READY, STEPS };
    for (int last = 0; last < STEPS; last++) {
        fixture f;
        fi_claim claim;
        set_up(&f, 0);
        schedule(&f, 1);
        uint32_t redo = atomic_load(&f.ring.board->redo);
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
        CHECK_EQ(next_claim(&f, 1, &claim), CLAIM_SLEEP);
        claim.first = 0;
        claim.count = 1;
        claim.q = f.parent.head;
        claim.slot = slot_of(&f, claim.q);
        if (last >= AFTER_OWN)
            CHECK(fi_row_own(f.workers, &claim, 0));
        if (last >= AFTER_DONE)
            fi_row_done(f.workers, &claim, 0, FI_ROW_OK);
        if (last >= IN_FINISH)
            CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_FINISH);
        if (last >= AFTER_READY)
            fi_store_release(&f.ring.slots[claim.slot].state, fi_ready_word(claim.q, 0));
        CHECK_EQ(recover(&f, 0, false), last == AFTER_OWN || last == IN_FINISH);
        CHECK_EQ(atomic_load(&f.ring.board->redo), redo + 1);
        CHECK_EQ(atomic_load(f.ring.bells + 1), 0); /* woken */
        work_all(&f, 1);
        take_ready(&f, true);
        tear_down(&f);
    }
}

static void test_rewind(void)
{
    fixture f;
    fi_bell_pipe pipes[WORKERS];
    uint8_t ready;
    set_up(&f, 0);
    schedule(&f, 2);
    work_all(&f, 1);
    take_ready(&f, false);
    uint32_t leased = slot_of(&f, f.parent.head - 1);
    uint64_t q = schedule(&f, 4);
    atomic_store(&f.ring.slots[leased].claim, 77);
    atomic_store(&f.ring.slots[slot_of(&f, q)].claim, q << 32 | 3);
    atomic_store(f.ring.bells + 1, 1);
    CHECK_EQ(fi_bell_pipe_open(pipes + 1), FI_OK);
    CHECK_EQ(write(pipes[1].writer, "ab", 2), 2);
    f.parent.bell_pipes = pipes;
    fi_parent_rewind(&f.parent, 1);
    CHECK(atomic_load(&f.ring.slots[slot_of(&f, q)].claim) == q << 32);
    CHECK_EQ(atomic_load(&f.ring.slots[leased].claim), 77); /* not in FILL */
    CHECK_EQ(atomic_load(f.ring.bells + 1), 0);
    CHECK_EQ(fi_wait(&pipes[1].reader, 1, 0, &ready), FI_OK);
    CHECK(!ready);
    CHECK_EQ(f.parent.slot[leased].phase, FI_LEASED);
    fi_bell_pipe_close(pipes + 1);
    tear_down(&f);
}

/* ---- leases -------------------------------------------------------------------------------- */

static uint32_t lease_one(fixture *f)
{
    uint64_t q = schedule(f, 1);
    work_all(f, 0);
    take_ready(f, false);
    return slot_of(f, q);
}

static void test_usable_and_release(void)
{
    fixture f;
    uint32_t slots[3];
    set_up(&f, 0);
    CHECK_EQ(fi_parent_usable(&f.parent), SLOTS - 1);
    for (uint32_t i = 0; i < 3; i++) {
        slots[i] = lease_one(&f);
        CHECK_EQ(fi_parent_usable(&f.parent), SLOTS - 2 - i);
    }
    fi_parent_reset(&f.parent); /* leases are none of its business */
    collect(&f.parent);
    CHECK_EQ(f.parent.leased, 3);
    fi_returned_push(&f.ring.returned, slots[1], false);
    fi_returned_push(&f.ring.returned, slots[0], false);
    fi_returned_push(&f.ring.returned, slots[2], false);
    CHECK_EQ(f.parent.leased, 3); /* a stack of its own until the parent comes by */
    collect(&f.parent);
    CHECK_EQ(f.parent.leased, 0);
    CHECK_EQ(f.parent.free_count, SLOTS);
    CHECK_EQ(fi_parent_usable(&f.parent), SLOTS - 1);
    bool seen[SLOTS] = {false};
    for (uint32_t i = 0; i < SLOTS; i++)
        seen[slot_of(&f, schedule(&f, 1))] = true;
    for (uint32_t i = 0; i < SLOTS; i++)
        CHECK(seen[i]);
    tear_down(&f);
}

static void test_draining_is_not_usable(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    schedule(&f, 1);
    own_batch(&f, 0, &claim, 1);
    fi_parent_reset(&f.parent);
    collect(&f.parent);
    CHECK_EQ(fi_parent_usable(&f.parent), SLOTS - 2);
    tear_down(&f);
}

static void test_retire_after_fork(void)
{
    fixture f;
    set_up(&f, 1);
    CHECK_EQ(f.parent.free_count, SLOTS - 1);
    uint32_t first = lease_one(&f), second = lease_one(&f), back = lease_one(&f);
    fi_returned_push(&f.ring.returned, back, false);
    fi_returned_push(&f.ring.returned, second, true);
    fi_returned_push(&f.ring.returned, first, true);
    CHECK_EQ(f.parent.retired, 0); /* any thread says so: nothing but the stack changes */
    collect(&f.parent);
    CHECK_EQ(f.parent.retired, 2);
    CHECK_EQ(f.parent.leased, 0);
    CHECK_EQ(f.parent.slot[first].phase, FI_RETIRED);
    CHECK_EQ(f.parent.slot[second].phase, FI_RETIRED);
    CHECK_EQ(f.parent.slot[back].phase, FI_FREE);
    CHECK_EQ(f.parent.slot[SLOTS - 1].phase, FI_FREE); /* the spare */
    CHECK_EQ(fi_parent_usable(&f.parent), SLOTS - 2 - 1);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t slot = slot_of(&f, schedule(&f, 1));
        CHECK(slot != first && slot != second);
    }
    uint32_t none;
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &none), FI_E_FULL);
    tear_down(&f);
    fi_parent refused;
    CHECK_EQ(fi_parent_init(&refused, &f.ring, SLOTS, NULL), FI_E_RANGE);
}

static void test_views(void)
{
    fi_forks forks = {0};
    fi_views views = {0};
    uint64_t before = fi_view_begins(&views, &forks), dead = fi_view_begins(&views, &forks);
    CHECK_EQ(fi_views_count(&views), 2);
    CHECK(!fi_view_ends(&views, &forks, dead)); /* before the fork */
    fi_fork_begins(&forks);
    CHECK(fi_view_ends(&views, &forks, fi_view_begins(&views, &forks))); /* in the midst of it */
    uint64_t amid = fi_view_begins(&views, &forks);
    fi_fork_begins(&forks); /* of another thread */
    fi_fork_ended(&forks);
    CHECK(fi_view_ends(&views, &forks, fi_view_begins(&views, &forks))); /* the first goes on */
    fi_fork_ended(&forks);
    CHECK(fi_view_ends(&views, &forks, amid));
    CHECK(fi_view_ends(&views, &forks, before));
    CHECK(!fi_view_ends(&views, &forks, fi_view_begins(&views, &forks)));
    CHECK_EQ(fi_views_count(&views), 0);
    fi_fork_begins(&forks);
    fi_forks_begin_anew(&forks); /* in the child */
    CHECK(!fi_view_ends(&views, &forks, fi_view_begins(&views, &forks)));
}

/* A stack that was taken can wait, whatever is pushed meanwhile. */
static void test_returned_waits(void)
{
    uint32_t links[4], slot, stack;
    bool not_again;
    fi_returned returned = {.next = links};
    CHECK_EQ(fi_returned_take(&returned), 0);
    for (slot = 0; slot < 3; slot++)
        fi_returned_push(&returned, slot, slot == 1);
    stack = fi_returned_take(&returned);
    fi_returned_push(&returned, 3, false); /* meanwhile */
    for (uint32_t wanted = 3; wanted-- > 0;) {
        CHECK(fi_returned_next(&returned, &stack, &slot, &not_again));
        CHECK(slot == wanted && not_again == (slot == 1));
    }
    CHECK(!fi_returned_next(&returned, &stack, &slot, &not_again));
    CHECK_EQ(fi_returned_take(&returned), 4);
}

/* ---- payload ------------------------------------------------------------------------------- */

static void test_heap(void)
{
    fixture f;
    uint64_t offset, need = 0, have = 0;
    set_up(&f, 0);
    uint32_t slot = slot_of(&f, schedule(&f, 1));
    _Atomic uint64_t *heap = &f.ring.slots[slot].heap;
    const uint64_t right = fi_heap_word(1024), left = SLOT_BYTES - 448;
    CHECK_EQ(fi_heap_take(&f.ring, slot, 1, &offset, &need, &have), FI_OK);
    CHECK_EQ(offset, HEAP);
    CHECK_EQ(fi_heap_take(&f.ring, slot, 100, &offset, &need, &have), FI_OK);
    CHECK_EQ(offset, HEAP + 64); /* aligned */
    CHECK(fi_slot_committed(&f.ring, slot) >= offset + 100);
    CHECK_EQ(fi_heap_take(&f.ring, slot, left + 1, &offset, &need, &have), FI_E_FULL);
    CHECK(need == left + 1 && have == left);
    CHECK_EQ(fi_heap_take(&f.ring, slot, UINT64_MAX, &offset, &need, &have), FI_E_FULL);
    CHECK_EQ(fi_heap_take(&f.ring, slot, left, &offset, &need, &have), FI_OK);
    CHECK_EQ(offset, 448);
    CHECK_EQ(fi_slot_used(&f.ring, slot), SLOT_BYTES);
    CHECK_EQ(fi_heap_take(&f.ring, slot, 1, &offset, &need, &have), FI_E_FULL);
    CHECK_EQ(have, 0);
    for (uint64_t bit = 1; bit; bit <<= 1) { /* any flipped bit is noticed */
        atomic_store(heap, right ^ bit);
        CHECK_EQ(fi_heap_take(&f.ring, slot, 64, &offset, &need, &have), FI_E_CORRUPT);
        CHECK_EQ(fi_slot_used(&f.ring, slot), 0);
    }
    for (int ones = 0; ones < 2; ones++) {
        atomic_store(heap, ones ? UINT64_MAX : 0);
        CHECK_EQ(fi_heap_take(&f.ring, slot, 64, &offset, &need, &have), FI_E_CORRUPT);
    }
    atomic_store(heap, fi_heap_word(UINT64_C(1) << 44)); /* a right word of another geometry */
    CHECK_EQ(fi_heap_take(&f.ring, slot, 64, &offset, &need, &have), FI_E_FULL);
    CHECK_EQ(fi_slot_used(&f.ring, slot), SLOT_BYTES);
    tear_down(&f);
}

/* The parent believes in no more pages than there are. */
static void test_committed(void)
{
    fixture f;
    uint64_t need = 0, have = 0, offset;
    set_up(&f, 0);
    uint32_t slot = slot_of(&f, schedule(&f, 1));
    _Atomic uint64_t *committed = &f.ring.slots[slot].committed;
    CHECK_EQ(fi_parent_committed(&f.parent, slot), 0);
    CHECK_EQ(fi_parent_commit(&f.parent, slot, 5000, &need, &have), FI_OK);
    CHECK_EQ(fi_parent_committed(&f.parent, slot), 8192);
    atomic_store(committed, 4096);
    CHECK_EQ(fi_parent_committed(&f.parent, slot), 8192); /* its own copy */
    atomic_store(committed, UINT64_MAX);
    CHECK_EQ(fi_slot_committed(&f.ring, slot), SLOT_BYTES);
    if (fi_shm_allocated(f.ring.fd) < SLOT_BYTES)
        CHECK_EQ(fi_parent_committed(&f.parent, slot), 8192);
    atomic_store(committed, 8192);
    CHECK_EQ(fi_heap_take(&f.ring, slot, 10000, &offset, &need, &have), FI_OK); /* a worker's */
    CHECK(fi_parent_committed(&f.parent, slot) >= offset + 10000);
    CHECK_EQ(fi_parent_commit(&f.parent, slot, SLOT_BYTES, &need, &have), FI_OK);
    CHECK_EQ(fi_parent_committed(&f.parent, slot), SLOT_BYTES);
    memset(fi_slot_payload(&f.ring, slot), 1, SLOT_BYTES);
    CHECK_EQ(fi_parent_commit(&f.parent, slot, SLOT_BYTES + 1, &need, &have), FI_E_FULL);
    CHECK(need == SLOT_BYTES + 1 && have == SLOT_BYTES);
    tear_down(&f);
}

/* Pages of a free slot can be given back; a slot that has pages is chosen before one that has none. */
static void test_decommit(void)
{
    fixture f;
    uint64_t need = 0, have = 0;
    uint32_t slot, other;
    set_up(&f, 0);
    CHECK_EQ(fi_parent_commit(&f.parent, 2, SLOT_BYTES, &need, &have), FI_OK);
    memset(fi_slot_payload(&f.ring, 2), 1, SLOT_BYTES);
    uint64_t before = fi_shm_allocated(f.ring.fd);
    CHECK_EQ(fi_parent_next_slot(&f.parent, SLOT_BYTES, &slot), FI_OK);
    CHECK_EQ(slot, 2);
    CHECK_EQ(fi_parent_next_slot(&f.parent, 1, &slot), FI_OK);
    CHECK_EQ(slot, 2);
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &other), FI_OK);
    CHECK(other != 2);
    fi_parent_decommit(&f.parent, 2, SLOT_BYTES); /* nothing is beyond */
    CHECK_EQ(fi_parent_committed(&f.parent, 2), SLOT_BYTES);
    fi_parent_decommit(&f.parent, 2, 5000);
    CHECK_EQ(fi_parent_committed(&f.parent, 2), 8192);
    CHECK_EQ(fi_slot_committed(&f.ring, 2), 8192);
#if defined(__linux__) && !defined(FI_PORTABLE)
    CHECK_EQ(before - fi_shm_allocated(f.ring.fd), SLOT_BYTES - 8192);
    CHECK_EQ(fi_slot_payload(&f.ring, 2)[8191], 1);
    CHECK_EQ(fi_slot_payload(&f.ring, 2)[8192], 0);
#else
    (void)before;
#endif
    CHECK_EQ(fi_parent_commit(&f.parent, 2, SLOT_BYTES, &need, &have), FI_OK);
    slot = slot_of(&f, schedule(&f, 1)); /* what workers may write to keeps its pages */
    CHECK_EQ(fi_parent_commit(&f.parent, slot, SLOT_BYTES, &need, &have), FI_OK);
    fi_parent_decommit(&f.parent, slot, 0);
    CHECK_EQ(fi_parent_committed(&f.parent, slot), SLOT_BYTES);
    tear_down(&f);
}

/* Eight terabytes are refused before anything happens. Only the control area is mapped here. */
static void test_commit_refused(void)
{
    fi_geometry geometry = {1, 1, 1, 1, UINT64_C(1) << 43};
    uint64_t control, total, offset, need = 0, have = 0;
    int64_t index = 0;
    fi_ring ring;
    fi_parent parent;
    int fd;
    void *base;
    CHECK_EQ(fi_ring_size(&geometry, &control, &total), FI_OK);
    CHECK_EQ(fi_shm_open(total, &fd), FI_OK);
    CHECK_EQ(fi_shm_map(fd, 0, control, false, &base), FI_OK);
    CHECK_EQ(fi_ring_attach(&ring, &geometry, base, fd, -1), FI_OK);
    CHECK_EQ(fi_parent_init(&parent, &ring, 0, NULL), FI_OK);
    CHECK_EQ(
        fi_parent_schedule(&parent, 0, &index, 1, 0, 0, false, &offset), FI_OK);
    const uint64_t much = UINT64_C(1) << 42;
    CHECK_EQ(fi_parent_commit(&parent, 0, much, &need, &have), FI_E_MEMORY);
    CHECK(need == much && have < much);
    CHECK_EQ(fi_heap_take(&ring, 0, much, &offset, &need, &have), FI_E_MEMORY);
    CHECK(need >= much && have < much);
    CHECK_EQ(fi_parent_committed(&parent, 0), 0);
    /* A refused request takes nothing: the next one has all that was there before. */
    CHECK_EQ(fi_slot_used(&ring, 0), 0);
    CHECK_EQ(fi_heap_take(&ring, 0, 100, &offset, &need, &have), FI_OK);
    CHECK_EQ(offset, 0);
    fi_parent_clear(&parent);
    fi_ring_detach(&ring);
    CHECK_EQ(fi_shm_unmap(base, control), FI_OK);
    close(fd);
}

int main(void)
{
    test_losses();
    test_lost_finish();
    test_survivor_completes();
    test_rewind();
    test_usable_and_release();
    test_draining_is_not_usable();
    test_retire_after_fork();
    test_views();
    test_returned_waits();
    test_heap();
    test_committed();
    test_decommit();
    test_commit_refused();
    return 0;
}

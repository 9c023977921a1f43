/* The ring in one thread: recovery after a death at each step, leases and forks, the limits of the
 * payload's heap, and what spoilt words may and may not do. */
#include "ring_fixture.h"

/* ---- recovery ------------------------------------------------------------------------------ */

static void test_losses(void)
{
    fixture f;
    fi_turn turn;
    fi_loss losses[ROWS];
    set_up(&f, 0);
    uint64_t q = schedule(&f, 5);
    own_batch(&f, 2, &turn, 5);
    fi_row_done(f.workers + 2, &turn, 1, FI_ROW_OK);
    CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, ROWS), 0);
    CHECK_EQ(fi_parent_losses(&f.parent, 2, losses, 2), 2); /* no more than asked for */
    CHECK_EQ(fi_parent_losses(&f.parent, 2, losses, ROWS), 4);
    CHECK(losses[1].slot == slot_of(&f, q) && losses[1].row == 2 && losses[1].q == q);
    CHECK_EQ(losses[1].index, 1000 * (int64_t)q + 2);
    fi_parent_return(&f.parent, losses, false);
    fi_parent_return(&f.parent, losses + 1, true);
    CHECK(row_word(&f, turn.slot, 0) == fi_word(q, 0, FI_TODO, 0));
    CHECK(row_word(&f, turn.slot, 1) == fi_word(q, 0, FI_ROW_OK, 0));
    CHECK(row_word(&f, turn.slot, 2) == fi_word(q, 0, FI_POISON, 0));
    fi_parent_reset(&f.parent);
    CHECK_EQ(recover(&f, 2, false), 2);
    CHECK(row_word(&f, turn.slot, 3) == fi_word(q, 0, FI_VOID, 0));
    CHECK(row_word(&f, turn.slot, 4) == fi_word(q, 0, FI_VOID, 0));
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.free_count, SLOTS);
    tear_down(&f);
}

static void test_lost_finish(void)
{
    fixture f;
    fi_turn turn;
    uint32_t slot, flags;
    for (int kind = 0; kind < 3; kind++) { /* again, poison, while draining */
        set_up(&f, 0);
        uint64_t q = schedule(&f, 1);
        CHECK_EQ(next_turn(&f, 0, &turn), FI_TURN_ROWS);
        own_all(&f, 0, &turn, FI_ROW_OK);
        CHECK_EQ(next_turn(&f, 0, &turn), FI_TURN_FINISH);
        CHECK_EQ(next_turn(&f, 1, &turn), TURN_SLEEP);
        if (kind == 2)
            fi_parent_reset(&f.parent);
        CHECK_EQ(recover(&f, 0, kind == 1), 1);
        if (kind == 2) {
            CHECK(state_word(&f, turn.slot) == fi_word(q, 0, FI_VOID, 0));
            fi_parent_collect(&f.parent);
            CHECK_EQ(f.parent.free_count, SLOTS);
        } else if (kind == 1) {
            CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_OK);
            CHECK_EQ(flags, FI_FINISH_POISON);
        } else {
            CHECK(state_word(&f, turn.slot) == fi_word(q, 0, FI_FILLING, 0));
            CHECK_EQ(next_turn(&f, 1, &turn), FI_TURN_ROWS); /* a survivor sweeps again, */
            CHECK(!fi_row_own(f.workers + 1, &turn, 0));
            CHECK_EQ(next_turn(&f, 1, &turn), FI_TURN_FINISH); /* and repeats the finish */
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
        fi_turn turn;
        set_up(&f, 0);
        schedule(&f, 1);
        uint32_t redo = atomic_load(&f.ring.board->redo);
        CHECK_EQ(next_turn(&f, 0, &turn), FI_TURN_ROWS);
        CHECK_EQ(next_turn(&f, 1, &turn), TURN_SLEEP);
        turn.first = 0;
        turn.count = 1;
        turn.q = f.parent.head;
        turn.slot = slot_of(&f, turn.q);
        if (last >= AFTER_OWN)
            CHECK(fi_row_own(f.workers, &turn, 0));
        if (last >= AFTER_DONE)
            fi_row_done(f.workers, &turn, 0, FI_ROW_OK);
        if (last >= IN_FINISH)
            CHECK_EQ(next_turn(&f, 0, &turn), FI_TURN_FINISH);
        if (last >= AFTER_READY)
            store_release(&f.ring.slots[turn.slot].state, fi_word(turn.q, 0, FI_READY, 0));
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
    int pipe_ends[2];
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
    CHECK_EQ(fi_pipe_open(pipe_ends), FI_OK);
    CHECK_EQ(write(pipe_ends[1], "ab", 2), 2);
    fi_parent_rewind(&f.parent, 1, pipe_ends[0]);
    CHECK(atomic_load(&f.ring.slots[slot_of(&f, q)].claim) == q << 32);
    CHECK_EQ(atomic_load(&f.ring.slots[leased].claim), 77); /* not in FILL */
    CHECK_EQ(atomic_load(f.ring.bells + 1), 0);
    CHECK_EQ(fi_wait(pipe_ends, 1, 0, &ready), FI_OK);
    CHECK(!ready);
    CHECK_EQ(f.parent.slot[leased].phase, FI_LEASED);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
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
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.leased, 3);
    fi_parent_release(&f.parent, slots[1]);
    fi_parent_release(&f.parent, slots[0]);
    fi_parent_release(&f.parent, slots[2]);
    CHECK_EQ(f.parent.leased, 3); /* a stack of its own until the parent comes by */
    fi_parent_collect(&f.parent);
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
    fi_turn turn;
    set_up(&f, 0);
    schedule(&f, 1);
    own_batch(&f, 0, &turn, 1);
    fi_parent_reset(&f.parent);
    fi_parent_collect(&f.parent);
    CHECK_EQ(fi_parent_usable(&f.parent), SLOTS - 2);
    tear_down(&f);
}

static void test_retire_at_fork(void)
{
    fixture f;
    set_up(&f, 1);
    CHECK_EQ(f.parent.free_count, SLOTS - 1);
    uint32_t first = lease_one(&f), second = lease_one(&f), back = lease_one(&f);
    fi_parent_release(&f.parent, back); /* before the fork, though not yet collected */
    fi_parent_retire_leased(&f.parent);
    CHECK_EQ(f.parent.retired, 2);
    CHECK_EQ(f.parent.leased, 0);
    CHECK_EQ(f.parent.slot[first].phase, FI_RETIRED);
    CHECK_EQ(f.parent.slot[second].phase, FI_RETIRED);
    CHECK_EQ(f.parent.slot[SLOTS - 1].phase, FI_FREE); /* the spare */
    CHECK_EQ(fi_parent_usable(&f.parent), SLOTS - 2 - 1);
    fi_parent_release(&f.parent, first);
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.slot[first].phase, FI_RETIRED); /* for ever */
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t slot = slot_of(&f, schedule(&f, 1));
        CHECK(slot != first && slot != second);
    }
    uint32_t none;
    CHECK_EQ(fi_parent_next_slot(&f.parent, &none), FI_E_FULL);
    tear_down(&f);
    fi_parent refused;
    CHECK_EQ(fi_parent_init(&refused, &f.ring, SLOTS, NULL), FI_E_RANGE);
}

/* ---- payload ------------------------------------------------------------------------------- */

static void test_heap(void)
{
    fixture f;
    uint64_t offset, need = 0, have = 0;
    set_up(&f, 0);
    uint32_t slot = slot_of(&f, schedule(&f, 1));
    _Atomic uint64_t *limit = &f.ring.slots[slot].limit, *heap = &f.ring.slots[slot].heap;
    const uint64_t right = fi_heap_word(1024);
    CHECK_EQ(fi_heap_take(&f.ring, slot, 1, &offset, &need, &have), FI_OK);
    CHECK_EQ(offset, HEAP);
    CHECK_EQ(fi_heap_take(&f.ring, slot, 100, &offset, &need, &have), FI_OK);
    CHECK_EQ(offset, HEAP + 64); /* aligned */
    CHECK(fi_slot_committed(&f.ring, slot) >= offset + 100);
    atomic_store(limit, 1024);
    CHECK_EQ(fi_heap_take(&f.ring, slot, 1024 - 448 + 1, &offset, &need, &have), FI_E_FULL);
    CHECK(need == 1024 - 448 + 1 && have == 1024 - 448);
    CHECK_EQ(fi_heap_take(&f.ring, slot, UINT64_MAX, &offset, &need, &have), FI_E_FULL);
    CHECK_EQ(fi_heap_take(&f.ring, slot, 1024 - 448, &offset, &need, &have), FI_OK);
    CHECK_EQ(offset, 448);
    CHECK_EQ(fi_slot_used(&f.ring, slot), 1024);
    CHECK_EQ(fi_heap_take(&f.ring, slot, 1, &offset, &need, &have), FI_E_FULL);
    CHECK_EQ(have, 0);
    atomic_store(limit, UINT64_MAX); /* spoilt numbers stay within the slot */
    CHECK_EQ(fi_heap_take(&f.ring, slot, SLOT_BYTES - 1024 + 1, &offset, &need, &have), FI_E_FULL);
    for (uint64_t spoilt = 1; spoilt; spoilt <<= 1) { /* any flipped bit is noticed */
        atomic_store(heap, right ^ spoilt);
        CHECK_EQ(fi_heap_take(&f.ring, slot, 64, &offset, &need, &have), FI_E_BROKEN);
        CHECK_EQ(fi_slot_used(&f.ring, slot), 0);
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
    CHECK_EQ(fi_shm_map(fd, control, &base), FI_OK);
    CHECK_EQ(fi_ring_attach(&ring, &geometry, base, fd, -1), FI_OK);
    CHECK_EQ(fi_parent_init(&parent, &ring, 0, NULL), FI_OK);
    CHECK_EQ(
        fi_parent_schedule(&parent, &index, 1, 0, 0, geometry.slot_bytes, false, &offset), FI_OK);
    const uint64_t much = UINT64_C(1) << 42;
    CHECK_EQ(fi_parent_commit(&parent, 0, much, &need, &have), FI_E_MEMORY);
    CHECK(need == much && have < much);
    CHECK_EQ(fi_heap_take(&ring, 0, much, &offset, &need, &have), FI_E_MEMORY);
    CHECK(need >= much && have < much);
    CHECK_EQ(fi_parent_committed(&parent, 0), 0);
    fi_parent_clear(&parent);
    CHECK_EQ(fi_shm_unmap(base, control), FI_OK);
    close(fd);
}

/* ---- trust --------------------------------------------------------------------------------- */

static void test_check(void)
{
    fixture f;
    uint32_t odd, row;
    uint64_t word;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 3);
    uint32_t slot = slot_of(&f, q);
    work_all(&f, 0);
    _Atomic uint64_t *second = fi_row_word(&f.ring, slot, 1);
    const uint64_t fine[] = {fi_word(q, 0, FI_SPILL, 0), fi_word(q, 0, FI_ERROR, 0),
                             fi_word(q, 0, FI_POISON, 0)};
    for (size_t i = 0; i < 3; i++) {
        atomic_store(second, fine[i]);
        CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_OK);
        CHECK_EQ(odd, 1);
    }
    const uint64_t impossible[] = {
        0,
        UINT64_MAX,
        fi_word(q, 0, FI_TODO, 0),
        fi_word(q, 0, FI_OWNED, 0),
        fi_word(q, 0, FI_VOID, 0),
        fi_word(q, 0, FI_READY, 0),
        fi_word(q, 1, FI_ROW_OK, 0),
        fi_word(q, 0, FI_ROW_OK, 1),
        fi_word(q, 2, FI_SPILL, 0),
        fi_word(q + 1, 0, FI_ROW_OK, 0),
        fi_word(q - 1, 0, FI_ERROR, 0),
    };
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        atomic_store(second, impossible[i]);
        CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_BROKEN);
        CHECK(row == 1 && word == impossible[i]);
    }
    tear_down(&f);
}

/* A number of rows that was too small makes a slot READY while somebody still writes there. */
static void test_broken_head_drains(void)
{
    fixture f;
    fi_turn owned, turn;
    uint32_t slot, flags, odd, row;
    uint64_t word;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 3);
    schedule(&f, 1);
    own_batch(&f, 0, &owned, 3);
    for (row = 0; row < 2; row++)
        fi_row_done(f.workers, &owned, row, FI_ROW_OK);
    atomic_store(&f.ring.slots[owned.slot].n, 2);
    CHECK_EQ(next_turn(&f, 1, &turn), FI_TURN_FINISH);
    fi_worker_ready(f.workers + 1, &turn, 0);
    CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_OK);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_BROKEN);
    CHECK(row == 2 && word == fi_word(q, 0, FI_OWNED, 0));
    fi_parent_drop(&f.parent);
    CHECK_EQ(f.parent.head, q + 1);
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.slot[slot].phase, FI_DRAIN);
    fi_parent_doze(&f.parent, FI_ANY);
    fi_row_done(f.workers, &owned, 2, FI_ROW_OK);
    CHECK_EQ(next_turn(&f, 0, &turn), FI_TURN_ROWS); /* of the next batch */
    CHECK(turn.q == q + 1 && parent_was_rung(&f));
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.slot[slot].phase, FI_FREE);
    tear_down(&f);
}

/* An owner that does not exist never gives a row back, and must not hold a slot for ever. */
static void test_owner_nobody(void)
{
    fixture f;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 2);
    uint32_t slot = slot_of(&f, q);
    atomic_store(fi_row_word(&f.ring, slot, 1), fi_word(q, WORKERS, FI_OWNED, 0));
    for (uint32_t w = 0; w < WORKERS; w++)
        work_all(&f, w);
    CHECK(fi_parent_stalled(&f.parent));
    fi_parent_reset(&f.parent);
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.free_count, SLOTS);
    q = schedule(&f, 1);
    slot = slot_of(&f, q);
    atomic_store(&f.ring.slots[slot].state, fi_word(q, UINT16_MAX, FI_FINISHING, 0));
    fi_parent_reset(&f.parent);
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.free_count, SLOTS);
    tear_down(&f);
}

static void test_stalled_and_repaired(void)
{
    fixture f;
    fi_turn turn;
    set_up(&f, 0);
    CHECK(!fi_parent_stalled(&f.parent)); /* nothing is scheduled */
    uint64_t q = schedule(&f, 2);
    for (uint32_t w = 0; w < WORKERS; w++) {
        CHECK(!fi_parent_stalled(&f.parent)); /* somebody is awake */
        atomic_store(&f.ring.slots[slot_of(&f, q)].claim, 5);
        CHECK_EQ(next_turn(&f, w, &turn), TURN_SLEEP);
    }
    CHECK(fi_parent_stalled(&f.parent));
    atomic_store(f.ring.bells + 1, 7); /* a bell, too, may be spoilt */
    fi_parent_repair(&f.parent);
    for (uint32_t w = 0; w < WORKERS; w++)
        CHECK_EQ(atomic_load(f.ring.bells + w), 0);
    CHECK(!fi_parent_stalled(&f.parent));
    own_batch(&f, 0, &turn, 2);
    atomic_store(f.ring.bells, 0); /* who has rows in hand is not asleep */
    for (uint32_t w = 1; w < WORKERS; w++)
        CHECK_EQ(next_turn(&f, w, &turn), TURN_SLEEP);
    CHECK(!fi_parent_stalled(&f.parent));
    fi_parent_mend(&f.parent);
    for (uint32_t row = 0; row < 2; row++)
        CHECK(row_word(&f, slot_of(&f, q), row) == fi_word(q, 0, FI_OWNED, 0));
    tear_down(&f);
}

static void all_sleep(fixture *f)
{
    for (uint32_t w = 0; w < WORKERS; w++)
        work_all(f, w);
}

/* Words that nobody would ever put right: what is mended comes out whole. */
static void test_mended(void)
{
    fixture f;
    set_up(&f, 0);
    for (int spoilt = 0; spoilt < 8; spoilt++) {
        uint64_t q = schedule(&f, 3);
        uint32_t slot = slot_of(&f, q);
        _Atomic uint64_t *row = fi_row_word(&f.ring, slot, 1), *state = &f.ring.slots[slot].state;
        switch (spoilt) {
        case 0: atomic_store(row, 0); break;
        case 1: atomic_store(row, fi_word(q, 2, FI_OWNED, 0)); break; /* he sleeps */
        case 2: atomic_store(row, fi_word(q, WORKERS, FI_OWNED, 0)); break;
        case 3: atomic_store(row, fi_word(q - 1, 0, FI_ROW_OK, 0)); break;
        case 4: atomic_store(row, fi_word(q, 0, FI_VOID, 0)); break;
        case 5: atomic_store(state, fi_word(q, 1, FI_FINISHING, 0)); break;
        case 6: atomic_store(state, fi_word(q, 0, FI_READY, 1)); break; /* no flags */
        default: atomic_store(state, UINT64_MAX);
        }
        all_sleep(&f);
        fi_parent_repair(&f.parent);
        all_sleep(&f);
        CHECK(fi_parent_stalled(&f.parent));
        fi_parent_mend(&f.parent);
        CHECK(!fi_parent_stalled(&f.parent)); /* all were woken */
        all_sleep(&f);
        take_ready(&f, true);
    }
    schedule(&f, 2); /* and the slot that drains comes back */
    atomic_store(fi_row_word(&f.ring, slot_of(&f, f.parent.head), 0),
                 fi_word(f.parent.head, 1, FI_OWNED, 0));
    fi_parent_reset(&f.parent);
    all_sleep(&f);
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.draining, 1);
    CHECK(fi_parent_stalled(&f.parent));
    fi_parent_mend(&f.parent);
    fi_parent_collect(&f.parent);
    CHECK_EQ(f.parent.free_count, SLOTS);
    tear_down(&f);
}

/* No flipped bit, nor two, turns a word of the protocol into another one. */
static void test_codes(void)
{
    for (uint32_t one = 0; one < 16; one++)
        for (uint32_t other = 0; other < one; other++) {
            uint32_t differ = FI_HAMMING(one) ^ FI_HAMMING(other);
            CHECK(__builtin_popcount(differ) >= 4 && differ < 256);
        }
    CHECK_EQ(FI_HAMMING(0u), 0);
}

/* What the workers were told is compared with what they should have been told. */
static void test_task_is_checked(void)
{
    fixture f;
    uint32_t odd, row;
    uint64_t word;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 3);
    uint32_t slot = slot_of(&f, q);
    work_all(&f, 0);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_OK);
    for (uint32_t spoilt = 0; spoilt < 3; spoilt++) {
        int64_t right = *fi_row_index(&f.ring, slot, spoilt);
        *fi_row_index(&f.ring, slot, spoilt) = -7;
        CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_BROKEN);
        CHECK(row == spoilt && word == (uint64_t)-7);
        *fi_row_index(&f.ring, slot, spoilt) = right;
    }
    atomic_store(&f.ring.slots[slot].n, 2);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_BROKEN);
    CHECK(word == (UINT64_C(1) << 32 | 2));
    atomic_store(&f.ring.slots[slot].n, 3);
    atomic_store(&f.ring.slots[slot].schema, 0);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_BROKEN);
    tear_down(&f);
}

/* Told to leave by a spoilt word, workers leave; those that follow them find it put right. */
static void test_spoilt_stop(void)
{
    fixture f;
    fi_turn turn;
    set_up(&f, 0);
    schedule(&f, 1);
    atomic_store(&f.ring.board->stop, 1);
    CHECK_EQ(next_turn(&f, 0, &turn), FI_TURN_STOP);
    CHECK_EQ(recover(&f, 0, false), 0);
    work_all(&f, 0);
    take_ready(&f, true);
    fi_parent_stop(&f.parent);
    CHECK_EQ(recover(&f, 0, false), 0);
    CHECK_EQ(atomic_load(&f.ring.board->stop), 1);
    tear_down(&f);
}

static uint64_t random_word(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x >> (x & 63); /* any size */
}

static void spoil(fixture *f, uint64_t *state)
{
    fi_board *board = f->ring.board;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        fi_slot *s = f->ring.slots + slot;
        if (random_word(state) & 1)
            atomic_store(&s->claim, random_word(state));
        if (random_word(state) & 1)
            atomic_store(&s->claim, f->parent.slot[slot].q << 32 | random_word(state) % (2 * ROWS));
        if (random_word(state) & 1)
            atomic_store(f->ring.map + slot, (uint32_t)random_word(state));
        if (random_word(state) & 1)
            atomic_store(f->ring.map + slot, (uint32_t)(random_word(state) % SLOTS));
        if (random_word(state) & 1) /* never too small: test_broken_head_drains has that case */
            atomic_store(&s->n, f->parent.slot[slot].n + (uint32_t)(random_word(state) >> 33));
        atomic_store(&s->single, (uint32_t)random_word(state));
    }
    for (uint32_t w = 0; w < WORKERS; w++)
        atomic_store(f->ring.bells + w, (uint32_t)random_word(state));
    atomic_store(f->ring.pwait, random_word(state));
    atomic_store(&board->redo, (uint32_t)random_word(state));
    if (random_word(state) & 1)
        atomic_store(&board->head, random_word(state));
    /* The worker walks up to the tail: in this one thread nobody else would put it right. */
    atomic_store(&board->tail, f->parent.head + random_word(state) % 1000);
}

static void test_spoilt_hints(void)
{
    uint64_t state = 1;
    fixture f;
    set_up(&f, 0);
    for (int round = 0; round < 600; round++) {
        while (f.parent.free_count > 0)
            schedule(&f, 1 + (uint32_t)(random_word(&state) % ROWS));
        for (int times = 0; times < 3; times++) {
            spoil(&f, &state);
            work_all(&f, (uint32_t)(random_word(&state) % WORKERS));
        }
        if (round % 2)
            fi_parent_rewind(&f.parent, (uint32_t)round % WORKERS, -1);
        else
            fi_parent_repair(&f.parent);
        for (uint32_t w = 0; w < WORKERS; w++)
            work_all(&f, w);
        for (int batch = 0; batch < SLOTS; batch++)
            take_ready(&f, true);
    }
    tear_down(&f);
}

int main(void)
{
    test_losses();
    test_lost_finish();
    test_survivor_completes();
    test_rewind();
    test_usable_and_release();
    test_draining_is_not_usable();
    test_retire_at_fork();
    test_heap();
    test_committed();
    test_commit_refused();
    test_check();
    test_broken_head_drains();
    test_owner_nobody();
    test_stalled_and_repaired();
    test_mended();
    test_codes();
    test_task_is_checked();
    test_spoilt_stop();
    test_spoilt_hints();
    return 0;
}

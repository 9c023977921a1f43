/* The ring in one thread: what corrupt words may and may not do. */
#include "ring_fixture.h"

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
        fi_word(q, 0, FI_CANCELLED, 0),
        fi_word(q, 0, FI_READY, 0),
        fi_word(q, 1, FI_ROW_OK, 0),
        fi_word(q, 0, FI_ROW_OK, 1),
        fi_word(q, 2, FI_SPILL, 0),
        fi_word(q + 1, 0, FI_ROW_OK, 0),
        fi_word(q - 1, 0, FI_ERROR, 0),
    };
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++) {
        atomic_store(second, impossible[i]);
        CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_CORRUPT);
        CHECK(row == 1 && word == impossible[i]);
    }
    tear_down(&f);
}

/* A number of rows that was too small makes a slot READY while somebody still writes there. */
static void test_corrupt_head_drains(void)
{
    fixture f;
    fi_claim owned, claim;
    uint32_t slot, flags, odd, row;
    uint64_t word;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 3);
    schedule(&f, 1);
    own_batch(&f, 0, &owned, 3);
    for (row = 0; row < 2; row++)
        fi_row_done(f.workers, &owned, row, FI_ROW_OK);
    atomic_store(&f.ring.slots[owned.slot].n, 2);
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_FINISH);
    fi_worker_ready(f.workers + 1, &claim, 0);
    CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_OK);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_CORRUPT);
    CHECK(row == 2 && word == fi_word(q, 0, FI_OWNED, 0));
    fi_parent_drop(&f.parent, slot);
    CHECK_EQ(f.parent.head, q + 1);
    collect(&f.parent);
    CHECK_EQ(f.parent.slot[slot].phase, FI_DRAIN);
    fi_parent_announce_sleep(&f.parent, FI_ANY);
    fi_row_done(f.workers, &owned, 2, FI_ROW_OK);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS); /* of the next batch */
    CHECK(claim.q == q + 1 && parent_was_rung(&f));
    collect(&f.parent);
    CHECK_EQ(f.parent.slot[slot].phase, FI_FREE);
    tear_down(&f);
}

static void all_sleep(fixture *f)
{
    for (uint32_t w = 0; w < WORKERS; w++)
        work_all(f, w);
}

/* The parent's timer: hints are restored, then all workers look for work and sleep again. */
static void let_all_look(fixture *f)
{
    fi_parent_restore_hints(&f->parent);
    for (uint32_t w = 0; w < WORKERS; w++)
        CHECK_EQ(atomic_load(f->ring.bells + w), 0);
    CHECK(!fi_parent_stalled(&f->parent));
    all_sleep(f);
}

static void test_stalled_by_a_hint(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    CHECK(!fi_parent_stalled(&f.parent)); /* nothing is scheduled */
    uint64_t q = schedule(&f, 2);
    for (uint32_t w = 0; w < WORKERS; w++) {
        CHECK(!fi_parent_stalled(&f.parent)); /* one worker is awake */
        atomic_store(&f.ring.slots[slot_of(&f, q)].claim, 5);
        CHECK_EQ(next_claim(&f, w, &claim), CLAIM_SLEEP);
    }
    CHECK(fi_parent_stalled(&f.parent));
    atomic_store(f.ring.bells + 1, 7); /* a bell may be corrupt, too */
    let_all_look(&f);
    take_ready(&f, true);
    schedule(&f, 2);
    own_batch(&f, 0, &claim, 2);
    atomic_store(f.ring.bells, 0); /* a worker that owns rows is not asleep */
    for (uint32_t w = 1; w < WORKERS; w++)
        CHECK_EQ(next_claim(&f, w, &claim), CLAIM_SLEEP);
    CHECK(!fi_parent_stalled(&f.parent));
    tear_down(&f);
}

/* A corrupt word that no worker will ever change costs its batch, and no other one. */
static void test_given_up(void)
{
    fixture f;
    uint32_t slot, flags, odd, row;
    uint64_t word;
    set_up(&f, 0);
    for (int which = 0; which < 9; which++) {
        uint64_t q = schedule(&f, 3);
        uint32_t given_up = slot_of(&f, q);
        _Atomic uint64_t *second = fi_row_word(&f.ring, given_up, 1);
        _Atomic uint64_t *state = &f.ring.slots[given_up].state;
        schedule(&f, 2);
        switch (which) {
        case 0: atomic_store(second, 0); break;
        case 1: atomic_store(second, fi_word(q, 2, FI_OWNED, 0)); break; /* that worker sleeps */
        case 2: atomic_store(second, fi_word(q, WORKERS, FI_OWNED, 0)); break; /* there is none */
        case 3: atomic_store(second, fi_word(q - 1, 0, FI_ROW_OK, 0)); break;
        case 4: atomic_store(second, fi_word(q, 0, FI_CANCELLED, 0)); break;
        case 5: atomic_store(state, fi_word(q, 1, FI_FINISHING, 0)); break;
        case 6: atomic_store(state, fi_word(q, 0, FI_READY, 1)); break; /* no such flags */
        case 7: atomic_store(&f.ring.slots[given_up].n, 5); break;
        default: atomic_store(state, UINT64_MAX);
        }
        all_sleep(&f);
        let_all_look(&f);
        CHECK(fi_parent_stalled(&f.parent));
        fi_parent_give_up(&f.parent);
        CHECK(!fi_parent_stalled(&f.parent));
        CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_OK);
        CHECK_EQ(slot, given_up);
        CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_CORRUPT);
        fi_parent_drop(&f.parent, slot);
        CHECK_EQ(f.parent.slot[slot].phase, FI_FREE);
        take_ready(&f, true);
    }
    tear_down(&f);
}

/* A slot that drains waits for the owner that a corrupt word names only until all workers sleep. */
static void test_given_up_while_it_drains(void)
{
    fixture f;
    set_up(&f, 0);
    for (int which = 0; which < 3; which++) {
        uint64_t q = schedule(&f, 2);
        uint32_t slot = slot_of(&f, q);
        if (which < 2)
            atomic_store(fi_row_word(&f.ring, slot, 1),
                         fi_word(q, which == 0 ? WORKERS : 1, FI_OWNED, 0));
        else
            atomic_store(&f.ring.slots[slot].state, fi_word(q, UINT16_MAX, FI_FINISHING, 0));
        all_sleep(&f);
        fi_parent_reset(&f.parent);
        collect(&f.parent);
        CHECK_EQ(f.parent.draining, 1);
        CHECK(fi_parent_stalled(&f.parent));
        fi_parent_give_up(&f.parent);
        CHECK(f.parent.draining == 0 && f.parent.free_count == SLOTS);
    }
    tear_down(&f);
}

/* A slot is not used again while a corrupt word may belong to a worker that still writes. */
static void test_corrupt_words_keep_their_slot(void)
{
    fixture f;
    fi_worker late;
    fi_claim claim;
    for (uint32_t corrupt = 0; corrupt < 3; corrupt++) {
        set_up(&f, 0);
        uint64_t q = schedule(&f, 1);
        uint32_t slot = slot_of(&f, q);
        fi_worker_init(&late, &f.ring, 1, -1);
        CHECK_EQ(fi_worker_next(&late, &claim), FI_CLAIM_ROWS);
        CHECK(fi_row_own(&late, &claim, 0));
        if (corrupt == 2) {
            fi_row_done(&late, &claim, 0, FI_ROW_OK);
            CHECK_EQ(fi_worker_next(&late, &claim), FI_CLAIM_FINISH);
        }
        fi_parent_reset(&f.parent);
        switch (corrupt) {
        case 0: atomic_store(fi_row_word(&f.ring, slot, 0), UINT64_MAX); break;
        case 1: atomic_store(fi_row_word(&f.ring, slot, 0), fi_word(q, WORKERS, FI_OWNED, 0)); break;
        default: atomic_store(&f.ring.slots[slot].state, 0);
        }
        collect(&f.parent);
        CHECK_EQ(f.parent.draining, 1);
        if (corrupt == 2)
            fi_worker_ready(&late, &claim, 0);
        else
            fi_row_done(&late, &claim, 0, FI_ROW_OK); /* the late writer ends */
        collect(&f.parent);
        CHECK_EQ(f.parent.draining, 0);
        tear_down(&f);
    }
}

/* No flipped bit, nor two, claims a word of the protocol into another one. */
static void test_codes(void)
{
    const uint32_t codes[] = {0,        FI_TODO,  FI_OWNED,  FI_CANCELLED,    FI_ROW_OK,   FI_SPILL,
                              FI_ERROR, FI_POISON, FI_FILLING, FI_FINISHING, FI_READY};
    for (size_t one = 0; one < sizeof codes / sizeof *codes; one++)
        for (size_t other = 0; other < one; other++) {
            uint32_t differ = codes[one] ^ codes[other];
            CHECK(__builtin_popcount(differ) >= 4 && differ < 256);
        }
    for (uint32_t bit = 0; bit < 64; bit++) /* of flags: no flipped bit makes other ones */
        for (uint32_t flags = 0; flags < 16; flags++) {
            uint64_t word = fi_ready_word(5, flags) ^ UINT64_C(1) << bit;
            CHECK(word != fi_ready_word(5, fi_word_flags(word)));
        }
}

/* The task that the workers read is compared with the parent's copy. */
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
    for (uint32_t corrupt = 0; corrupt < 3; corrupt++) {
        int64_t right = *fi_row_index(&f.ring, slot, corrupt);
        *fi_row_index(&f.ring, slot, corrupt) = -7;
        CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_CORRUPT);
        CHECK(row == corrupt && word == (uint64_t)-7);
        *fi_row_index(&f.ring, slot, corrupt) = right;
    }
    atomic_store(&f.ring.slots[slot].n, 2);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_CORRUPT);
    CHECK(word == (UINT64_C(1) << 32 | 2));
    atomic_store(&f.ring.slots[slot].n, 3);
    atomic_store(&f.ring.slots[slot].schema, 0);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_E_CORRUPT);
    tear_down(&f);
}

/* So is what random numbers follow from. */
static void test_origin_is_checked(void)
{
    fixture f;
    uint32_t odd, row, slot;
    uint64_t word;
    set_up(&f, 0);
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &slot), FI_OK);
    fi_origin origin = {{11, 12}, 13, 14, UINT64_C(1) << 40};
    fi_parent_origin(&f.parent, slot, &origin);
    CHECK_EQ(slot_of(&f, schedule(&f, 3)), slot);
    work_all(&f, 0);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_OK);
    fi_slot *s = f.ring.slots + slot;
    for (uint32_t corrupt = 0; corrupt < 5; corrupt++) {
        _Atomic uint64_t *words[] = {&s->seed[0], &s->seed[1], &s->epoch};
        _Atomic uint32_t *halves[] = {&s->position, &s->epoch_size};
        for (uint32_t times = 0; times < 2; times++) { /* corrupt, and put right again */
            if (corrupt < 3)
                *words[corrupt] ^= UINT64_C(1) << 33;
            else
                *halves[corrupt - 3] ^= 8;
            CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word),
                     times == 0 ? FI_E_CORRUPT : FI_OK);
        }
    }
    tear_down(&f);
}

/* So is the request, which workers do not look for outside the slot. */
static void test_request_is_checked(void)
{
    fixture f;
    uint32_t odd, row, slot;
    uint64_t word, offset, bytes;
    set_up(&f, 0);
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &slot), FI_OK);
    CHECK_EQ(fi_parent_commit(&f.parent, slot, FI_PAGE, &word, &bytes), FI_OK);
    const fi_request request = {128, 64, 1 + 2};
    CHECK_EQ(fi_parent_request(&f.parent, slot, &request), FI_OK);
    CHECK_EQ(slot_of(&f, schedule(&f, 3)), slot);
    CHECK_EQ(fi_slot_request(&f.ring, slot, &offset, &bytes), FI_OK);
    CHECK(offset == 128 && bytes == 64 && fi_slot_has_request(&f.ring, slot));
    work_all(&f, 2);
    CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word), FI_OK);
    fi_slot *s = f.ring.slots + slot;
    _Atomic uint64_t *words[] = {&s->request_offset, &s->request_bytes};
    for (uint32_t bit = 0; bit < 160; bit++)
        for (uint32_t times = 0; times < 2; times++) { /* corrupt, and put right again */
            if (bit < 128)
                *words[bit / 64] ^= UINT64_C(1) << bit % 64;
            else
                s->worker ^= UINT32_C(1) << (bit - 128);
            CHECK_EQ(fi_parent_check(&f.parent, slot, &odd, &row, &word),
                     times == 0 ? FI_E_CORRUPT : FI_OK);
            CHECK(fi_slot_request(&f.ring, slot, &offset, &bytes) == FI_E_CORRUPT ||
                  (offset <= FI_PAGE && bytes <= FI_PAGE - offset));
        }
    tear_down(&f);
}

/* Told to leave by a corrupt word, workers leave; those that follow them find it put right. */
static void test_corrupt_stop(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    schedule(&f, 1);
    atomic_store(&f.ring.board->stop, 1);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_STOP);
    CHECK_EQ(recover(&f, 0, false), 0);
    work_all(&f, 0);
    take_ready(&f, true);
    fi_parent_stop(&f.parent);
    CHECK_EQ(recover(&f, 0, false), 0);
    CHECK_EQ(atomic_load(&f.ring.board->stop), 1);
    tear_down(&f);
}

/* A worker asks for the rows before those of its claim: also by the map, and behind any slot number. */
static void test_corrupt_map_of_rows_before(void)
{
    fixture f;
    fi_claim claim;
    int64_t found[2 * ROWS];
    set_up(&f, 0);
    uint64_t first = schedule(&f, 2), q = schedule(&f, 3);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    own_all(&f, 0, &claim, 0);
    claim = (fi_claim){.q = q, .slot = slot_of(&f, q), .n = 3, .first = 2, .count = 1};
    CHECK_EQ(fi_rows_before(f.workers, &claim, found, 2 * ROWS), 4);
    atomic_store(f.ring.map + q % SLOTS, UINT32_MAX);
    CHECK_EQ(fi_rows_before(f.workers, &claim, found, 2 * ROWS), 4);
    CHECK_EQ(found[3], 1000 * (int64_t)q + 1);
    atomic_store(f.ring.map + first % SLOTS, UINT32_MAX);
    CHECK_EQ(fi_rows_before(f.workers, &claim, found, 2 * ROWS), 2);
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

static void corrupt_hints(fixture *f, uint64_t *state)
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

static void test_corrupt_hints(void)
{
    uint64_t state = 1;
    fixture f;
    set_up(&f, 0);
    for (int round = 0; round < 600; round++) {
        while (f.parent.free_count > 0)
            schedule(&f, 1 + (uint32_t)(random_word(&state) % ROWS));
        for (int times = 0; times < 3; times++) {
            corrupt_hints(&f, &state);
            work_all(&f, (uint32_t)(random_word(&state) % WORKERS));
        }
        if (round % 2)
            fi_parent_rewind(&f.parent, (uint32_t)round % WORKERS);
        else
            fi_parent_restore_hints(&f.parent);
        for (uint32_t w = 0; w < WORKERS; w++)
            work_all(&f, w);
        for (int batch = 0; batch < SLOTS; batch++)
            take_ready(&f, true);
    }
    tear_down(&f);
}

int main(void)
{
    test_check();
    test_corrupt_head_drains();
    test_stalled_by_a_hint();
    test_given_up();
    test_given_up_while_it_drains();
    test_corrupt_words_keep_their_slot();
    test_codes();
    test_task_is_checked();
    test_origin_is_checked();
    test_request_is_checked();
    test_corrupt_stop();
    test_corrupt_map_of_rows_before();
    test_corrupt_hints();
    return 0;
}

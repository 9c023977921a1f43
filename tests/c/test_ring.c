/* The ring step by step in one thread: layout, words, each line of the state tables, ranges, rings,
 * reset. What deaths, leases and corrupt words do is in test_ring_faults.c, what slow workers do in
 * test_ring_hedges.c. */
#include "ring_fixture.h"

/* ---- the origin of a batch ------------------------------------------------------------------ */

/* The epoch of a row, counted from the batch's last row backwards, one by one. */
static uint64_t epoch_of(const fi_origin *origin, uint32_t row, uint32_t n)
{
    uint64_t epoch = origin->epoch, left = origin->position;
    for (uint32_t r = n; r-- > row;) {
        if (left == 0) {
            epoch--;
            left = origin->epoch_size;
        }
        left--;
    }
    return epoch;
}

static void test_origin(void)
{
    fixture f;
    uint32_t slot;
    fi_origin found;
    set_up(&f, 0);
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &slot), FI_OK);
    for (uint64_t size = 1; size < 9; size++)
        for (uint64_t position = 0; position <= size; position++)
            for (uint32_t n = 1; n < 20; n++) {
                const fi_origin origin = {{size, position}, 100, position, size};
                fi_parent_origin(&f.parent, slot, &origin);
                fi_slot_origin(&f.ring, slot, &found);
                CHECK(memcmp(&found, &origin, sizeof(found)) == 0);
                for (uint32_t row = 0; row < n; row++)
                    CHECK_EQ(fi_row_epoch(&found, row, n), epoch_of(&origin, row, n));
            }
    /* More than 32 bits can count, and what cannot be: no row is of an epoch before the first. */
    const fi_origin large = {{0, UINT64_MAX}, UINT64_MAX, UINT64_MAX, UINT64_C(1) << 40};
    fi_parent_origin(&f.parent, slot, &large);
    fi_slot_origin(&f.ring, slot, &found);
    CHECK_EQ(fi_row_epoch(&found, 0, ROWS), UINT64_MAX);
    const fi_origin odd = {{0, 0}, 2, 0, 0};
    fi_parent_origin(&f.parent, slot, &odd);
    fi_slot_origin(&f.ring, slot, &found);
    CHECK_EQ(fi_row_epoch(&found, ROWS - 1, ROWS), 1);
    CHECK_EQ(fi_row_epoch(&found, 0, ROWS), 0);
    CHECK_EQ(fi_row_epoch(&found, ROWS, ROWS), 2); /* no row of the batch */
    tear_down(&f);
}

/* ---- layout and words ---------------------------------------------------------------------- */

static int size_of(uint32_t slots, uint32_t workers, uint32_t rows, uint32_t schemas,
                   uint64_t slot_bytes)
{
    fi_geometry geometry = {slots, workers, rows, schemas, slot_bytes};
    uint64_t control = 0, total = 0;
    int rc = fi_ring_size(&geometry, &control, &total);
    if (rc == FI_OK)
        CHECK(control % FI_HUGE_PAGE == 0 && total == control + slots * slot_bytes);
    return rc;
}

static void test_geometry(void)
{
    const uint64_t most = UINT64_C(1) << 44;
    CHECK_EQ(size_of(1, 1, 1, 1, FI_PAGE), FI_OK);
    CHECK_EQ(size_of(1u << 16, 0xffff, 1u << 30, 1u << 10, most), FI_OK);
    CHECK_EQ(size_of(0, 1, 1, 1, FI_PAGE), FI_E_RANGE);
    CHECK_EQ(size_of((1u << 16) + 1, 1, 1, 1, FI_PAGE), FI_E_RANGE);
    CHECK_EQ(size_of(1, 0, 1, 1, FI_PAGE), FI_E_RANGE);
    CHECK_EQ(size_of(1, 0x10000, 1, 1, FI_PAGE), FI_E_RANGE);
    CHECK_EQ(size_of(1, 1, 0, 1, FI_PAGE), FI_E_RANGE);
    CHECK_EQ(size_of(1, 1, (1u << 30) + 1, 1, FI_PAGE), FI_E_RANGE);
    CHECK_EQ(size_of(1, 1, 1, 0, FI_PAGE), FI_E_RANGE);
    CHECK_EQ(size_of(1, 1, 1, (1u << 10) + 1, FI_PAGE), FI_E_RANGE);
    CHECK_EQ(size_of(1, 1, 1, 1, 0), FI_E_RANGE);
    CHECK_EQ(size_of(1, 1, 1, 1, FI_PAGE + 1), FI_E_RANGE);
    CHECK_EQ(size_of(1, 1, 1, 1, most + FI_PAGE), FI_E_RANGE);
}

static void test_layout(void)
{
    fixture f;
    set_up(&f, 0);
    const fi_ring *r = &f.ring;
    const struct {
        const void *start;
        size_t bytes, alignment;
    } areas[] = {
        {r->board, sizeof *r->board, FI_CACHE_LINE},
        {r->map, SLOTS * sizeof *r->map, FI_CACHE_LINE},
        {r->pwait, sizeof *r->pwait, FI_CACHE_LINE},
        {r->bells, WORKERS * sizeof *r->bells, FI_CACHE_LINE},
        {r->worker_stats, WORKERS * sizeof *r->worker_stats, FI_CACHE_LINE},
        {r->slots, SLOTS * sizeof *r->slots, FI_CACHE_LINE},
        {r->words, SLOTS * ROWS * sizeof *r->words, FI_CACHE_LINE},
        {r->indices, SLOTS * ROWS * sizeof *r->indices, FI_CACHE_LINE},
        {r->entries, SLOTS * ROWS * sizeof *r->entries, FI_CACHE_LINE},
        {r->schemas, (size_t)2 * FI_SCHEMA_BYTES, FI_PAGE},
        {r->start_errors, (size_t)WORKERS * FI_START_ERROR_BYTES, FI_PAGE},
        {r->traces, (size_t)WORKERS * FI_TRACE_BYTES, FI_PAGE},
    };
    const char *end = r->base;
    for (size_t i = 0; i < sizeof areas / sizeof *areas; i++) {
        const char *start = areas[i].start;
        CHECK(start >= end && (size_t)(start - r->base) % areas[i].alignment == 0);
        end = start + areas[i].bytes;
    }
    CHECK(end <= r->base + r->payload && r->payload == f.control);
    CHECK_EQ(fi_slot_place(r, 2), r->payload + 2 * SLOT_BYTES);
    /* A range is taken with one line; what workers fill lies on another. */
    CHECK(offsetof(fi_slot, single) + sizeof(uint32_t) <= FI_CACHE_LINE);
    CHECK_EQ(offsetof(fi_slot, heap), FI_CACHE_LINE);
    CHECK_EQ(sizeof(fi_board), FI_CACHE_LINE);
    tear_down(&f);
}

static void test_words(void)
{
    uint64_t word = fi_word(UINT64_C(0x123456789a), 0x1fffe, FI_OWNED, 0x103);
    CHECK(fi_word_q(word) == 0x3456789a && (word >> 16 & 0xffff) == 0xfffe);
    CHECK(fi_word_code(word) == FI_OWNED && fi_word_flags(word) == 3);
    for (uint32_t code = 0; code < 256; code++)
        CHECK_EQ(fi_code_done(code), code == FI_ROW_OK || code == FI_SPILL || code == FI_ERROR ||
                                         code == FI_POISON);
}

/* ---- schedule, ranges, rows, finish, take -------------------------------------------------- */

static void test_schedule(void)
{
    fixture f;
    int64_t indices[ROWS + 1] = {0};
    uint32_t slot;
    uint64_t q;
    set_up(&f, 0);
    CHECK_EQ(fi_parent_schedule(&f.parent, 0, indices, 0, 0, 0, false, &q), FI_E_RANGE);
    CHECK_EQ(fi_parent_schedule(&f.parent, 0, indices, ROWS + 1, 0, 0, false, &q), FI_E_RANGE);
    CHECK_EQ(fi_parent_schedule(&f.parent, 0, indices, 1, 2, 0, false, &q), FI_E_RANGE);
    for (uint32_t i = 0; i < SLOTS; i++) {
        CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &slot), FI_OK);
        q = schedule(&f, 3 + i);
        CHECK(q > 0 && q == f.parent.tail - 1); /* 0 would look like a parent that is awake */
        CHECK_EQ(slot_of(&f, q), slot);
        CHECK_EQ(atomic_load(f.ring.map + q % SLOTS), slot);
        CHECK_EQ(atomic_load(&f.ring.slots[slot].n), 3 + i);
        CHECK_EQ(fi_slot_schema(&f.ring, slot), 1);
        CHECK_EQ(fi_slot_used(&f.ring, slot), HEAP);
        CHECK(state_word(&f, slot) == fi_word(q, 0, FI_FILLING, 0));
        CHECK(atomic_load(&f.ring.slots[slot].claim) == q << 32);
        for (uint32_t row = 0; row < 3 + i; row++) {
            CHECK(row_word(&f, slot, row) == fi_word(q, 0, FI_TODO, 0));
            CHECK_EQ(*fi_row_index(&f.ring, slot, row), 1000 * (int64_t)q + row);
        }
        CHECK(row_word(&f, slot, 3 + i) == 0);
        CHECK_EQ(atomic_load(&f.ring.board->tail), q + 1);
    }
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &slot), FI_E_FULL);
    CHECK_EQ(fi_parent_schedule(&f.parent, 0, indices, 1, 0, 0, false, &q), FI_E_FULL);
    CHECK_EQ(fi_parent_schedule(&f.parent, SLOTS, indices, 1, 0, 0, false, &q), FI_E_FULL);
    tear_down(&f);
}

/* A slot that was chosen is the one that is scheduled, whatever comes back in between. */
static void test_slots_come_back_before_the_schedule(void)
{
    fixture f;
    int64_t index = 0;
    uint32_t chosen, leased;
    uint64_t q;
    set_up(&f, 0);
    leased = slot_of(&f, schedule(&f, 1));
    work_all(&f, 0);
    take_ready(&f, false);
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &chosen), FI_OK);
    fi_returned_push(&f.ring.returned, leased, false);
    collect(&f.parent); /* now the one used last */
    CHECK_EQ(fi_parent_schedule(&f.parent, chosen, &index, 1, 0, 0, false, &q), FI_OK);
    CHECK(chosen != leased && slot_of(&f, q) == chosen);
    CHECK_EQ(fi_parent_schedule(&f.parent, chosen, &index, 1, 0, 0, false, &q), FI_E_FULL);
    CHECK_EQ(slot_of(&f, schedule(&f, 1)), leased);
    tear_down(&f);
}

static void test_ranges(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    schedule(&f, 50);
    uint32_t next = 0;
    while (next < 50) { /* guided: half of a fair share of what is left */
        CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS);
        CHECK_EQ(claim.first, next);
        CHECK_EQ(claim.count, fi_max_u64(1, (50 - next) / (2 * WORKERS)));
        CHECK_EQ(claim.n, 50);
        next += claim.count;
    }
    CHECK_EQ(next_claim(&f, 1, &claim), CLAIM_SLEEP); /* no row was done: nothing to finish */
    fi_parent_rewind(&f.parent, 1);
    fi_parent_offer_singly(&f.parent);
    for (next = 0; next < 50; next++) {
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
        CHECK(claim.first == next && claim.count == 1);
    }
    tear_down(&f);
}

static void test_ranges_of_cheap_rows(void)
{
    static const struct {
        uint32_t rows;
        int64_t nanoseconds;
        uint32_t least; /* rows that take about 2 us together */
    } paces[] = {{10, 1000, 19}, {1, 0, 22}, {100, INT64_C(1000000), 1}, {0, 5, 1}};
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    for (size_t i = 0; i < sizeof paces / sizeof *paces; i++) {
        fi_worker_pace(f.workers, paces[i].rows, paces[i].nanoseconds);
        CHECK_EQ(f.workers[0].least, paces[i].least);
    }
    for (int range = 0; range < 60; range++) /* a slow range is forgotten little by little */
        fi_worker_pace(f.workers, 10, 1000);
    CHECK_EQ(f.workers[0].least, 19);
    schedule(&f, 50);
    for (uint32_t next = 0; next < 50; next += claim.count) {
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
        CHECK_EQ(claim.count, fi_min_u64(19, 50 - next));
    }
    fi_parent_rewind(&f.parent, 1);
    fi_parent_offer_singly(&f.parent);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    CHECK_EQ(claim.count, 1);
    tear_down(&f);
}

static void test_ranges_where_calls_have_a_fixed_cost(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    for (uint32_t rows = 5; rows <= 20; rows += 5) /* a call costs as much as 40 rows */
        fi_call_cost_add(&f.workers->call, rows, 1000 * (40 + rows));
    schedule(&f, 50);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    CHECK_EQ(claim.count, 25); /* two workers have nothing else to do */
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS);
    CHECK(claim.first == 25 && claim.count == 4); /* this one has not called yet */
    while (claim.first + claim.count < 50)
        CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS);
    schedule(&f, 50);
    schedule(&f, 50);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    CHECK(claim.q == 2 && claim.count == 50); /* each has a batch */
    fi_parent_rewind(&f.parent, 1);
    fi_parent_offer_singly(&f.parent);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    CHECK_EQ(claim.count, 1);
    tear_down(&f);
}

static void test_row_states(void)
{
    static const uint32_t done[] = {FI_ROW_OK, FI_SPILL, FI_ERROR, FI_POISON};
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 4);
    uint32_t slot = slot_of(&f, q);
    for (uint32_t row = 0; row < 4; row++) {
        CHECK_EQ(next_claim(&f, 2, &claim), FI_CLAIM_ROWS);
        CHECK(fi_row_own(f.workers + 2, &claim, row));
        CHECK(row_word(&f, slot, row) == fi_word(q, 2, FI_OWNED, 0));
        CHECK(!fi_row_own(f.workers + 1, &claim, row) && !fi_row_own(f.workers + 2, &claim, row));
        CHECK(row_word(&f, slot, row) == fi_word(q, 2, FI_OWNED, 0));
        CHECK_EQ(fi_row_code(&f.ring, slot, row, q), FI_OWNED);
        fi_row_done(f.workers + 2, &claim, row, done[row]);
        CHECK(row_word(&f, slot, row) == fi_word(q, 0, done[row], 0));
        CHECK(!fi_row_own(f.workers + 1, &claim, row));
        CHECK_EQ(fi_row_code(&f.ring, slot, row, q), done[row]);
        CHECK_EQ(fi_row_code(&f.ring, slot, row, q + 1), 0);
    }
    tear_down(&f);
}

static void test_finish_and_take(void)
{
    fixture f;
    fi_claim claim, other;
    uint32_t slot, flags;
    set_up(&f, 0);
    CHECK_EQ(fi_parent_count_ready(&f.parent), 0);
    uint64_t q = schedule(&f, 5);
    slot = slot_of(&f, q);
    CHECK_EQ(fi_parent_count_ready(&f.parent), 0);
    CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_E_BUSY);
    for (uint32_t row = 0; row < 5; row++) {
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
        own_all(&f, 0, &claim, FI_ROW_OK);
    }
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_FINISH);
    CHECK(claim.q == q && claim.slot == slot && claim.n == 5 && claim.count == 0);
    CHECK(state_word(&f, slot) == fi_word(q, 0, FI_FINISHING, 0));
    CHECK_EQ(next_claim(&f, 1, &other), CLAIM_SLEEP); /* there is one finisher */
    CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_E_BUSY);
    fi_worker_ready(f.workers, &claim, FI_CONVERTED_FIELDS);
    CHECK(state_word(&f, slot) == fi_ready_word(q, FI_CONVERTED_FIELDS));
    CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_OK);
    CHECK_EQ(fi_parent_count_ready(&f.parent), 1);
    CHECK(slot == slot_of(&f, q) && flags == FI_CONVERTED_FIELDS);
    CHECK_EQ(next_claim(&f, 2, &other), CLAIM_SLEEP); /* READY is final */
    fi_parent_take(&f.parent, slot, false);
    CHECK_EQ(f.parent.slot[slot].phase, FI_LEASED);
    CHECK_EQ(atomic_load(&f.ring.board->head), q + 1);
    CHECK_EQ(fi_parent_ready(&f.parent, &slot, &flags), FI_E_BUSY);

    uint32_t leased = slot;
    q = schedule(&f, 1);
    work_all(&f, 0);
    slot = slot_of(&f, q);
    take_ready(&f, true); /* copied: free at once, and the next to be used */
    CHECK_EQ(f.parent.slot[slot].phase, FI_FREE);
    CHECK_EQ(slot_of(&f, schedule(&f, 1)), slot);
    fi_returned_push(&f.ring.returned, leased, false);
    CHECK_EQ(f.parent.slot[leased].phase, FI_LEASED);
    collect(&f.parent);
    CHECK_EQ(f.parent.slot[leased].phase, FI_FREE);
    CHECK_EQ(slot_of(&f, schedule(&f, 1)), leased); /* last in, first out */
    tear_down(&f);
}

static void finish(fixture *f, uint32_t w, fi_claim *claim)
{
    CHECK_EQ(next_claim(f, w, claim), FI_CLAIM_FINISH);
    fi_worker_ready(f->workers + w, claim, 0);
}

/* Many batches overtake one that is slow: it keeps its slot and its place in the map, in which a
 * worker finds it that looks from the head on. */
static void test_overtaking(void)
{
    fixture f;
    fi_claim slow, claim;
    uint32_t flags;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 1), q2;
    CHECK_EQ(next_claim(&f, 0, &slow), FI_CLAIM_ROWS);
    own_all(&f, 0, &slow, 0);
    for (int i = 0; i < 3 * SLOTS; i++) {
        q2 = schedule(&f, 1);
        CHECK((q2 - q) % SLOTS > 0 && slot_of(&f, q) == slow.slot);
        CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS);
        CHECK_EQ(claim.q, q2);
        CHECK(!fi_parent_is_ready(&f.parent, claim.slot, &flags));
        own_all(&f, 1, &claim, FI_ROW_OK);
        finish(&f, 1, &claim);
        CHECK(fi_parent_is_ready(&f.parent, claim.slot, &flags) && flags == 0);
        CHECK(!fi_parent_is_ready(&f.parent, slow.slot, &flags));
        fi_parent_take(&f.parent, claim.slot, true);
        CHECK(f.parent.head == q && atomic_load(&f.ring.board->head) == q);
    }
    CHECK(q2 > q + 3 * SLOTS); /* numbers that needed its place were left out */
    CHECK_EQ(recover(&f, 0, false), 1);
    q2 = schedule(&f, 1);
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS);
    CHECK(claim.q == q && claim.slot == slow.slot);
    own_all(&f, 1, &claim, FI_ROW_OK);
    finish(&f, 1, &claim);
    fi_parent_take(&f.parent, slow.slot, true);
    CHECK(f.parent.head == q2 && atomic_load(&f.ring.board->head) == q2);
    work_all(&f, 1);
    take_ready(&f, true);
    CHECK(f.parent.head == f.parent.tail && f.parent.free_count == SLOTS);
    tear_down(&f);
}

static void test_sequence_wraps(void)
{
    fixture f;
    set_up(&f, 0);
    f.parent.head = f.parent.tail = UINT32_MAX - UINT64_C(6);
    atomic_store(&f.ring.board->head, f.parent.head);
    atomic_store(&f.ring.board->tail, f.parent.tail);
    for (int batch = 0; batch < 12; batch++) {
        schedule(&f, 1 + (uint32_t)batch);
        schedule(&f, ROWS);
        work_all(&f, (uint32_t)batch % WORKERS);
        take_ready(&f, true);
        take_ready(&f, true);
    }
    CHECK(f.parent.head > UINT32_MAX + UINT64_C(10));
    tear_down(&f);
}

static void test_leave_only_between_slots(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 2);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    f.workers[0].leave = true; /* as when it has done its share of claims */
    atomic_fetch_add(&f.ring.board->redo, 1);
    own_all(&f, 0, &claim, FI_ROW_OK);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    own_all(&f, 0, &claim, FI_ROW_OK);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_FINISH); /* the leave check is not skipped */
    fi_worker_ready(f.workers, &claim, 0);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_STOP);
    CHECK(state_word(&f, slot_of(&f, q)) == fi_ready_word(q, 0));
    tear_down(&f);
}

/* ---- bells --------------------------------------------------------------------------------- */

static void test_bells(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    for (uint32_t w = 0; w < WORKERS; w++)
        CHECK_EQ(next_claim(&f, w, &claim), CLAIM_SLEEP);
    schedule(&f, 2);
    fi_parent_publish(&f.parent); /* no more sleepers than rows */
    uint32_t rings = 0;
    for (uint32_t w = 0; w < WORKERS; w++)
        rings += atomic_load(f.ring.bells + w) == 0;
    CHECK_EQ(rings, 2);
    fi_parent_publish(&f.parent); /* nothing new: nobody */
    CHECK_EQ(atomic_load(f.ring.bells + 2), 1);
    fi_parent_ring_all(&f.parent);
    CHECK_EQ(atomic_load(f.ring.bells + 2), 0);

    /* Re-check before sleep: stop, redo and new work each keep a worker awake. */
    work_all(&f, 0);
    atomic_fetch_add(&f.ring.board->redo, 1);
    CHECK(has_work(f.workers));
    CHECK_EQ(next_claim(&f, 0, &claim), CLAIM_SLEEP);
    CHECK(!has_work(f.workers));
    fi_parent_stop(&f.parent);
    CHECK(has_work(f.workers));
    CHECK_EQ(fi_worker_next(f.workers, &claim), FI_CLAIM_STOP);
    tear_down(&f);
}

/* A worker that has rows fetched by others: it holds ranges of several batches, and does not wait. */
static void test_many_ranges_at_a_time(void)
{
    fixture f;
    fi_claim claim, held[8];
    int64_t index;
    uint32_t count = 0;
    set_up(&f, 0);
    fi_worker *worker = f.workers;
    worker->most_sleep = 0;
    CHECK_EQ(fi_worker_next(worker, &claim), FI_CLAIM_NONE);
    uint64_t first = schedule(&f, 2), second = schedule(&f, 2);
    worker->least = 2;
    while (fi_worker_next(worker, &claim) == FI_CLAIM_ROWS) {
        for (uint32_t row = claim.first; row < claim.first + claim.count; row++)
            CHECK(fi_row_promise(worker, &claim, row, fi_now_ns(), &index));
        held[count++] = claim;
    }
    CHECK_EQ(count, 2);
    CHECK_EQ(held[0].q, first);
    CHECK_EQ(held[1].q, second);
    for (uint32_t part = 2; part-- > 0;) { /* the later one comes first */
        for (uint32_t row = 0; row < 2; row++) {
            CHECK(!fi_worker_finishes(worker, held + part));
            CHECK(fi_row_win(worker, held + part, row));
            fi_row_done(worker, held + part, row, FI_ROW_OK);
            CHECK(!fi_row_win(worker, held + part, row)); /* it came twice */
        }
        CHECK(fi_worker_finishes(worker, held + part));
        fi_worker_ready(worker, held + part, 0);
    }
    take_ready(&f, true);
    take_ready(&f, true);
    worker->most_sleep = 1000;
    CHECK_EQ(next_claim(&f, 0, &claim), CLAIM_SLEEP);
    CHECK_EQ(nap, 1000);
    CHECK_EQ(worker->most_sleep, 0);
    CHECK_EQ(fi_worker_next(worker, &claim), FI_CLAIM_NONE); /* it has slept */
    CHECK(!fi_worker_leaves(worker));
    fi_parent_stop(&f.parent);
    CHECK(fi_worker_leaves(worker));
    CHECK_EQ(fi_worker_next(worker, &claim), FI_CLAIM_STOP);
    tear_down(&f);
}

static void test_parent_bell(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 1);
    schedule(&f, 1);
    fi_parent_announce_sleep(&f.parent, q + 1); /* waits for the second batch only */
    for (int batch = 0; batch < 2; batch++) {
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
        own_all(&f, 0, &claim, FI_ROW_OK);
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_FINISH);
        CHECK(!parent_was_rung(&f));
        fi_worker_ready(f.workers, &claim, 0);
        CHECK_EQ(parent_was_rung(&f), batch == 1);
    }
    CHECK_EQ(atomic_load(f.ring.pwait), 0);
    take_ready(&f, true);
    take_ready(&f, true);

    schedule(&f, 1); /* a parent that is awake is not rung, one that waits for anything is */
    work_all(&f, 0);
    CHECK(!parent_was_rung(&f));
    schedule(&f, 1);
    fi_parent_announce_sleep(&f.parent, FI_ANY);
    work_all(&f, 0);
    CHECK(parent_was_rung(&f));
    fi_parent_announce_sleep(&f.parent, 12345);
    fi_parent_cancel_sleep(&f.parent);
    CHECK_EQ(atomic_load(f.ring.pwait), 0);
    tear_down(&f);
}

/* ---- reset --------------------------------------------------------------------------------- */

static void test_reset_states(void)
{
    fixture f;
    fi_claim owned, finishing;
    set_up(&f, 0);
    uint64_t todo, ready;
    finishing.q = schedule(&f, 1);
    ready = schedule(&f, 1);
    CHECK_EQ(next_claim(&f, 0, &finishing), FI_CLAIM_ROWS);
    own_all(&f, 0, &finishing, FI_ROW_OK);
    CHECK_EQ(next_claim(&f, 0, &finishing), FI_CLAIM_FINISH);
    work_all(&f, 1); /* the second batch becomes READY */
    schedule(&f, 2);
    todo = schedule(&f, 2);
    CHECK_EQ(next_claim(&f, 1, &owned), FI_CLAIM_ROWS);
    CHECK(fi_row_own(f.workers + 1, &owned, 0));

    fi_parent_reset(&f.parent);
    CHECK_EQ(f.parent.draining, 4);
    CHECK(f.parent.head == f.parent.tail);
    CHECK(state_word(&f, finishing.slot) == fi_word(finishing.q, 0, FI_FINISHING, 0));
    CHECK(state_word(&f, slot_of(&f, ready)) == fi_ready_word(ready, 0));
    CHECK(state_word(&f, owned.slot) == fi_word(owned.q, 0, FI_CANCELLED, 0));
    CHECK(state_word(&f, slot_of(&f, todo)) == fi_word(todo, 0, FI_CANCELLED, 0));
    CHECK(row_word(&f, owned.slot, 0) == fi_word(owned.q, 1, FI_OWNED, 0));
    CHECK(row_word(&f, owned.slot, 1) == fi_word(owned.q, 0, FI_CANCELLED, 0));
    CHECK(!fi_row_own(f.workers + 1, &owned, 1));
    for (uint32_t row = 0; row < 2; row++)
        CHECK(row_word(&f, slot_of(&f, todo), row) == fi_word(todo, 0, FI_CANCELLED, 0));

    collect(&f.parent); /* READY and CANCELLED slots are free, the other two are in use */
    CHECK_EQ(f.parent.draining, 2);
    CHECK_EQ(f.parent.slot[finishing.slot].phase, FI_DRAIN);
    CHECK_EQ(f.parent.slot[owned.slot].phase, FI_DRAIN);
    fi_parent_announce_sleep(&f.parent, FI_ANY);
    fi_row_done(f.workers + 1, &owned, 0, FI_ROW_OK);
    CHECK_EQ(next_claim(&f, 1, &owned), CLAIM_SLEEP);
    CHECK(parent_was_rung(&f)); /* W7 */
    collect(&f.parent);
    CHECK_EQ(f.parent.draining, 1);
    fi_parent_announce_sleep(&f.parent, FI_ANY);
    fi_worker_ready(f.workers, &finishing, 0);
    CHECK(parent_was_rung(&f));
    collect(&f.parent);
    CHECK_EQ(f.parent.draining, 0);
    CHECK_EQ(f.parent.free_count, SLOTS);
    tear_down(&f);
}

/* Workers beyond the count's number leave between slots; the others share the rows among them. */
static void test_worker_count(void)
{
    fixture f;
    fi_claim claim;
    set_up(&f, 0);
    schedule(&f, 40);
    CHECK_EQ(next_claim(&f, 2, &claim), FI_CLAIM_ROWS);
    CHECK_EQ(claim.count, 40 / (2 * WORKERS));
    fi_parent_set_worker_count(&f.parent, 1);
    CHECK_EQ(next_claim(&f, 2, &claim), FI_CLAIM_ROWS); /* not amid a slot */
    CHECK_EQ(claim.count, (40 - 6) / 2); /* half of what is left: it would be alone */
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    while (next_claim(&f, 2, &claim) == FI_CLAIM_ROWS) {
    }
    CHECK_EQ(next_claim(&f, 2, &claim), FI_CLAIM_STOP);
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_STOP);
    CHECK_EQ(next_claim(&f, 0, &claim), CLAIM_SLEEP);
    atomic_store(&f.ring.board->worker_count, 2); /* corrupt, and restored */
    fi_parent_restore_hints(&f.parent);
    CHECK_EQ(atomic_load(&f.ring.board->worker_count), 1);
    fi_parent_set_worker_count(&f.parent, WORKERS);
    CHECK_EQ(atomic_load(&f.ring.board->worker_count), 0);
    CHECK_EQ(next_claim(&f, 2, &claim), FI_CLAIM_ROWS);
    tear_down(&f);
}

/* The rows of a batch for one worker are taken by that one, at once; any may finish the batch. */
static void test_a_batch_for_one_worker(void)
{
    fixture f;
    fi_claim claim;
    uint32_t slot;
    const fi_request of_worker[] = {{0, 0, 1 + 1}, {0, 0, 1 + WORKERS}, {0, 0, 0}};
    set_up(&f, 0);
    for (uint32_t w = 0; w < WORKERS; w++)
        CHECK_EQ(next_claim(&f, w, &claim), CLAIM_SLEEP);
    for (uint32_t w = 0; w < WORKERS; w++)
        atomic_store(f.ring.bells + w, 1);
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &slot), FI_OK);
    CHECK_EQ(fi_parent_request(&f.parent, slot, of_worker + 1), FI_E_RANGE);
    CHECK_EQ(fi_parent_request(&f.parent, slot, of_worker), FI_OK);
    CHECK_EQ(slot_of(&f, schedule(&f, 1)), slot);
    fi_parent_publish(&f.parent);
    for (uint32_t w = 0; w < WORKERS; w++) /* one row would wake the first one only */
        CHECK_EQ(atomic_load(f.ring.bells + w), 0);
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &slot), FI_OK);
    CHECK_EQ(fi_parent_request(&f.parent, slot, of_worker), FI_OK);
    schedule(&f, ROWS);
    CHECK_EQ(next_claim(&f, 0, &claim), CLAIM_SLEEP);
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS);
    own_all(&f, 1, &claim, FI_ROW_OK);
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_FINISH);
    fi_worker_ready(f.workers + 1, &claim, 0);
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS);
    CHECK(claim.slot == slot && claim.first == 0 && claim.count == ROWS);
    own_all(&f, 1, &claim, FI_ROW_OK);
    CHECK_EQ(next_claim(&f, 2, &claim), FI_CLAIM_FINISH);
    fi_worker_ready(f.workers + 2, &claim, 0);
    CHECK_EQ(next_claim(&f, 1, &claim), CLAIM_SLEEP);
    take_ready(&f, true);
    take_ready(&f, true);
    /* The one that dies leaves the rows to its successor. */
    schedule(&f, 3);
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS);
    own_all(&f, 1, &claim, 0);
    CHECK_EQ(recover(&f, 1, false), 3);
    CHECK_EQ(next_claim(&f, 0, &claim), CLAIM_SLEEP);
    fi_worker_init(f.workers + 1, &f.ring, 1, -1);
    work_all(&f, 1);
    CHECK_EQ(next_claim(&f, 0, &claim), CLAIM_SLEEP);
    take_ready(&f, true);
    /* The slot's next batch is for all again. */
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &slot), FI_OK);
    CHECK_EQ(fi_parent_request(&f.parent, slot, of_worker + 2), FI_OK);
    schedule(&f, ROWS);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    CHECK(claim.count < ROWS);
    tear_down(&f);
}

/* A worker that slept through a whole life of the slot cannot take anything of the next. */
static void test_late_worker(void)
{
    fixture f;
    fi_claim late, claim;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 2);
    CHECK_EQ(next_claim(&f, 0, &late), FI_CLAIM_ROWS);
    fi_parent_reset(&f.parent);
    collect(&f.parent);
    CHECK_EQ(slot_of(&f, schedule(&f, 2)), late.slot);
    CHECK(!fi_row_own(f.workers, &late, late.first));
    own_batch(&f, 1, &claim, 2);
    CHECK(claim.q == q + 1 && claim.slot == late.slot);
    for (uint32_t row = 0; row < 2; row++)
        CHECK(row_word(&f, claim.slot, row) == fi_word(q + 1, 1, FI_OWNED, 0));
    CHECK_EQ(next_claim(&f, 0, &claim), CLAIM_SLEEP); /* leaves the old, finds no row in the new */
    tear_down(&f);
}

int main(void)
{
    test_origin();
    test_geometry();
    test_layout();
    test_words();
    test_schedule();
    test_slots_come_back_before_the_schedule();
    test_ranges();
    test_ranges_of_cheap_rows();
    test_ranges_where_calls_have_a_fixed_cost();
    test_row_states();
    test_finish_and_take();
    test_overtaking();
    test_sequence_wraps();
    test_leave_only_between_slots();
    test_bells();
    test_many_ranges_at_a_time();
    test_parent_bell();
    test_reset_states();
    test_late_worker();
    test_worker_count();
    test_a_batch_for_one_worker();
    return 0;
}

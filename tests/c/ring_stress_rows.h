/* Content of the batches of the stress tests, and the writes of their workers. */
#ifndef FASTITER_TESTS_RING_STRESS_ROWS_H
#define FASTITER_TESTS_RING_STRESS_ROWS_H

#include <sched.h>

#include "check.h"
#include "ring/fi_ring_parent.h"
#include "ring/fi_ring_worker.h"

enum {
    MOST_WORKERS = 12,
    MOST_SLOTS = 24,
    MOST_ROWS = 48,
    ROW_WORDS = 6,
    COLUMN_BYTES = MOST_ROWS * ROW_WORDS * 8,
    HEAP_START = COLUMN_BYTES + MOST_ROWS * 8, /* columns, then one output word a row */
    SLOT_BYTES = 1 << 20
};

#define PADDING UINT64_C(0x5041444450414444)

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline uint64_t draw(uint64_t *state, uint64_t bound)
{
    return mix(*state += UINT64_C(0x9e3779b97f4a7c15)) % bound;
}

/* ---- what a batch must contain ------------------------------------------------------------- */

static inline uint64_t row_content(uint64_t q, int64_t index, uint32_t word)
{
    return mix(mix(q) + (uint64_t)index * 4096 + word);
}

/* Most rows fit their column; some are spilled, some are errors. */
static inline uint32_t row_kind(int64_t index)
{
    uint64_t kind = mix((uint64_t)index) % 16;
    return kind == 0 ? FI_SPILL : kind == 1 ? FI_ERROR : FI_ROW_OK;
}

static inline uint32_t packed_words(int64_t index)
{
    return 1 + (uint32_t)(mix((uint64_t)index + 7) % 40);
}

static inline uint64_t output_word(uint64_t q, int64_t index, uint32_t code)
{
    return code == FI_ROW_OK ? ~row_content(q, index, 0) : code;
}

static inline uint64_t *column_row(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    return (uint64_t *)(fi_slot_payload(ring, slot) + (size_t)row * ROW_WORDS * 8);
}

static inline uint64_t *output_of(const fi_ring *ring, uint32_t slot)
{
    return (uint64_t *)(fi_slot_payload(ring, slot) + COLUMN_BYTES);
}

/* ---- worker -------------------------------------------------------------------------------- */

/* Where a worker may die; defined by the test, may not return. */
static void step(void);

static void write_words(uint64_t *to, uint32_t count, uint64_t q, int64_t index)
{
    for (uint32_t word = 0; word < count; word++) {
        to[word] = row_content(q, index, word);
        if (word == count / 2) {
            step(); /* a torn copy */
            if (index % 128 == 0)
                sched_yield(); /* a late one */
        }
    }
}

static void fill_row(const fi_worker *worker, const fi_claim *claim, uint32_t row)
{
    const fi_ring *ring = worker->ring;
    int64_t index = *fi_row_index(ring, claim->slot, row);
    uint32_t code = row_kind(index);
    if (code == FI_ROW_OK) {
        write_words(column_row(ring, claim->slot, row), ROW_WORDS, claim->q, index);
    } else {
        uint64_t offset, need, have, bytes = packed_words(index) * 8;
        CHECK_EQ(fi_heap_take(ring, claim->slot, bytes, &offset, &need, &have), FI_OK);
        write_words((uint64_t *)(fi_slot_payload(ring, claim->slot) + offset), packed_words(index),
                    claim->q, index);
        fi_entry_set(ring, claim->slot, row, offset, bytes);
    }
    step(); /* bytes complete, row not yet done */
    fi_row_done(worker, claim, row, code);
    step();
}

/* Fetches rows without owning them, and writes those that nobody else has written meanwhile. */
static void fill_in_two_steps(const fi_worker *worker, const fi_claim *claim, uint64_t *seed)
{
    int64_t index;
    for (uint32_t row = claim->first; row < claim->first + claim->count; row++) {
        bool is_promised = claim->fetcher != worker->number || draw(seed, 2);
        if (!(is_promised ? fi_row_promise : fi_row_announce)(worker, claim, row, fi_now_ns(), &index))
            continue;
        step();
        for (uint64_t i = draw(seed, 8) ? 0 : draw(seed, 100); i > 0; i--)
            sched_yield(); /* others may hedge it */
        if (fi_row_win(worker, claim, row)) {
            step();
            CHECK_EQ(*fi_row_index(worker->ring, claim->slot, row), index);
            fill_row(worker, claim, row);
            fi_worker_stat_count(worker->ring->worker_stats + worker->number, 1, 0, 0);
            fi_worker_stat_sampled(worker->ring->worker_stats + worker->number, 500, 0);
        }
        step();
    }
}

static void fill_range(const fi_worker *worker, const fi_claim *claim, bool whole)
{
    bool own[MOST_ROWS];
    if (whole)
        for (uint32_t i = 0; i < claim->count; i++) {
            own[i] = fi_row_own(worker, claim, claim->first + i);
            step();
        }
    for (uint32_t i = 0; i < claim->count; i++) {
        if (!whole) {
            own[i] = fi_row_own(worker, claim, claim->first + i);
            step();
        }
        if (own[i])
            fill_row(worker, claim, claim->first + i);
    }
}

static void finish_slot(const fi_worker *worker, const fi_claim *claim)
{
    const fi_ring *ring = worker->ring;
    uint64_t *output = output_of(ring, claim->slot);
    for (uint32_t row = 0; row < MOST_ROWS; row++) {
        if (row == MOST_ROWS / 2)
            step(); /* half of it is padded */
        if (row >= claim->n) {
            output[row] = PADDING ^ claim->q;
            continue;
        }
        uint32_t code = fi_row_code(ring, claim->slot, row, claim->q);
        output[row] = code == FI_ROW_OK ? ~*column_row(ring, claim->slot, row) : code;
    }
    step();
    fi_worker_ready(worker, claim, 0);
}

static void work(fi_ring *ring, uint32_t number, int bell_pipe, uint64_t seed)
{
    fi_worker worker;
    fi_claim claim;
    fi_worker_init(&worker, ring, number, bell_pipe);
    worker.hedges = draw(&seed, 4) > 0;
    for (;;) {
        step();
        switch (fi_worker_next(&worker, &claim)) {
        case FI_CLAIM_NONE: /* never: no `most_sleep` is set */
        case FI_CLAIM_STOP:
            return;
        case FI_CLAIM_ROWS:
            step(); /* a range was taken, no row is owned */
            CHECK(claim.count <= MOST_ROWS && claim.slot < ring->geometry.slots);
            if (worker.hedges)
                fill_in_two_steps(&worker, &claim, &seed);
            else
                fill_range(&worker, &claim, draw(&seed, 4) == 0);
            fi_worker_pace(&worker, 1, (int64_t)draw(&seed, 4000)); /* ranges of any length */
            if (number % 2 == 1)
                fi_call_cost_add(&worker.call, claim.count, (int64_t)draw(&seed, 4000));
            break;
        case FI_CLAIM_FINISH:
            step();
            finish_slot(&worker, &claim);
            break;
        }
        if (draw(&seed, 8) == 0)
            sched_yield();
    }
}

#endif

/* The worker's half of the ring.
 *
 * model/ring.pml is this file and fi_ring_parent.c for the model checker. Its actions here: turn is
 * enter_slot (W1 to W3), claim take_range (W4), rows fi_row_own and fi_row_done (W5), check
 * all_done and the swap in fi_worker_next (W6), READY fi_worker_ready (W6), after_check the end of
 * fi_worker_next (W7), sleep sleep_for_work (B1 to B4). model/README.md has the parent's. A change
 * of a step changes the model too; a change of an order, model/orders.py.
 */
#include "ring/fi_ring_worker.h"

#include "batch/fi_copy.h"
#include "os/fi_platform.h"
#include "ring/fi_trace.h"

/* Success acquires what the last release store to the word published; failure learns nothing. */
static inline bool swap_owned(_Atomic uint64_t *place, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong_explicit(place, &from, to, memory_order_acquire,
                                                   memory_order_relaxed);
}

void fi_worker_init(fi_worker *worker, fi_ring *ring, uint32_t number, int bell_pipe)
{
    *worker = (fi_worker){.ring = ring, .number = number, .bell_pipe = bell_pipe, .least = 1};
}

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* How many workers share the rows. A corrupt number costs time only. */
static inline uint32_t worker_count_of(const fi_ring *ring)
{
    uint32_t count = fi_load_relaxed(&ring->board->worker_count);
    return count > 0 && count < ring->geometry.workers ? count : ring->geometry.workers;
}

static inline bool shall_leave(const fi_worker *worker)
{
    return fi_load_relaxed(&worker->ring->board->stop) ||
           worker->number >= worker_count_of(worker->ring);
}

static bool has_work(const fi_worker *worker)
{
    fi_board *board = worker->ring->board;
    return fi_load_relaxed(&board->redo) != worker->seen ||
           fi_load_relaxed(&board->tail) > worker->current || shall_leave(worker);
}

#define MOST_SPIN 10000 /* pauses, whatever the board says */

/* B1 to B4. */
static void sleep_for_work(fi_worker *worker)
{
    uint32_t spin = fi_load_relaxed(&worker->ring->board->spin);
    for (spin = spin < MOST_SPIN ? spin : MOST_SPIN; spin > 0; spin--) {
        if (has_work(worker))
            return;
        pause_briefly();
    }
    _Atomic uint32_t *bell = worker->ring->bells + worker->number;
    fi_worker_stat *stat = worker->ring->worker_stats + worker->number;
    int64_t since = fi_now_ns();
    fi_store_relaxed(bell, 1); /* B1 */
    fi_fence(3);               /* F3, pairs with F4: bell before the look at the board */
    if (has_work(worker))      /* B3 */
        fi_bell_cancel(bell, worker->bell_pipe);
    else
        fi_bell_sleep(bell, worker->bell_pipe); /* B4 */
    int64_t took = fi_now_ns() - since;
    FI_STAT_ADD(stat, sleep_ns, (uint64_t)took);
    if (fi_traces(worker->ring)) {
        fi_event event = {.began_ns = since, .took_ns = took};
        fi_trace_put(worker->ring, worker->number, FI_EVENT_WAIT, &event, 0);
    }
}

/* W6, first half: are all rows of the slot done for this sequence? */
static bool all_done(const fi_ring *ring, uint32_t slot, uint32_t q, uint32_t n)
{
    for (uint32_t row = n; row-- > 0;) {
        uint64_t word = fi_load_acquire(fi_row_word(ring, slot, row)); /* A2, pairs with W5 done */
        if (fi_word_q(word) != q || !fi_code_done(fi_word_code(word)))
            return false;
    }
    return true;
}

/* W1 to W3: enters the slot of the next sequence, sleeping while there is none. False: stop. */
static bool enter_slot(fi_worker *worker)
{
    fi_ring *ring = worker->ring;
    fi_board *board = ring->board;
    for (;;) {
        if (worker->leave || shall_leave(worker))
            return false;
        uint32_t redo = fi_load_acquire(&board->redo); /* A4, pairs with R4: sees rewound claims */
        if (redo != worker->seen) {
            worker->seen = redo;
            worker->current = 0;
        }
        /* A4, pairs with the parent's stores of head and of tail (S7). */
        worker->current = fi_max_u64(worker->current, fi_load_acquire(&board->head));
        if (worker->current >= fi_load_acquire(&board->tail)) {
            sleep_for_work(worker);
            continue;
        }
        uint32_t slot = fi_load_relaxed(ring->map + worker->current % ring->geometry.slots);
        if (slot < ring->geometry.slots) {
            worker->slot = slot;
            worker->in_slot = true;
            return true;
        }
        worker->current++; /* a corrupt hint; the parent's stall timer restores it */
    }
}

/* Shorter ranges cost more in contention for the claim word than they gain by ending together. */
#define SHORTEST_RANGE_NS 2000

void fi_worker_pace(fi_worker *worker, uint32_t rows, int64_t nanoseconds)
{
    /* Slower at once, faster only little by little: among slow rows a few cheap ones must not
     * bring long ranges, since all that follow a slow row in its range wait for it. */
    int64_t now = nanoseconds / (rows ? rows : 1) + 1;
    int64_t before = worker->row_ns - worker->row_ns / 8;
    worker->row_ns = now > before ? now : before;
    int64_t least = SHORTEST_RANGE_NS / worker->row_ns;
    worker->least = least > 1 ? (uint32_t)least : 1;
}

/* Rows of a batch of n that leave as many for each worker that finds no other batch to fill. A wrong
 * word costs time only. */
static uint32_t even_rows(const fi_ring *ring, uint32_t n)
{
    const fi_board *board = ring->board;
    uint64_t workers = worker_count_of(ring), filling = 0, slots = ring->geometry.slots;
    uint64_t head = fi_load_relaxed(&board->head);
    uint64_t batches = fi_min_u64(fi_load_relaxed(&board->tail) - head, slots);
    for (uint64_t i = 0; i < batches && filling < workers; i++) {
        uint32_t slot = fi_load_relaxed(ring->map + (head + i) % slots);
        uint64_t state = slot < slots ? fi_load_relaxed(&ring->slots[slot].state) : 0;
        filling += fi_word_code(state) == FI_FILLING;
    }
    return (uint32_t)((n * fi_max_u64(filling, 1) + workers - 1) / workers);
}

/* W4: takes a range of rows, fewer the fewer are left, so that all workers end together; more where
 * each call of the dataset has a fixed cost. */
static bool take_range(fi_worker *worker, fi_turn *turn)
{
    fi_ring *ring = worker->ring;
    fi_slot *s = ring->slots + worker->slot;
    uint64_t claim = fi_load_acquire(&s->claim); /* A4, pairs with S5 and R3 */
    for (;;) {
        if (fi_word_q(claim) != (uint32_t)worker->current) {
            turn->n = 0; /* the slot serves another batch */
            return false;
        }
        uint32_t only = fi_load_relaxed(&s->worker);
        uint32_t next = only == 0 || only == worker->number + 1 ? (uint32_t)claim : UINT32_MAX;
        uint32_t n = fi_load_relaxed(&s->n);
        turn->n = n < ring->geometry.rows ? n : ring->geometry.rows;
        if (next >= turn->n)
            return false;
        uint32_t left = turn->n - next;
        uint32_t share = left / (2 * worker_count_of(ring));
        share = share > worker->least ? share : worker->least;
        if (worker->call.calls > 0)
            share =
                fi_call_cost_claim(&worker->call, turn->n, left, share, even_rows(ring, turn->n));
        if (only > 0)
            share = left; /* no other worker takes any */
        uint32_t count = fi_load_relaxed(&s->single) ? 1 : share < left ? share : left;
        if (atomic_compare_exchange_weak_explicit(&s->claim, &claim,
                                                  fi_claim_word(worker->current, next + count),
                                                  memory_order_acquire, memory_order_acquire)) {
            turn->q = worker->current;
            turn->slot = worker->slot;
            turn->first = next;
            turn->count = count;
            return true;
        }
    }
}

enum fi_turn_kind fi_worker_next(fi_worker *worker, fi_turn *turn)
{
    fi_ring *ring = worker->ring;
    for (;;) {
        if (!worker->in_slot && !enter_slot(worker))
            return FI_TURN_STOP;
        if (take_range(worker, turn))
            return FI_TURN_ROWS;
        worker->in_slot = false; /* W8 comes next, whatever the leave check finds */
        uint64_t q = worker->current++;
        if (turn->n == 0)
            continue;
        fi_slot *s = ring->slots + worker->slot;
        fi_fence(1); /* F1 (D1, D4): own DONE before the scan, and before state and pwait */
        if (all_done(ring, worker->slot, (uint32_t)q, turn->n) &&
            swap_owned(&s->state, fi_word(q, 0, FI_FILLING, 0),
                       fi_word(q, worker->number, FI_FINISHING, 0))) {
            turn->q = q;
            turn->slot = worker->slot;
            turn->first = turn->count = 0;
            return FI_TURN_FINISH;
        }
        if (fi_load_relaxed(&s->state) == fi_word(q, 0, FI_CANCELLED, 0)) /* W7 */
            fi_wake_parent(ring, q);
    }
}

bool fi_worker_outruns_cache(const fi_worker *worker, uint64_t batch_bytes)
{
    const fi_board *board = worker->ring->board;
    uint64_t slots = worker->ring->geometry.slots;
    if (!fi_outruns_cache(batch_bytes,
                          slots)) /* not even all of them: the board is not looked at */
        return false;
    /* Corrupt words cost time only. */
    uint64_t batches = fi_load_relaxed(&board->tail) - fi_load_relaxed(&board->head);
    return fi_outruns_cache(batch_bytes, fi_min_u64(batches, slots));
}

bool fi_row_own(const fi_worker *worker, const fi_turn *turn, uint32_t row)
{
    /* A1, pairs with S3 and R2: index and schema are readable, old bytes may be overwritten. */
    return swap_owned(fi_row_word(worker->ring, turn->slot, row), fi_word(turn->q, 0, FI_TODO, 0),
                      fi_word(turn->q, worker->number, FI_OWNED, 0));
}

void fi_row_done(const fi_worker *worker, const fi_turn *turn, uint32_t row, uint32_t code)
{
    FI_ASSERT(fi_code_done(code));
    /* A2 and A5: pairs with the finisher's scan and with the parent's collection. */
    fi_store_release(fi_row_word(worker->ring, turn->slot, row), fi_word(turn->q, 0, code, 0));
}

void fi_worker_ready(const fi_worker *worker, const fi_turn *turn, uint32_t flags)
{
    /* A3, pairs with T1 */
    fi_store_release(&worker->ring->slots[turn->slot].state, fi_ready_word(turn->q, flags));
    fi_fence(2); /* F2 (D3), pairs with F5: READY before the look at pwait */
    fi_wake_parent(worker->ring, turn->q);
}

size_t fi_rows_before(const fi_worker *worker, const fi_turn *turn, int64_t *indices, size_t most)
{
    const fi_ring *ring = worker->ring;
    const uint64_t slots = ring->geometry.slots;
    uint64_t q = fi_load_acquire(&ring->board->head);
    size_t count = 0;

    if (turn->q - q >= slots)
        return 0; /* taken already, or a corrupt word */
    for (; q <= turn->q; q++) {
        const uint32_t slot = fi_load_relaxed(ring->map + q % slots);
        uint32_t n = slot < slots ? fi_load_relaxed(&ring->slots[slot].n) : 0;
        n = q == turn->q ? turn->first : n < ring->geometry.rows ? n : ring->geometry.rows;
        for (uint32_t row = 0; row < n && count < most; row++) {
            /* A1, pairs with S3 and R2: the index is readable. */
            const uint64_t word = fi_load_acquire(fi_row_word(ring, slot, row));
            const uint32_t code = fi_word_code(word);
            if (fi_word_q(word) == (uint32_t)q && (code == FI_TODO || code == FI_OWNED))
                indices[count++] = *fi_row_index(ring, slot, row);
        }
    }
    return count;
}

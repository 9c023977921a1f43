/* The worker's half of the ring.
 *
 * model/ring.pml is this file, fi_ring_parent.c and fi_ring_recovery.c for the model checker. Its
 * actions here: turn is enter_slot (W1 to W3), claim take_range (W4), rows fi_row_own and fi_row_done
 * (W5), check all_done and the swap in fi_worker_next (W6), READY fi_worker_ready (W6), after_check
 * the end of fi_worker_next (W7), sleep sleep_for_work (B1 to B4). model/README.md has the parent's.
 * A change of a step changes the model too; a change of an order, model/orders.py.
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
    worker->most_sleep = FI_FOR_EVER;
}

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Number of workers that share the rows. A corrupt number costs time only. */
static inline uint32_t worker_count_of(const fi_ring *ring)
{
    uint32_t count = fi_load_relaxed(&ring->board->worker_count);
    return count > 0 && count < ring->geometry.workers ? count : ring->geometry.workers;
}

bool fi_worker_leaves(const fi_worker *worker)
{
    return fi_load_relaxed(&worker->ring->board->stop) ||
           worker->number >= worker_count_of(worker->ring);
}

static bool has_work(const fi_worker *worker)
{
    fi_board *board = worker->ring->board;
    return fi_load_relaxed(&board->redo) != worker->seen ||
           fi_load_relaxed(&board->tail) > worker->current || fi_worker_leaves(worker);
}

#define MOST_SPIN 10000 /* pauses, whatever the board says */

/* B1 to B4, for `most` nanoseconds. */
static void sleep_for_work(fi_worker *worker, int64_t most)
{
    uint32_t spin = fi_load_relaxed(&worker->ring->board->spin);
    for (spin = spin < MOST_SPIN ? spin : MOST_SPIN; spin > 0; spin--) {
        if (has_work(worker))
            return;
        pause_briefly();
    }
    _Atomic uint32_t *bell = worker->ring->bells + worker->number;
    int64_t since = fi_now_ns();
    fi_store_relaxed(bell, 1); /* B1 */
    fi_fence(3);               /* F3, pairs with F4: bell before the look at the board */
    if (has_work(worker))      /* B3 */
        fi_bell_cancel(bell, worker->bell_pipe);
    else
        fi_bell_sleep(bell, worker->bell_pipe, most); /* B4 */
    if (fi_traces(worker->ring)) {
        fi_event event = {.began_ns = since, .took_ns = fi_now_ns() - since};
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

/* ---- rows that are late ----------------------------------------------------------------------- */

#define LATE_MEANS 3 /* as long as so many rows take on average, */
#ifndef LATE_NS
#define LATE_NS 5000000 /* and as this, a row that is hedged has been under way */
#endif
#define BEHIND_NS (LATE_NS / 5) /* one behind which others wait that were claimed with it */

/* After how many nanoseconds a row is late; FI_FOR_EVER as long as none has been fetched. */
static int64_t late_after(const fi_ring *ring)
{
    uint64_t rows = 0, ns = 0;
    for (uint32_t w = 0; w < ring->geometry.workers; w++) {
        rows += fi_load_relaxed(&ring->worker_stats[w].rows);
        ns += fi_load_relaxed(&ring->worker_stats[w].fetch_ns);
    }
    if (rows == 0)
        return FI_FOR_EVER;
    return (int64_t)fi_min_u64(fi_max_u64(LATE_MEANS * (ns / rows), LATE_NS), FI_FOR_EVER - 1);
}

/* Who fetches a row whose word does not say so, or `workers`. An index may stand in the batches twice:
 * either row will do. */
static uint32_t announced_by(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    int64_t index = fi_row_index_now(ring, slot, row);
    uint32_t w = 0;
    while (w < ring->geometry.workers && !fi_worker_stat_fetches(ring->worker_stats + w, index))
        w++;
    return w;
}

/* Result of a scan of a batch. */
typedef struct late_rows {
    uint32_t todo; /* a row that was claimed and not begun; FI_WHOLE_BATCH: none */
    uint32_t row;  /* of those that no worker has hedged, the one longest under way that is late */
    uint32_t fetcher;
    int64_t longest; /* nanoseconds that any row has been under way */
    int64_t late_for;
    int64_t due; /* nanoseconds until another row is late */
} late_rows;

/* A call for several rows has all of them under way, one after the other: it may take as many times
 * as long. Wrong times of a worker cost time only. */
static late_rows scan_rows(const fi_ring *ring, uint32_t slot, uint32_t q, uint32_t n, int64_t now,
                           int64_t limit)
{
    late_rows found = {.todo = FI_WHOLE_BATCH, .row = FI_WHOLE_BATCH, .late_for = -1, .due = FI_FOR_EVER};
    for (uint32_t row = 0, next; row < n; row = next) {
        uint64_t word = fi_load_acquire(fi_row_word(ring, slot, row)); /* pairs with begin_row */
        uint32_t fetcher = fi_word_owner(word), unhedged = FI_WHOLE_BATCH;
        next = row + 1;
        if (word == fi_word(q, 0, FI_TODO, 0)) {
            fetcher = announced_by(ring, slot, row);
            unhedged = row;
            if (fetcher == ring->geometry.workers && found.todo == FI_WHOLE_BATCH)
                found.todo = row;
        } else if ((word & ~(uint64_t)0xff) != fi_word(q, fetcher, FI_FETCH, 0)) {
            continue;
        } else {
            if (!(fi_word_flags(word) & FI_HEDGED))
                unhedged = row;
            for (; next < n; next++) {
                word = fi_load_relaxed(fi_row_word(ring, slot, next));
                if ((word & ~(uint64_t)0xff) != fi_word(q, fetcher, FI_FETCH, 0))
                    break;
                if (unhedged == FI_WHOLE_BATCH && !(fi_word_flags(word) & FI_HEDGED))
                    unhedged = next;
            }
        }
        if (fetcher >= ring->geometry.workers)
            continue;
        int64_t since = fi_load_relaxed(&ring->worker_stats[fetcher].since);
        if (since <= 0)
            continue; /* an overwritten word, for it says when before it has the row */
        int64_t took = now > since ? now - since : 0;
        found.longest = took > found.longest ? took : found.longest;
        if (unhedged == FI_WHOLE_BATCH)
            continue;
        int64_t most = took + LATE_NS;
        if (limit < FI_FOR_EVER)
            most = (int64_t)fi_min_u64((uint64_t)limit * (next - row), FI_FOR_EVER);
        if (took < most) {
            found.due = most - took < found.due ? most - took : found.due;
        } else if (took - most > found.late_for) {
            found.late_for = took - most;
            found.row = unhedged;
            found.fetcher = fetcher;
        }
    }
    return found;
}

/* Looks for rows that hold up batches before `end`, the oldest batch first: one that was claimed and not
 * begun, behind a slow one, or one to hedge. Returns 0 and the claim, or in how many nanoseconds to
 * look again; FI_FOR_EVER if there is none under way. */
static int64_t find_late(fi_worker *worker, uint64_t end, int64_t now, fi_claim *claim)
{
    fi_ring *ring = worker->ring;
    int64_t oldest = fi_oldest_fetch(ring), wait = FI_FOR_EVER;
    /* Where nothing is slow, the lines that others write are left alone. */
    bool is_calm = oldest == 0 || now - oldest < BEHIND_NS;
    int64_t limit = is_calm ? 0 : late_after(ring);
    uint64_t slots = ring->geometry.slots, head = fi_load_acquire(&ring->board->head);
    end = fi_min_u64(end, head + slots);
    for (uint64_t q = head; q < end; q++) {
        uint32_t slot = fi_load_relaxed(ring->map + q % slots);
        if (slot >= slots)
            continue;
        fi_slot *s = ring->slots + slot;
        uint64_t word = fi_load_acquire(&s->claim);
        uint32_t n = fi_load_relaxed(&s->n);
        if (fi_load_acquire(&s->state) != fi_word(q, 0, FI_FILLING, 0) ||
            fi_word_q(word) != (uint32_t)q || (uint32_t)word < n ||
            n > ring->geometry.rows || fi_load_relaxed(&s->worker) > 0)
            continue;
        if (is_calm) {
            wait = LATE_NS;
            continue;
        }
        late_rows found = scan_rows(ring, slot, (uint32_t)q, n, now, limit);
        bool is_behind = found.todo != FI_WHOLE_BATCH;
        int64_t due = 0;
        if (is_behind)
            due = found.longest < BEHIND_NS ? BEHIND_NS : 0;
        else if (found.row == FI_WHOLE_BATCH)
            due = found.due;
        else if (fi_load_relaxed(&ring->board->hedges) < FI_ONE_HEDGE)
            due = LATE_NS;
        if (due == 0) {
            worker->is_aside = true;
            worker->aside = (fi_claim){.q = q, .slot = slot, .n = n, .count = 1};
            worker->aside.first = is_behind ? found.todo : found.row;
            worker->aside.fetcher = is_behind ? worker->number : found.fetcher;
            *claim = worker->aside;
            return 0;
        }
        wait = due < wait ? due : wait;
    }
    return wait;
}

/* The same for batches before the present one, at most once for each tick of the coarse clock. */
static bool has_late(fi_worker *worker, fi_claim *claim)
{
    int64_t tick = fi_coarse_ns();
    if (tick == worker->last_look)
        return false;
    worker->last_look = tick;
    return find_late(worker, worker->current, fi_now_ns(), claim) == 0;
}

/* W1 to W3: enters the slot of the next sequence, sleeping while there is none. False: a claim `is_aside`
 * comes first, the worker leaves, or it may sleep no longer. */
static bool enter_slot(fi_worker *worker, fi_claim *claim)
{
    fi_ring *ring = worker->ring;
    fi_board *board = ring->board;
    /* At first without a look: most batches come earlier, and a shorter sleep than a tick of the kernel
     * costs a microsecond more. */
    int64_t most = worker->hedges ? LATE_NS : FI_FOR_EVER;
    for (;;) {
        if (worker->leave || fi_worker_leaves(worker))
            return false;
        uint32_t redo = fi_load_acquire(&board->redo); /* A4, pairs with R4: sees rewound claims */
        if (redo != worker->seen) {
            worker->seen = redo;
            worker->current = 0;
            worker->rewound = fi_load_acquire(&board->tail);
        }
        /* A4, pairs with the parent's stores of head and of tail (S7). */
        worker->current = fi_max_u64(worker->current, fi_load_acquire(&board->head));
        if (worker->current >= fi_load_acquire(&board->tail)) {
            if (worker->most_sleep == 0)
                return false;
            sleep_for_work(worker, most < worker->most_sleep ? most : worker->most_sleep);
            if (worker->most_sleep < FI_FOR_EVER)
                worker->most_sleep = 0;
            if (worker->hedges && !has_work(worker)) {
                most = find_late(worker, worker->current, fi_now_ns(), claim);
                if (most == 0)
                    return false;
            }
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
static bool take_range(fi_worker *worker, fi_claim *claim)
{
    fi_ring *ring = worker->ring;
    fi_slot *s = ring->slots + worker->slot;
    uint64_t word = fi_load_acquire(&s->claim); /* A4, pairs with S5 and R3 */
    for (;;) {
        if (fi_word_q(word) != (uint32_t)worker->current) {
            claim->n = 0; /* the slot serves another batch */
            return false;
        }
        uint32_t only = fi_load_relaxed(&s->worker);
        uint32_t next = only == 0 || only == worker->number + 1 ? (uint32_t)word : UINT32_MAX;
        uint32_t n = fi_load_relaxed(&s->n);
        claim->n = n < ring->geometry.rows ? n : ring->geometry.rows;
        if (next >= claim->n)
            return false;
        uint32_t left = claim->n - next;
        uint32_t share = left / (2 * worker_count_of(ring));
        share = share > worker->least ? share : worker->least;
        if (worker->call.calls > 0)
            share =
                fi_call_cost_claim(&worker->call, claim->n, left, share, even_rows(ring, claim->n));
        if (only > 0)
            share = left; /* no other worker takes any */
        uint32_t count = fi_load_relaxed(&s->single) ? 1 : share < left ? share : left;
        if (atomic_compare_exchange_weak_explicit(&s->claim, &word,
                                                  fi_claim_word(worker->current, next + count),
                                                  memory_order_acquire, memory_order_acquire)) {
            claim->q = worker->current;
            claim->slot = worker->slot;
            claim->first = next;
            claim->count = count;
            claim->fetcher = worker->number;
            return true;
        }
    }
}

/* W6 and W7: before leaving a slot. True if the worker has to finish it. */
static bool owns_finish(const fi_worker *worker, uint32_t slot, uint64_t q, uint32_t n)
{
    fi_slot *s = worker->ring->slots + slot;
    fi_fence(1); /* F1 (D1, D4): own DONE before the scan, and before state and pwait */
    if (all_done(worker->ring, slot, (uint32_t)q, n) &&
        swap_owned(&s->state, fi_word(q, 0, FI_FILLING, 0),
                   fi_word(q, worker->number, FI_FINISHING, 0)))
        return true;
    if (fi_load_relaxed(&s->state) == fi_word(q, 0, FI_CANCELLED, 0)) /* W7 */
        fi_wake_parent(worker->ring, q);
    return false;
}

enum fi_claim_kind fi_worker_next(fi_worker *worker, fi_claim *claim)
{
    if (worker->is_aside) {
        worker->is_aside = false;
        *claim = worker->aside;
        claim->first = claim->count = 0;
        if (owns_finish(worker, claim->slot, claim->q, claim->n))
            return FI_CLAIM_FINISH;
    }
    for (;;) {
        if (!worker->in_slot && !enter_slot(worker, claim))
            return worker->is_aside                         ? FI_CLAIM_ROWS
                   : worker->leave || fi_worker_leaves(worker) ? FI_CLAIM_STOP
                                                          : FI_CLAIM_NONE;
        if (worker->hedges && worker->current > fi_load_relaxed(&worker->ring->board->head) &&
            has_late(worker, claim))
            return FI_CLAIM_ROWS; /* instead of beginning a batch behind theirs */
        if (take_range(worker, claim))
            return FI_CLAIM_ROWS;
        worker->in_slot = false; /* W8 comes next, whatever the leave check finds */
        uint64_t q = worker->current++;
        if (claim->n > 0 && owns_finish(worker, worker->slot, q, claim->n)) {
            claim->q = q;
            claim->slot = worker->slot;
            claim->first = claim->count = 0;
            return FI_CLAIM_FINISH;
        }
    }
}

bool fi_worker_finishes(const fi_worker *worker, const fi_claim *claim)
{
    return owns_finish(worker, claim->slot, claim->q, claim->n);
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

bool fi_row_own(const fi_worker *worker, const fi_claim *claim, uint32_t row)
{
    /* A1, pairs with S3 and R2: index and schema are readable, old bytes may be overwritten. */
    return swap_owned(fi_row_word(worker->ring, claim->slot, row), fi_word(claim->q, 0, FI_TODO, 0),
                      fi_word(claim->q, worker->number, FI_OWNED, 0));
}

/* One hedge less of those that are allowed; false if there is none. */
static bool take_hedge(fi_board *board)
{
    uint64_t left = fi_load_relaxed(&board->hedges);
    while (left >= FI_ONE_HEDGE)
        if (atomic_compare_exchange_weak_explicit(&board->hedges, &left, left - FI_ONE_HEDGE,
                                                  memory_order_relaxed, memory_order_relaxed))
            return true;
    return false;
}

static bool begin_row(const fi_claim *claim, _Atomic uint64_t *place)
{
    uint64_t todo = fi_word(claim->q, 0, FI_TODO, 0);
    /* A1; release: since when the row is fetched is to be seen first. */
    return atomic_compare_exchange_strong_explicit(
        place, &todo, fi_word(claim->q, claim->fetcher, FI_FETCH, 0), memory_order_acq_rel,
        memory_order_relaxed);
}

/* A row that its fetcher has announced only becomes the hedger's own promise. */
static bool begin_hedge(const fi_worker *worker, const fi_claim *claim, _Atomic uint64_t *place)
{
    fi_board *board = worker->ring->board;
    if (!take_hedge(board))
        return false;
    if (!swap_owned(place, fi_word(claim->q, claim->fetcher, FI_FETCH, 0),
                    fi_word(claim->q, claim->fetcher, FI_FETCH, FI_HEDGED)) &&
        !swap_owned(place, fi_word(claim->q, 0, FI_TODO, 0),
                    fi_word(claim->q, worker->number, FI_FETCH, FI_HEDGED))) {
        atomic_fetch_add_explicit(&board->hedges, FI_ONE_HEDGE, memory_order_relaxed);
        return false;
    }
    atomic_fetch_add_explicit(&board->hedged, 1, memory_order_relaxed);
    return true;
}

bool fi_row_promise(const fi_worker *worker, const fi_claim *claim, uint32_t row, int64_t since,
                    int64_t *index)
{
    fi_ring *ring = worker->ring;
    fi_worker_stat *stat = ring->worker_stats + worker->number;
    _Atomic uint64_t *place = fi_row_word(ring, claim->slot, row);
    int64_t before = fi_load_relaxed(&stat->since); /* of other rows of the same call */
    fi_store_relaxed(&stat->since, since);
    if (claim->fetcher == worker->number ? begin_row(claim, place)
                                         : begin_hedge(worker, claim, place)) {
        *index = fi_row_index_now(ring, claim->slot, row);
        fi_store_relaxed(&stat->index, *index);
        return true;
    }
    fi_store_relaxed(&stat->since, before);
    return false;
}

bool fi_row_announce(const fi_worker *worker, const fi_claim *claim, uint32_t row, int64_t since,
                     int64_t *index)
{
    fi_ring *ring = worker->ring;
    /* A1 */
    if (fi_load_acquire(fi_row_word(ring, claim->slot, row)) != fi_word(claim->q, 0, FI_TODO, 0))
        return false;
    *index = fi_row_index_now(ring, claim->slot, row);
    fi_worker_stat_fetches_since(ring->worker_stats + worker->number, *index, since);
    return true;
}

bool fi_row_win(const fi_worker *worker, const fi_claim *claim, uint32_t row)
{
    fi_board *board = worker->ring->board;
    _Atomic uint64_t *place = fi_row_word(worker->ring, claim->slot, row);
    uint64_t word = fi_load_relaxed(place);
    /* Whoever has promised to fetch it: an example of this row is there. */
    while (word == fi_word(claim->q, 0, FI_TODO, 0) ||
           (fi_word_q(word) == (uint32_t)claim->q && fi_word_code(word) == FI_FETCH)) {
        /* A1: as in fi_row_own, for all that came between has changed the word by swaps. */
        if (atomic_compare_exchange_weak_explicit(
                place, &word, fi_word(claim->q, worker->number, FI_OWNED, 0), memory_order_acquire,
                memory_order_relaxed)) {
            if (claim->fetcher != worker->number)
                atomic_fetch_add_explicit(&board->won, 1, memory_order_relaxed);
            return true;
        }
    }
    return false;
}

void fi_row_done(const fi_worker *worker, const fi_claim *claim, uint32_t row, uint32_t code)
{
    FI_ASSERT(fi_code_done(code));
    /* A2 and A5: pairs with the finisher's scan and with the parent's collection. */
    fi_store_release(fi_row_word(worker->ring, claim->slot, row), fi_word(claim->q, 0, code, 0));
}

void fi_worker_ready(const fi_worker *worker, const fi_claim *claim, uint32_t flags)
{
    /* A3, pairs with T1 */
    fi_store_release(&worker->ring->slots[claim->slot].state, fi_ready_word(claim->q, flags));
    fi_fence(2); /* F2 (D3), pairs with F5: READY before the look at pwait */
    fi_wake_parent(worker->ring, claim->q);
}

size_t fi_rows_before(const fi_worker *worker, const fi_claim *claim, int64_t *indices, size_t most)
{
    const fi_ring *ring = worker->ring;
    const uint64_t slots = ring->geometry.slots;
    uint64_t q = fi_load_acquire(&ring->board->head);
    size_t count = 0;

    if (claim->q - q >= slots)
        return 0; /* taken already, or a corrupt word */
    for (; q <= claim->q; q++) {
        const uint32_t slot = q == claim->q ? claim->slot : fi_load_relaxed(ring->map + q % slots);
        uint32_t n = slot < slots ? fi_load_relaxed(&ring->slots[slot].n) : 0;
        n = q == claim->q ? claim->first : n < ring->geometry.rows ? n : ring->geometry.rows;
        for (uint32_t row = 0; row < n && count < most; row++) {
            /* A1, pairs with S3 and R2: the index is readable. */
            const uint64_t word = fi_load_acquire(fi_row_word(ring, slot, row));
            const uint32_t code = fi_word_code(word);
            if (fi_word_q(word) == (uint32_t)q &&
                (code == FI_TODO || code == FI_FETCH || code == FI_OWNED))
                indices[count++] = *fi_row_index(ring, slot, row);
        }
    }
    return count;
}

/* The worker's half of the ring, and the pages of slots.
 *
 * model/ring.pml is this file and fi_parent.c for the model checker. Its actions here: turn is
 * enter_slot (W1 to W3), claim take_range (W4), rows fi_row_own and fi_row_done (W5), check
 * all_done and the swap in fi_worker_next (W6), READY fi_worker_ready (W6), after_check the end of
 * fi_worker_next (W7), doze sleep_for_work (B1 to B4). model/README.md has the parent's. What
 * changes a step changes the model too; what changes an order, model/orders.py.
 */
#include "ring/fi_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "batch/fi_copy.h"
#include "os/fi_platform.h"
#include "ring/fi_trace.h"

/* Names of the protocol's orders. Each use says which step it pairs with (table in README.md). */
#define load_acquire(place) atomic_load_explicit(place, memory_order_acquire)
#define load_relaxed(place) atomic_load_explicit(place, memory_order_relaxed)
#define store_release(place, value) atomic_store_explicit(place, value, memory_order_release)
#define store_relaxed(place, value) atomic_store_explicit(place, value, memory_order_relaxed)

static inline uint64_t claim_word(uint64_t q, uint32_t next)
{
    return (q & UINT32_MAX) << 32 | next;
}

/* Success acquires what the last release store to the word published; failure learns nothing. */
static inline bool swap_owned(_Atomic uint64_t *place, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong_explicit(place, &from, to, memory_order_acquire,
                                                   memory_order_relaxed);
}

/* ---- layout ------------------------------------------------------------------------------ */

typedef struct layout {
    uint64_t map, pwait, bells, cells, slots, words, indices, entries, schemas, notes, payload;
    uint64_t traces, total;
} layout;

static uint64_t place(uint64_t *end, uint64_t bytes, uint64_t alignment)
{
    uint64_t start = fi_align_up(*end, alignment);
    *end = start + bytes;
    return start;
}

static int lay_out(const fi_geometry *g, layout *out)
{
    if (g->slots < 1 || g->slots > 1u << 16 || g->workers < 1 || g->workers > 0xffff ||
        g->rows < 1 || g->rows > 1u << 30 || g->schemas < 1 || g->schemas > 1u << 10 ||
        g->slot_bytes < FI_PAGE || g->slot_bytes > (uint64_t)1 << 44 ||
        g->slot_bytes % FI_PAGE != 0)
        return FI_E_RANGE;
    uint64_t cells = (uint64_t)g->slots * g->rows; /* at most 2^46 */
    uint64_t end = sizeof(fi_board);
    out->map = place(&end, g->slots * sizeof(uint32_t), FI_CACHE_LINE);
    out->pwait = place(&end, sizeof(uint64_t), FI_CACHE_LINE);
    out->bells = place(&end, g->workers * sizeof(uint32_t), FI_CACHE_LINE);
    out->cells = place(&end, g->workers * sizeof(fi_cell), FI_CACHE_LINE);
    out->slots = place(&end, g->slots * sizeof(fi_slot), FI_CACHE_LINE);
    out->words = place(&end, cells * sizeof(uint64_t), FI_CACHE_LINE);
    out->indices = place(&end, cells * sizeof(int64_t), FI_CACHE_LINE);
    out->entries = place(&end, cells * sizeof(fi_entry), FI_CACHE_LINE);
    out->schemas = place(&end, (uint64_t)g->schemas * FI_SCHEMA_BYTES, FI_PAGE);
    out->notes = place(&end, (uint64_t)g->workers * FI_NOTE_BYTES, FI_PAGE);
    out->payload = place(&end, g->slots * g->slot_bytes, FI_HUGE_PAGE);
    out->traces = place(&end, (uint64_t)g->workers * FI_TRACE_BYTES, FI_PAGE);
    out->total = end;
    return FI_OK;
}

int fi_ring_size(const fi_geometry *geometry, uint64_t *control, uint64_t *total)
{
    layout at;
    int rc = lay_out(geometry, &at);
    if (rc == FI_OK) {
        *control = at.payload;
        *total = at.total;
    }
    return rc;
}

int fi_ring_attach(fi_ring *ring, const fi_geometry *geometry, void *base, int fd, int event)
{
    layout at;
    int rc = lay_out(geometry, &at);
    if (rc != FI_OK)
        return rc;
    char *b = base;
    *ring = (fi_ring){
        .geometry = *geometry,
        .base = b,
        .fd = fd,
        .event = event,
        .board = (fi_board *)b,
        .map = (_Atomic uint32_t *)(b + at.map),
        .pwait = (_Atomic uint64_t *)(b + at.pwait),
        .bells = (_Atomic uint32_t *)(b + at.bells),
        .cells = (fi_cell *)(b + at.cells),
        .slots = (fi_slot *)(b + at.slots),
        .words = (_Atomic uint64_t *)(b + at.words),
        .indices = (int64_t *)(b + at.indices),
        .entries = (fi_entry *)(b + at.entries),
        .schemas = b + at.schemas,
        .notes = b + at.notes,
        .payload = b + at.payload,
        .traces = b + at.traces,
    };
    return FI_OK;
}

/* ---- payload: pages and heap --------------------------------------------------------------- */

static void raise_to(_Atomic uint64_t *place, uint64_t value)
{
    uint64_t now = load_relaxed(place);
    while (now < value && !atomic_compare_exchange_weak_explicit(
                              place, &now, value, memory_order_relaxed, memory_order_relaxed)) {
    }
}

int fi_slot_commit(const fi_ring *ring, uint32_t slot, uint64_t committed, uint64_t bytes,
                   uint64_t *need, uint64_t *have)
{
    if (bytes <= committed)
        return FI_OK;
    if (bytes > ring->geometry.slot_bytes) {
        *need = bytes;
        *have = ring->geometry.slot_bytes;
        return FI_E_FULL;
    }
    uint64_t start = (uint64_t)(fi_slot_payload(ring, slot) - ring->base) + committed;
    bytes = fi_align_up(bytes, FI_PAGE);
    int rc = fi_shm_commit(ring->fd, start, bytes - committed, need, have);
    /* Committing twice is harmless, so two who do it at once need not know of each other. */
    if (rc == FI_OK)
        raise_to(&ring->slots[slot].committed, bytes);
    return rc;
}

uint64_t fi_parent_committed(fi_parent *parent, uint32_t slot)
{
    uint64_t shared = fi_slot_committed(parent->ring, slot);
    /* Workers commit pages for what they pack; only then, a system call now and then. */
    if (shared > parent->committed[slot] && shared <= fi_shm_allocated(parent->ring->fd))
        parent->committed[slot] = shared;
    return parent->committed[slot];
}

int fi_parent_commit(fi_parent *parent, uint32_t slot, uint64_t bytes, uint64_t *need,
                     uint64_t *have)
{
    uint64_t committed = fi_parent_committed(parent, slot);
    int rc = fi_slot_commit(parent->ring, slot, committed, bytes, need, have);
    if (rc == FI_OK)
        parent->committed[slot] = fi_max_u64(committed, fi_align_up(bytes, FI_PAGE));
    return rc;
}

void fi_parent_decommit(fi_parent *parent, uint32_t slot, uint64_t bytes)
{
    fi_ring *ring = parent->ring;
    uint64_t committed = fi_parent_committed(parent, slot), keep = fi_align_up(bytes, FI_PAGE);
    if (parent->slot[slot].phase != FI_FREE || keep >= committed)
        return;
    /* First the numbers: they must never count pages that are gone. Nobody else uses the slot. */
    parent->committed[slot] = keep;
    store_relaxed(&ring->slots[slot].committed, keep);
    fi_shm_decommit(ring->fd, (uint64_t)(fi_slot_payload(ring, slot) - ring->base) + keep,
                    committed - keep);
}

/* Sees to it that the heap has pages up to `end`, and a quarter more where there is memory: each
 * commit asks the kernel how much is free. */
static int commit_heap(const fi_ring *ring, uint32_t slot, uint64_t end, uint64_t limit,
                       uint64_t *need, uint64_t *have)
{
    uint64_t committed = fi_slot_committed(ring, slot);
    if (end <= committed)
        return FI_OK;
    uint64_t ahead = fi_min_u64(end + fi_max_u64(end / 4, (uint64_t)1 << 20), limit);
    int rc = fi_slot_commit(ring, slot, committed, ahead, need, have);
    return rc == FI_OK ? rc : fi_slot_commit(ring, slot, committed, end, need, have);
}

int fi_heap_take(const fi_ring *ring, uint32_t slot, uint64_t bytes, uint64_t *offset,
                 uint64_t *need, uint64_t *have)
{
    fi_slot *s = ring->slots + slot;
    uint64_t limit = fi_min_u64(load_relaxed(&s->limit), ring->geometry.slot_bytes);
    uint64_t word = load_relaxed(&s->heap), now, start, end;
    do {
        if (fi_heap_offset(word, &now) != FI_OK)
            return FI_E_BROKEN;
        start = fi_align_up(fi_min_u64(now, limit), FI_CACHE_LINE);
        if (now > limit || start > limit || bytes > limit - start) {
            *need = bytes;
            *have = now < limit && start < limit ? limit - start : 0;
            return FI_E_FULL;
        }
        end = start + bytes;
        /* The pages first: where they are refused, what follows lies in front of them. */
        int rc = commit_heap(ring, slot, end, limit, need, have);
        if (rc != FI_OK)
            return rc;
    } while (!atomic_compare_exchange_weak_explicit(&s->heap, &word, fi_heap_word(end),
                                                    memory_order_relaxed, memory_order_relaxed));
    *offset = start;
    return FI_OK;
}

/* ---- worker --------------------------------------------------------------------------------- */

void fi_worker_init(fi_worker *worker, fi_ring *ring, uint32_t number, int bell_pipe)
{
    *worker =
        (fi_worker){.ring = ring, .number = number, .bell_pipe = bell_pipe, .least = 1};
}

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* How many workers share the rows. A spoilt number costs time only. */
static inline uint32_t crew_of(const fi_ring *ring)
{
    uint32_t crew = load_relaxed(&ring->board->crew);
    return crew > 0 && crew < ring->geometry.workers ? crew : ring->geometry.workers;
}

static inline bool shall_leave(const fi_worker *worker)
{
    return load_relaxed(&worker->ring->board->stop) || worker->number >= crew_of(worker->ring);
}

static bool has_work(const fi_worker *worker)
{
    fi_board *board = worker->ring->board;
    return load_relaxed(&board->redo) != worker->seen ||
           load_relaxed(&board->tail) > worker->current || shall_leave(worker);
}

#define MOST_SPIN 10000 /* pauses, whatever the board says */

/* B1 to B4. */
static void sleep_for_work(fi_worker *worker)
{
    uint32_t spin = load_relaxed(&worker->ring->board->spin);
    for (spin = spin < MOST_SPIN ? spin : MOST_SPIN; spin > 0; spin--) {
        if (has_work(worker))
            return;
        pause_briefly();
    }
    _Atomic uint32_t *bell = worker->ring->bells + worker->number;
    fi_cell *cell = worker->ring->cells + worker->number;
    int64_t since = fi_now_ns();
    store_relaxed(bell, 1); /* B1 */
    fi_fence(3);            /* F3, pairs with F4: bell before the look at the board */
    if (has_work(worker))   /* B3 */
        fi_bell_cancel(bell, worker->bell_pipe);
    else
        fi_bell_sleep(bell, worker->bell_pipe); /* B4 */
    int64_t took = fi_now_ns() - since;
    store_relaxed(&cell->sleep_ns, load_relaxed(&cell->sleep_ns) + (uint64_t)took);
    if (fi_traces(worker->ring)) {
        fi_event event = {.began_ns = since, .took_ns = took};
        fi_trace_put(worker->ring, worker->number, FI_EVENT_WAIT, &event, 0);
    }
}

static void ring_parent(const fi_ring *ring, uint64_t q)
{
    uint64_t waits = load_relaxed(ring->pwait);
    if (waits != FI_ANY && waits != q)
        return;
    /* The one who turns it to 0 writes; a second worker finds 0 and saves the system call. */
    if (atomic_exchange_explicit(ring->pwait, 0, memory_order_relaxed) != 0)
        fi_event_ring(ring->event);
}

/* W6, first half: are all rows of the slot done for this sequence? */
static bool all_done(const fi_ring *ring, uint32_t slot, uint32_t q, uint32_t n)
{
    for (uint32_t row = n; row-- > 0;) {
        uint64_t word = load_acquire(fi_row_word(ring, slot, row)); /* A2, pairs with W5 done */
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
        uint32_t redo = load_acquire(&board->redo); /* A4, pairs with R4: sees rewound claims */
        if (redo != worker->seen) {
            worker->seen = redo;
            worker->current = 0;
        }
        /* A4, pairs with the parent's stores of head and of tail (S7). */
        worker->current = fi_max_u64(worker->current, load_acquire(&board->head));
        if (worker->current >= load_acquire(&board->tail)) {
            sleep_for_work(worker);
            continue;
        }
        uint32_t slot = load_relaxed(ring->map + worker->current % ring->geometry.slots);
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

void fi_worker_called(fi_worker *worker, uint32_t rows, int64_t nanoseconds)
{
    fi_call_cost_note(&worker->call, rows, nanoseconds);
}

/* Rows of a batch of n that leave as many for each worker that finds no other batch to fill. A wrong
 * word costs time only. */
static uint32_t even_rows(const fi_ring *ring, uint32_t n)
{
    const fi_board *board = ring->board;
    uint64_t crew = crew_of(ring), filling = 0, slots = ring->geometry.slots;
    uint64_t head = load_relaxed(&board->head);
    uint64_t count = fi_min_u64(load_relaxed(&board->tail) - head, slots);
    for (uint64_t i = 0; i < count && filling < crew; i++) {
        uint32_t slot = load_relaxed(ring->map + (head + i) % slots);
        uint64_t state = slot < slots ? load_relaxed(&ring->slots[slot].state) : 0;
        filling += fi_word_code(state) == FI_FILLING;
    }
    return (uint32_t)((n * fi_max_u64(filling, 1) + crew - 1) / crew);
}

/* W4: takes a range of rows, fewer the fewer are left, so that all workers end together; more where
 * each call of the dataset has a fixed cost. */
static bool take_range(fi_worker *worker, fi_turn *turn)
{
    fi_ring *ring = worker->ring;
    fi_slot *s = ring->slots + worker->slot;
    uint64_t claim = load_acquire(&s->claim); /* A4, pairs with S5 and R3 */
    for (;;) {
        if (fi_word_q(claim) != (uint32_t)worker->current) {
            turn->n = 0; /* the slot serves another batch */
            return false;
        }
        uint32_t next = (uint32_t)claim;
        uint32_t n = load_relaxed(&s->n);
        turn->n = n < ring->geometry.rows ? n : ring->geometry.rows;
        if (next >= turn->n)
            return false;
        uint32_t left = turn->n - next;
        uint32_t share = left / (2 * crew_of(ring));
        share = share > worker->least ? share : worker->least;
        if (worker->call.calls > 0)
            share = fi_call_cost_claim(&worker->call, turn->n, left, share,
                                       even_rows(ring, turn->n));
        uint32_t count = load_relaxed(&s->single) ? 1 : share < left ? share : left;
        if (atomic_compare_exchange_weak_explicit(&s->claim, &claim,
                                                  claim_word(worker->current, next + count),
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
        if (load_relaxed(&s->state) == fi_word(q, 0, FI_VOID, 0)) /* W7 */
            ring_parent(ring, q);
    }
}

bool fi_worker_outruns_cache(const fi_worker *worker, uint64_t batch_bytes)
{
    const fi_board *board = worker->ring->board;
    uint64_t slots = worker->ring->geometry.slots;
    if (!fi_outruns_cache(batch_bytes, slots)) /* not even all of them: the board is not looked at */
        return false;
    /* Spoilt words cost time only. */
    uint64_t batches = load_relaxed(&board->tail) - load_relaxed(&board->head);
    return fi_outruns_cache(batch_bytes, fi_min_u64(batches, slots));
}

bool fi_row_own(const fi_worker *worker, const fi_turn *turn, uint32_t row)
{
    /* A1, pairs with S3 and R2: index and schema are readable, old bytes may be overwritten. */
    return swap_owned(fi_row_word(worker->ring, turn->slot, row),
                      fi_word(turn->q, 0, FI_TODO, 0),
                      fi_word(turn->q, worker->number, FI_OWNED, 0));
}

void fi_row_done(const fi_worker *worker, const fi_turn *turn, uint32_t row, uint32_t code)
{
    FI_ASSERT(fi_code_done(code));
    /* A2 and A5: pairs with the finisher's scan and with the parent's collection. */
    store_release(fi_row_word(worker->ring, turn->slot, row), fi_word(turn->q, 0, code, 0));
}

void fi_worker_ready(const fi_worker *worker, const fi_turn *turn, uint32_t flags)
{
    /* A3, pairs with T1 */
    store_release(&worker->ring->slots[turn->slot].state, fi_ready_word(turn->q, flags));
    fi_fence(2); /* F2 (D3), pairs with F5: READY before the look at pwait */
    ring_parent(worker->ring, turn->q);
}

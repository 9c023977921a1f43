/* The parent's half of the ring while all goes well: batches are scheduled, taken and reset, and slots
 * come back. What follows a death, or a corrupt word, stands in fi_ring_recovery.c. */
#include "ring/fi_ring_parent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/fi_platform.h"

static inline bool swap_relaxed(_Atomic uint64_t *place, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong_explicit(place, &from, to, memory_order_relaxed,
                                                   memory_order_relaxed);
}

/* The scheduled batch that has the place of sequence q in the map, or NULL. */
static inline const fi_slot_record *batch_at(const fi_parent *parent, uint64_t q)
{
    uint32_t slots = parent->ring->geometry.slots;
    const fi_slot_record *record = parent->slot + parent->slot_of[q % slots];
    return record->phase == FI_FILL && record->q % slots == q % slots ? record : NULL;
}

int fi_parent_init(fi_parent *parent, fi_ring *ring, uint32_t spares,
                   const fi_bell_pipe *bell_pipes)
{
    uint32_t slots = ring->geometry.slots;
    if (spares >= slots)
        return FI_E_RANGE;
    /* Sequences begin at 1: in pwait, 0 says that the parent is awake. */
    *parent =
        (fi_parent){.ring = ring, .bell_pipes = bell_pipes, .spares = spares, .head = 1, .tail = 1};
    parent->slot = calloc(slots, sizeof *parent->slot);
    parent->slot_of = calloc(slots, sizeof *parent->slot_of);
    parent->free_stack = calloc(slots, sizeof *parent->free_stack);
    parent->indices = calloc((size_t)slots * ring->geometry.rows, sizeof *parent->indices);
    if (!parent->slot || !parent->slot_of || !parent->free_stack || !parent->indices) {
        fi_parent_clear(parent);
        return ENOMEM;
    }
    for (uint32_t slot = slots; slot-- > 0;) {
        if (slot >= slots - spares)
            parent->slot[slot].phase = FI_SPARE;
        else
            fi_make_free(parent, slot);
    }
    fi_store_release(&ring->board->head, parent->head);
    fi_store_release(&ring->board->tail, parent->tail);
    return FI_OK;
}

void fi_parent_clear(fi_parent *parent)
{
    free(parent->slot);
    free(parent->slot_of);
    free(parent->free_stack);
    free(parent->indices);
    *parent = (fi_parent){.ring = parent->ring};
}

/* ---- pages ----------------------------------------------------------------------------------- */

uint64_t fi_parent_committed(fi_parent *parent, uint32_t slot)
{
    uint64_t shared = fi_slot_committed(parent->ring, slot);
    /* Workers commit pages for what they pack; only then, a system call now and then. */
    if (shared > parent->slot[slot].committed && shared <= fi_shm_allocated(parent->ring->fd))
        parent->slot[slot].committed = shared;
    return parent->slot[slot].committed;
}

int fi_parent_commit(fi_parent *parent, uint32_t slot, uint64_t bytes, uint64_t *need,
                     uint64_t *have)
{
    uint64_t committed = fi_parent_committed(parent, slot);
    int rc = fi_slot_commit(parent->ring, slot, committed, bytes, need, have);
    if (rc == FI_OK)
        parent->slot[slot].committed = fi_max_u64(committed, fi_align_up(bytes, FI_PAGE));
    return rc;
}

void fi_parent_decommit(fi_parent *parent, uint32_t slot, uint64_t bytes)
{
    fi_ring *ring = parent->ring;
    uint64_t committed = fi_parent_committed(parent, slot), keep = fi_align_up(bytes, FI_PAGE);
    enum fi_phase phase = parent->slot[slot].phase;
    if ((phase != FI_FREE && phase != FI_LEASED) || keep >= committed)
        return;
    /* First the numbers: they must never count pages that are gone. No other process uses the slot. */
    parent->slot[slot].committed = keep;
    fi_store_relaxed(&ring->slots[slot].committed, keep);
    fi_ring_decommit(ring, fi_slot_place(ring, slot) + keep, committed - keep);
}

/* ---- schedule ------------------------------------------------------------------------------ */

int fi_parent_next_slot(fi_parent *parent, uint64_t bytes, uint32_t *slot)
{
    if (parent->free_count == 0)
        return FI_E_FULL;
    /* A batch that was overtaken keeps its place in the map: no number is given that needs it. */
    while (batch_at(parent, parent->tail))
        parent->tail++;
    *slot = parent->free_stack[parent->free_count - 1];
    for (uint32_t i = parent->free_count; i-- > 0;) {
        if (fi_parent_committed(parent, parent->free_stack[i]) >= bytes) {
            *slot = parent->free_stack[i];
            break;
        }
    }
    return FI_OK;
}

/* Takes a slot off the stack of free ones. It is at the top, or near it. */
static int take_free(fi_parent *parent, uint32_t slot)
{
    uint32_t i = parent->free_count;
    while (i > 0 && parent->free_stack[i - 1] != slot)
        i--;
    if (i == 0)
        return FI_E_FULL;
    for (; i < parent->free_count; i++)
        parent->free_stack[i - 1] = parent->free_stack[i];
    parent->free_count--;
    return FI_OK;
}

void fi_parent_origin(fi_parent *parent, uint32_t slot, const fi_origin *origin)
{
    fi_slot *s = parent->ring->slots + slot;
    fi_origin *own = &parent->slot[slot].origin;
    *own = *origin;
    /* A batch has fewer rows than these can count: what is more is as good as that. */
    own->position = fi_min_u64(origin->position, UINT32_MAX);
    own->epoch_size = fi_min_u64(origin->epoch_size, UINT32_MAX);
    /* S2: no worker owns a row of a free slot */
    fi_store_relaxed(&s->seed[0], own->seed[0]);
    fi_store_relaxed(&s->seed[1], own->seed[1]);
    fi_store_relaxed(&s->epoch, own->epoch);
    fi_store_relaxed(&s->position, (uint32_t)own->position);
    fi_store_relaxed(&s->epoch_size, (uint32_t)own->epoch_size);
}

int fi_parent_request(fi_parent *parent, uint32_t slot, const fi_request *request)
{
    fi_slot *s = parent->ring->slots + slot;
    if (request->worker > parent->ring->geometry.workers)
        return FI_E_RANGE;
    parent->slot[slot].request = *request;
    /* S2: no worker owns a row of a free slot */
    fi_store_relaxed(&s->worker, request->worker);
    fi_store_relaxed(&s->request_offset, request->offset);
    fi_store_relaxed(&s->request_bytes, request->bytes);
    return FI_OK;
}

/* S1 to S6. */
static int put_batch(fi_parent *parent, uint32_t slot, const int64_t *indices, uint32_t n,
                     uint32_t schema, uint64_t heap, bool single, uint64_t q)
{
    fi_ring *ring = parent->ring;
    if (n < 1 || n > ring->geometry.rows || schema >= ring->geometry.schemas ||
        heap > ring->geometry.slot_bytes)
        return FI_E_RANGE;
    if (take_free(parent, slot) != FI_OK)
        return FI_E_FULL;
    fi_slot_record *record = parent->slot + slot; /* S1 */
    record->q = q;
    record->n = n;
    record->schema = schema;
    record->phase = FI_FILL;
    record->corrupt = false;
    parent->slot_of[q % ring->geometry.slots] = slot;
    fi_slot *s = ring->slots + slot; /* S2 */
    fi_store_relaxed(&s->n, n);
    fi_store_relaxed(&s->schema, schema);
    fi_store_relaxed(&s->single, single);
    fi_store_relaxed(&s->heap, fi_heap_word(heap));
    fi_entry_set(ring, slot, FI_WHOLE_BATCH, 0, 0);
    memcpy(fi_own_indices(parent, slot), indices, n * sizeof *indices);
    _Atomic int64_t *theirs = (_Atomic int64_t *)fi_row_index(ring, slot, 0);
    _Atomic uint64_t *words = fi_row_word(ring, slot, 0);
    for (uint32_t row = 0; row < n; row++) {
        fi_store_relaxed(theirs + row, indices[row]); /* who hedges a row of the batch before may still read it */
        fi_store_release(words + row, fi_word(q, 0, FI_TODO, 0)); /* S3, pairs with W5 (A1) */
    }
    fi_store_release(&s->state, fi_word(q, 0, FI_FILLING, 0));    /* S4 */
    fi_store_release(&s->claim, fi_claim_word(q, 0));             /* S5, pairs with W4 */
    fi_store_relaxed(ring->map + q % ring->geometry.slots, slot); /* S6 */
    parent->offered += n;
    parent->is_for_one |= record->request.worker > 0;
    return FI_OK;
}

#define HEDGES_JUDGED 4  /* hedges that are judged together */
#define ENOUGH_WINS 4    /* one win in this many hedges is worth them all */
#define FEWEST_HEDGES 64 /* one hedge in this many stays allowed, to notice when hedges win again */

/* Part of the recent hedges that were worth it, in FI_ONE_HEDGE. Where the first fetch always wins, rows
 * are slow wherever they are fetched, and a hedge keeps a worker busy for nothing. */
static uint64_t useful_hedges(fi_parent *parent)
{
    uint32_t won, hedged = fi_parent_hedged(parent, &won) - parent->judged;
    if (hedged >= HEDGES_JUDGED) {
        uint64_t wins = (uint64_t)(won - parent->judged_won) * ENOUGH_WINS * FI_ONE_HEDGE;
        parent->useful = (uint32_t)((parent->useful + fi_min_u64(wins / hedged, FI_ONE_HEDGE)) / 2);
        parent->judged += hedged;
        parent->judged_won = won;
    }
    return fi_max_u64(parent->useful, FI_ONE_HEDGE / FEWEST_HEDGES);
}

/* A batch's share of hedges, as far as they are useful. Besides those of the batches under way, a
 * batch's worth may be saved up. */
static void allow_hedges(fi_parent *parent, uint64_t n)
{
    uint64_t useful = useful_hedges(parent), each = parent->hedge * useful / FI_ONE_HEDGE;
    uint64_t most = parent->ring->geometry.rows * (useful + each * (parent->tail - parent->head));
    _Atomic uint64_t *hedges = &parent->ring->board->hedges;
    uint64_t now = fi_load_relaxed(hedges), then;
    do
        then = fi_min_u64(now + n * each, fi_max_u64(most, FI_ONE_HEDGE));
    while (then != now && !atomic_compare_exchange_weak_explicit(
                              hedges, &now, then, memory_order_relaxed, memory_order_relaxed));
}

int fi_parent_schedule(fi_parent *parent, uint32_t slot, const int64_t *indices, uint32_t n,
                       uint32_t schema, uint64_t heap, bool single, uint64_t *q)
{
    *q = parent->tail;
    int rc = put_batch(parent, slot, indices, n, schema, heap, single, *q);
    if (rc != FI_OK)
        return rc;
    parent->tail = *q + 1;
    if (parent->hedge > 0)
        allow_hedges(parent, n);
    /* S7, pairs with W2: the map is readable */
    fi_store_release(&parent->ring->board->tail, parent->tail);
    return FI_OK;
}

static void ring_workers(fi_parent *parent, uint32_t most)
{
    fi_ring *ring = parent->ring;
    fi_fence(4); /* F4 (D2), pairs with F3: tail, redo or stop before the look at the bells */
    for (uint32_t w = 0; w < ring->geometry.workers && most > 0; w++) {
        const fi_bell_pipe *pipe = parent->bell_pipes ? parent->bell_pipes + w : NULL;
        most -= fi_bell_ring(ring->bells + w, pipe);
    }
}

void fi_parent_publish(fi_parent *parent)
{
    if (parent->offered > 0)
        /* S8: workers are woken in the order of their numbers; to reach a certain one, all are. */
        ring_workers(parent, parent->is_for_one ? UINT32_MAX : parent->offered);
    parent->offered = 0;
    parent->is_for_one = false;
}

void fi_parent_ring_all(fi_parent *parent)
{
    ring_workers(parent, UINT32_MAX);
}

/* ---- collect: slots come back --------------------------------------------------------------- */

/* A forked child may have views of the slot: a spare takes its place. */
static void retire(fi_parent *parent, uint32_t slot)
{
    parent->slot[slot].phase = FI_RETIRED;
    parent->retired++;
    if (parent->spares > 0)
        fi_make_free(parent, parent->ring->geometry.slots - parent->spares--);
}

void fi_parent_take_back(fi_parent *parent, uint32_t stack)
{
    uint32_t slot;
    bool not_again;
    while (fi_returned_next(&parent->ring->returned, &stack, &slot, &not_again)) {
        if (parent->slot[slot].phase != FI_LEASED)
            continue; /* released before it was taken */
        parent->leased--;
        (not_again ? retire : fi_make_free)(parent, slot);
    }
}

/* Words of a draining slot that no worker will change any more. A corrupt word is none of them: it
 * may belong to a worker that is still writing. */
static bool is_settled_row(uint64_t word, uint64_t q)
{
    uint32_t code = fi_word_code(word);
    return (fi_code_done(code) || code == FI_CANCELLED) && word == fi_word(q, 0, code, 0);
}

static bool is_settled_state(uint64_t word, uint64_t q)
{
    return word == fi_word(q, 0, FI_CANCELLED, 0) || word == fi_ready_word(q, fi_word_flags(word));
}

static bool drained(const fi_ring *ring, uint32_t slot, const fi_slot_record *record)
{
    if (!is_settled_state(fi_load_acquire(&ring->slots[slot].state), record->q))
        return false;
    for (uint32_t row = 0; row < record->n; row++) {
        /* A5, pairs with W5 done */
        if (!is_settled_row(fi_load_acquire(fi_row_word(ring, slot, row)), record->q))
            return false;
    }
    return true;
}

void fi_parent_collect(fi_parent *parent)
{
    fi_ring *ring = parent->ring;
    for (uint32_t slot = 0; parent->draining > 0 && slot < ring->geometry.slots; slot++) {
        if (parent->slot[slot].phase == FI_DRAIN && drained(ring, slot, &parent->slot[slot])) {
            parent->draining--;
            fi_make_free(parent, slot);
        }
    }
}

uint32_t fi_parent_usable(const fi_parent *parent)
{
    uint32_t away = parent->leased + parent->retired + parent->draining + parent->spares + 1;
    uint32_t slots = parent->ring->geometry.slots;
    return away < slots ? slots - away : 0;
}

/* ---- take ------------------------------------------------------------------------------------ */

static uint32_t head_slot(const fi_parent *parent)
{
    return parent->slot_of[parent->head % parent->ring->geometry.slots];
}

/* After a batch has left the ring: the head moves on to the oldest one that is scheduled. */
static void move_head(fi_parent *parent)
{
    for (const fi_slot_record *batch; parent->head < parent->tail; parent->head++)
        if ((batch = batch_at(parent, parent->head)) && batch->q == parent->head)
            break;
    fi_store_release(&parent->ring->board->head, parent->head); /* pairs with W2 */
}

bool fi_parent_is_ready(const fi_parent *parent, uint32_t slot, uint32_t *flags)
{
    const fi_slot_record *record = parent->slot + slot;
    uint64_t state = fi_load_acquire(&parent->ring->slots[slot].state); /* A3, pairs with W6 */
    *flags = fi_word_flags(state) & 15;
    return state == fi_ready_word(record->q, *flags) || record->corrupt;
}

int fi_parent_ready(const fi_parent *parent, uint32_t *slot, uint32_t *flags)
{
    if (parent->head == parent->tail)
        return FI_E_BUSY;
    *slot = head_slot(parent);
    return fi_parent_is_ready(parent, *slot, flags) ? FI_OK : FI_E_BUSY;
}

uint32_t fi_parent_count_ready(const fi_parent *parent)
{
    uint32_t slots = parent->ring->geometry.slots;
    uint64_t q = parent->head;
    for (; q < parent->tail; q++) {
        uint64_t state = fi_load_relaxed(&parent->ring->slots[parent->slot_of[q % slots]].state);
        if (fi_word_q(state) != (uint32_t)q || fi_word_code(state) != FI_READY)
            break;
    }
    return (uint32_t)(q - parent->head);
}

void fi_parent_announce_sleep(fi_parent *parent, uint64_t q)
{
    fi_store_relaxed(parent->ring->pwait, q);
    fi_fence(5); /* F5 (D3, D4), pairs with F2 and F1: pwait before the look at the states */
}

void fi_parent_cancel_sleep(fi_parent *parent)
{
    fi_store_relaxed(parent->ring->pwait, 0);
}

static bool has_request(const fi_slot *s, const fi_request *own)
{
    return fi_load_relaxed(&s->worker) == own->worker &&
           fi_load_relaxed(&s->request_offset) == own->offset &&
           fi_load_relaxed(&s->request_bytes) == own->bytes;
}

/* A worker that read a corrupt word here fetched another example, wrote columns elsewhere, or drew
 * the random numbers of another example. */
static int check_task(const fi_parent *parent, uint32_t slot, uint32_t *row, uint64_t *word)
{
    const fi_slot_record *record = parent->slot + slot;
    const fi_slot *s = parent->ring->slots + slot;
    const int64_t *own = fi_own_indices(parent, slot);
    const int64_t *shared = fi_row_index(parent->ring, slot, 0);
    uint32_t n = fi_load_relaxed(&s->n), schema = fi_load_relaxed(&s->schema);
    fi_origin origin;
    *row = 0;
    *word = (uint64_t)schema << 32 | n;
    if (n != record->n || schema != record->schema)
        return FI_E_CORRUPT;
    fi_slot_origin(parent->ring, slot, &origin);
    *word = origin.epoch;
    if (memcmp(&origin, &record->origin, sizeof origin) != 0 || !has_request(s, &record->request))
        return FI_E_CORRUPT;
    if (memcmp(own, shared, n * sizeof *own) == 0)
        return FI_OK;
    while (*row + 1 < n && own[*row] == shared[*row])
        ++*row;
    *word = (uint64_t)shared[*row];
    return FI_E_CORRUPT;
}

int fi_parent_check(const fi_parent *parent, uint32_t slot, uint32_t *irregular, uint32_t *row,
                    uint64_t *word)
{
    const fi_slot_record *record = parent->slot + slot;
    *irregular = 0;
    for (uint32_t r = 0; r < record->n; r++) {
        /* Acquire, for the READY of a poisoned finish is the parent's own and publishes nothing. */
        uint64_t found = fi_load_acquire(fi_row_word(parent->ring, slot, r));
        if (found == fi_word(record->q, 0, FI_ROW_OK, 0))
            continue;
        *row = r;
        *word = found;
        uint32_t code = fi_word_code(found);
        if (!fi_code_done(code) || found != fi_word(record->q, 0, code, 0))
            return FI_E_CORRUPT;
        ++*irregular;
    }
    if (record->corrupt) {
        *row = 0;
        *word = fi_load_relaxed(&parent->ring->slots[slot].state);
        return FI_E_CORRUPT;
    }
    return check_task(parent, slot, row, word);
}

void fi_parent_take(fi_parent *parent, uint32_t slot, bool copied)
{
    if (copied) {
        fi_make_free(parent, slot);
    } else {
        parent->slot[slot].phase = FI_LEASED;
        parent->leased++;
    }
    move_head(parent);
}

/* ---- reset ----------------------------------------------------------------------------------- */

/* A worker that only fetches a row has written nothing, and never will: its swap to OWNED fails. */
static void cancel_unowned(_Atomic uint64_t *place, uint64_t q)
{
    uint64_t word = fi_load_relaxed(place);
    while ((word == fi_word(q, 0, FI_TODO, 0) ||
            (fi_word_q(word) == (uint32_t)q && fi_word_code(word) == FI_FETCH)) &&
           !atomic_compare_exchange_weak_explicit(place, &word, fi_word(q, 0, FI_CANCELLED, 0),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

/* X1 to X4 for one slot. */
static void start_drain(fi_parent *parent, uint32_t slot)
{
    fi_slot_record *record = parent->slot + slot;
    fi_slot *s = parent->ring->slots + slot;
    /* X1: even if all rows are done, for a finisher may stand between its scan and its swap. */
    swap_relaxed(&s->state, fi_word(record->q, 0, FI_FILLING, 0),
                 fi_word(record->q, 0, FI_CANCELLED, 0));
    for (uint32_t row = 0; row < record->n; row++) /* X2 */
        cancel_unowned(fi_row_word(parent->ring, slot, row), record->q);
    fi_store_release(&s->claim, fi_claim_word(record->q, record->n)); /* X3 */
    record->phase = FI_DRAIN;                                         /* X4 */
    parent->draining++;
}

int fi_parent_move(fi_parent *parent, uint32_t from, uint32_t to, uint32_t schema, uint64_t heap,
                   bool single)
{
    const fi_slot_record *record = parent->slot + from;
    start_drain(parent, from);
    return put_batch(parent, to, fi_own_indices(parent, from), record->n, schema, heap, single,
                     record->q);
}

bool fi_parent_give_up_row(fi_parent *parent, uint32_t slot, uint32_t row)
{
    uint64_t q = parent->slot[slot].q;
    return swap_relaxed(fi_row_word(parent->ring, slot, row), fi_word(q, 0, FI_TODO, 0),
                        fi_word(q, 0, FI_POISON, 0));
}

void fi_parent_reset(fi_parent *parent)
{
    for (uint32_t slot = 0; slot < parent->ring->geometry.slots; slot++)
        if (parent->slot[slot].phase == FI_FILL)
            start_drain(parent, slot);
    parent->head = parent->tail;
    parent->offered = 0;
    fi_store_release(&parent->ring->board->head, parent->head);
}

void fi_parent_drop(fi_parent *parent, uint32_t slot)
{
    if (parent->slot[slot].corrupt) {
        fi_make_free(parent, slot);
    } else {
        start_drain(parent, slot);
        /* READY was not true: a worker that still writes a row must find CANCELLED when it leaves (W7). */
        fi_store_release(&parent->ring->slots[slot].state,
                         fi_word(parent->slot[slot].q, 0, FI_CANCELLED, 0));
    }
    move_head(parent);
}

/* ---- settings --------------------------------------------------------------------------------- */

void fi_parent_set_hedge(fi_parent *parent, double share)
{
    parent->hedge = (uint32_t)(share * FI_ONE_HEDGE + 0.5);
    parent->useful = FI_ONE_HEDGE;
}

uint32_t fi_parent_hedged(const fi_parent *parent, uint32_t *won)
{
    *won = fi_load_relaxed(&parent->ring->board->won);
    return fi_load_relaxed(&parent->ring->board->hedged);
}

void fi_parent_set_spin(fi_parent *parent, uint32_t pauses)
{
    fi_store_relaxed(&parent->ring->board->spin, pauses);
}

void fi_parent_set_worker_count(fi_parent *parent, uint32_t count)
{
    parent->worker_count = count < parent->ring->geometry.workers ? count : 0;
    fi_store_release(&parent->ring->board->worker_count, parent->worker_count);
    fi_parent_ring_all(parent); /* F4 (D2): whoever sleeps looks at it */
}

void fi_parent_stop(fi_parent *parent)
{
    parent->stopping = true;
    fi_store_release(&parent->ring->board->stop, 1);
    fi_parent_ring_all(parent);
}

/* The slot ring: batches travel through it from worker processes to the parent.
 *
 * Truth is one 64-bit word per row, {sequence, owner, code}: a worker owns a row from the moment
 * its compare-and-swap on that word succeeds. Claim words, positions and bells are hints, which
 * may be stale or lost without harm to any byte. The parent alone schedules, frees, recovers and
 * resets, from a private copy of all it needs. csrc/README.md has the states, the byte map and
 * the table of memory orders; the step names (W1, S3, R2, ...) used here are explained there.
 */
#ifndef FI_RING_H
#define FI_RING_H

#include "base/fi_base.h"
#include "ring/fi_call_cost.h"
#include "ring/fi_cell.h"

/* ---- words ------------------------------------------------------------------------------ */

/* Any two codes differ in four bits, so that one or two flipped bits never make a code into
 * another one. */
enum fi_code {
    FI_TODO = 0xb1,
    FI_OWNED = 0xd2,
    FI_VOID = 0x63,
    FI_ROW_OK = 0xe4, /* done codes: FI_ROW_OK to FI_POISON */
    FI_SPILL = 0x55,
    FI_ERROR = 0x36,
    FI_POISON = 0x87,
    FI_FILLING = 0x78, /* codes of a slot's state word, besides FI_VOID */
    FI_FINISHING = 0xc9,
    FI_READY = 0xaa
};

/* Flags of a READY state word: what the finisher left beside the rows. */
enum {
    FI_CONVERTED_FIELDS = 1, /* one output array per ragged field */
    FI_CONVERTED_OBJECT = 2, /* the converter's result, packed */
    FI_CONVERTER_ERROR = 4,  /* the converter's exception, packed */
    FI_FINISH_POISON = 8     /* set by the parent: the converter keeps killing workers */
};

static inline uint64_t fi_word(uint64_t q, uint32_t owner, uint32_t code, uint32_t flags)
{
    return (q & UINT32_MAX) << 32 | (uint64_t)(owner & 0xffff) << 16 | (code & 0xff) << 8 |
           (flags & 0xff);
}
static inline uint32_t fi_word_q(uint64_t word) { return (uint32_t)(word >> 32); }
static inline uint32_t fi_word_owner(uint64_t word) { return (word >> 16) & 0xffff; }
static inline uint32_t fi_word_code(uint64_t word) { return (word >> 8) & 0xff; }
static inline uint32_t fi_word_flags(uint64_t word) { return word & 0xff; }
/* The state word of a complete batch: its four flags, and their complement as a check. */
static inline uint64_t fi_ready_word(uint64_t q, uint32_t flags)
{
    return fi_word(q, 0, FI_READY, (flags & 15) | (~flags & 15) << 4);
}
static inline bool fi_code_done(uint32_t code)
{
    return code == FI_ROW_OK || code == FI_SPILL || code == FI_ERROR || code == FI_POISON;
}

/* ---- shared structures ------------------------------------------------------------------ */

typedef struct fi_board {
    _Alignas(FI_CACHE_LINE) _Atomic uint64_t head; /* oldest sequence not yet taken */
    _Atomic uint64_t tail;                         /* first sequence not yet scheduled */
    _Atomic uint32_t redo;                         /* recoveries so far */
    _Atomic uint32_t stop;
    _Atomic uint32_t spin; /* pauses before sleep; 0 where processes outnumber cores */
    _Atomic uint32_t crew;  /* workers from this number on leave; 0: all stay */
    _Atomic uint32_t trace; /* not 0: workers record what they do (fi_trace.h) */
    _Atomic uint64_t credit; /* streams only: samples that readers may still publish */
} fi_board;

typedef struct fi_slot {
    /* Who takes a range needs all of this first line. */
    _Alignas(FI_CACHE_LINE) _Atomic uint64_t claim; /* {sequence, next row to offer}: a hint */
    _Atomic uint64_t state;                         /* {sequence, finisher, code, flags} */
    _Atomic uint32_t n;                             /* rows of this batch */
    _Atomic uint32_t schema;
    _Atomic uint32_t single; /* 1: offer the rows one by one, for one of them kills workers */
    _Atomic uint32_t position; /* fi_origin, of use to who owns a row */
    _Atomic uint32_t epoch_size;
    _Atomic uint64_t epoch;
    _Atomic uint64_t seed[2];
    /* Written by the workers while they fill the slot. */
    _Alignas(FI_CACHE_LINE) _Atomic uint64_t heap; /* fi_heap_word of the next free byte */
    _Atomic uint64_t committed;                    /* bytes of the slot that have pages */
    _Atomic uint64_t limit;                        /* the heap may not grow past this */
    _Atomic uint64_t result_offset;                /* the finisher's packed object */
    _Atomic uint64_t result_bytes;
    _Atomic uint64_t filled; /* streams only: {sequence, rows published, flags} */
} fi_slot;

/* What the random numbers of a batch's examples follow from, besides their indices: the seed of
 * the iteration, and where it stands after the batch. The last `position` rows are of that epoch,
 * `epoch_size` rows in front of them of the one before, and so on. */
typedef struct fi_origin {
    uint64_t seed[2];
    uint64_t epoch;
    uint64_t position;
    uint64_t epoch_size;
} fi_origin;

/* Where a row's packed payload (a spill, an error) lies in its slot. */
typedef struct fi_entry {
    _Atomic uint64_t offset;
    _Atomic uint64_t bytes;
} fi_entry;

typedef struct fi_geometry {
    uint32_t slots;      /* S: also the length of the map */
    uint32_t workers;    /* W, at most 65535 */
    uint32_t rows;       /* B: rows a slot has room for */
    uint32_t schemas;    /* schema records */
    uint64_t slot_bytes; /* address range reserved for one slot's payload */
} fi_geometry;

#define FI_SCHEMA_BYTES (64u << 10)
#define FI_NOTE_BYTES (64u << 10)
#define FI_TRACE_BYTES (1u << 20)

/* This process' view of the shared segment. Pointers are private, offsets are shared. */
typedef struct fi_ring {
    fi_geometry geometry;
    char *base;
    int fd;
    int event; /* write end of the parent's bell */
    fi_board *board;
    _Atomic uint32_t *map; /* slot of sequence q at q % S */
    _Atomic uint64_t *pwait;
    _Atomic uint32_t *bells;
    fi_cell *cells;
    fi_slot *slots;
    _Atomic uint64_t *words; /* S x B row words */
    int64_t *indices;        /* S x B */
    fi_entry *entries;       /* S x B */
    char *schemas;
    char *notes;
    char *payload;
    char *traces;  /* FI_TRACE_BYTES for each worker, without pages at first */
} fi_ring;

/* Bytes of the control area and of the whole segment; FI_E_RANGE for a geometry out of bounds. */
int fi_ring_size(const fi_geometry *geometry, uint64_t *control, uint64_t *total);
int fi_ring_attach(fi_ring *ring, const fi_geometry *geometry, void *base, int fd, int event);

static inline char *fi_slot_payload(const fi_ring *ring, uint32_t slot)
{
    return ring->payload + (uint64_t)slot * ring->geometry.slot_bytes;
}
static inline _Atomic uint64_t *fi_row_word(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    return ring->words + (uint64_t)slot * ring->geometry.rows + row;
}
static inline fi_entry *fi_row_entry(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    return ring->entries + (uint64_t)slot * ring->geometry.rows + row;
}
static inline int64_t *fi_row_index(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    return ring->indices + (uint64_t)slot * ring->geometry.rows + row;
}

static inline uint64_t fi_slot_committed(const fi_ring *ring, uint32_t slot)
{
    return fi_min_u64(
        atomic_load_explicit(&ring->slots[slot].committed, memory_order_relaxed),
        ring->geometry.slot_bytes);
}
/* An offset in the slot and 18 bits that depend on all of it: a heap that was overwritten would
 * hand out bytes that are somebody's already, and nobody would notice. */
#define FI_HEAP_OFFSET_BITS 46
static inline uint64_t fi_heap_word(uint64_t offset)
{
    uint64_t check = ~offset * 0x9e3779b97f4a7c15u >> FI_HEAP_OFFSET_BITS; /* of 0: not 0 */
    return check << FI_HEAP_OFFSET_BITS | offset;
}
/* FI_E_BROKEN for a word that fi_heap_word does not make. */
static inline int fi_heap_offset(uint64_t word, uint64_t *offset)
{
    *offset = word & (((uint64_t)1 << FI_HEAP_OFFSET_BITS) - 1);
    return fi_heap_word(*offset) == word ? FI_OK : FI_E_BROKEN;
}
/* How far the heap of the slot has grown, for the size of its next commit; 0 if that is spoilt. */
static inline uint64_t fi_slot_used(const fi_ring *ring, uint32_t slot)
{
    uint64_t word = atomic_load_explicit(&ring->slots[slot].heap, memory_order_relaxed), offset;
    return fi_heap_offset(word, &offset) == FI_OK ? fi_min_u64(offset, ring->geometry.slot_bytes)
                                                  : 0;
}
static inline uint32_t fi_slot_schema(const fi_ring *ring, uint32_t slot)
{
    return atomic_load_explicit(&ring->slots[slot].schema, memory_order_relaxed);
}

static inline void fi_slot_seed(const fi_ring *ring, uint32_t slot, uint64_t *seed)
{
    seed[0] = atomic_load_explicit(&ring->slots[slot].seed[0], memory_order_relaxed);
    seed[1] = atomic_load_explicit(&ring->slots[slot].seed[1], memory_order_relaxed);
}
/* Of the slot of a row that the caller owns: the epoch of that row, which is one of n. */
static inline uint64_t fi_row_epoch(const fi_ring *ring, uint32_t slot, uint32_t row, uint32_t n)
{
    const fi_slot *s = ring->slots + slot;
    uint64_t epoch = atomic_load_explicit(&s->epoch, memory_order_relaxed);
    uint32_t position = atomic_load_explicit(&s->position, memory_order_relaxed);
    uint32_t size = atomic_load_explicit(&s->epoch_size, memory_order_relaxed);
    uint64_t before;
    if (row >= n || n - row <= position)
        return epoch;
    before = 1 + (n - row - position - 1) / (size > 0 ? size : 1);
    return epoch > before ? epoch - before : 0;
}

/* Packed objects: a row's spill or error, and the finisher's result. The done word of the row, or
 * READY, publishes them; the parent trusts neither number before it has compared it with the
 * bytes that are committed. */
static inline void fi_entry_set(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t offset,
                                uint64_t bytes)
{
    fi_entry *entry = fi_row_entry(ring, slot, row);
    atomic_store_explicit(&entry->offset, offset, memory_order_relaxed);
    atomic_store_explicit(&entry->bytes, bytes, memory_order_relaxed);
}
static inline void fi_entry_get(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t *offset,
                                uint64_t *bytes)
{
    fi_entry *entry = fi_row_entry(ring, slot, row);
    *offset = atomic_load_explicit(&entry->offset, memory_order_relaxed);
    *bytes = atomic_load_explicit(&entry->bytes, memory_order_relaxed);
}
static inline void fi_result_set(const fi_ring *ring, uint32_t slot, uint64_t offset,
                                 uint64_t bytes)
{
    atomic_store_explicit(&ring->slots[slot].result_offset, offset, memory_order_relaxed);
    atomic_store_explicit(&ring->slots[slot].result_bytes, bytes, memory_order_relaxed);
}
static inline void fi_result_get(const fi_ring *ring, uint32_t slot, uint64_t *offset,
                                 uint64_t *bytes)
{
    *offset = atomic_load_explicit(&ring->slots[slot].result_offset, memory_order_relaxed);
    *bytes = atomic_load_explicit(&ring->slots[slot].result_bytes, memory_order_relaxed);
}
/* Code of a row's word if it belongs to sequence q, else 0. */
static inline uint32_t fi_row_code(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t q)
{
    uint64_t word = atomic_load_explicit(fi_row_word(ring, slot, row), memory_order_acquire);
    return fi_word_q(word) == (uint32_t)q ? fi_word_code(word) : 0;
}
static inline void fi_board_set_spin(const fi_ring *ring, uint32_t pauses)
{
    atomic_store_explicit(&ring->board->spin, pauses, memory_order_relaxed);
}

/* Commits the pages of the slot's payload up to `bytes`, of which `committed` are there already.
 * Called by the parent (fi_parent_commit) and, within the slot's limit, by workers. FI_E_MEMORY
 * with need and have: refused. */
int fi_slot_commit(const fi_ring *ring, uint32_t slot, uint64_t committed, uint64_t bytes,
                   uint64_t *need, uint64_t *have);

/* Takes `bytes` from the slot's heap, 64-byte aligned. Only the owner of a row, or the finisher,
 * may call it. FI_E_FULL: the reservation ends here; FI_E_MEMORY: no memory (need, have);
 * FI_E_BROKEN: the heap was overwritten. Nothing is taken then. */
int fi_heap_take(const fi_ring *ring, uint32_t slot, uint64_t bytes, uint64_t *offset,
                 uint64_t *need, uint64_t *have);

/* ---- worker (one per process or thread) -------------------------------------------------- */

typedef struct fi_worker {
    fi_ring *ring;
    uint32_t number;
    int bell_pipe;    /* read end, or -1 for a futex */
    uint32_t seen;    /* last value of board->redo acted upon */
    uint32_t least;   /* rows that a range has at least, where so many are left */
    int64_t row_ns;   /* what one row takes, no less than it lately took */
    fi_call_cost call; /* if the dataset fetches several rows in one call */
    bool in_slot;     /* between W3 and W8 */
    bool leave;       /* set by the owner: exit at the next W1 */
    uint32_t slot;    /* valid in a slot */
    uint64_t current; /* own position: sequence in hand or next */
} fi_worker;

enum fi_turn_kind { FI_TURN_STOP, FI_TURN_ROWS, FI_TURN_FINISH };

typedef struct fi_turn {
    uint64_t q;
    uint32_t slot;
    uint32_t n;
    uint32_t first; /* FI_TURN_ROWS: the range [first, first + count) */
    uint32_t count;
} fi_turn;

void fi_worker_init(fi_worker *worker, fi_ring *ring, uint32_t number, int bell_pipe);

/* Blocks until there is something to do and says what: leave, fill rows, or finish a slot whose
 * rows are all done and whose FINISHING now belongs to this worker. */
enum fi_turn_kind fi_worker_next(fi_worker *worker, fi_turn *turn);

/* W5. True if this worker owns the row from here on; only then may it read the row's index. */
bool fi_row_own(const fi_worker *worker, const fi_turn *turn, uint32_t row);
void fi_row_done(const fi_worker *worker, const fi_turn *turn, uint32_t row, uint32_t code);
/* Tells how long the range in hand took, so that the next ones of cheap rows are not so short that
 * taking them costs more than filling them. */
void fi_worker_pace(fi_worker *worker, uint32_t rows, int64_t nanoseconds);
/* In its place where the rows of the range were fetched by one call of the dataset. */
void fi_worker_called(fi_worker *worker, uint32_t rows, int64_t nanoseconds);
/* W6, second half. Publishes the batch and rings the parent if it sleeps for it. */
void fi_worker_ready(const fi_worker *worker, const fi_turn *turn, uint32_t flags);

/* Whether batches of so many bytes, as many as are under way now, outrun the caches (fi_copy.h): their
 * rows are better written past them. */
bool fi_worker_outruns_cache(const fi_worker *worker, uint64_t batch_bytes);

/* ---- parent ------------------------------------------------------------------------------- */

enum fi_phase { FI_FREE, FI_FILL, FI_DRAIN, FI_LEASED, FI_SPARE, FI_RETIRED };

typedef struct fi_private {
    uint64_t q;
    uint32_t n;
    uint32_t schema;
    enum fi_phase phase;
    bool corrupt; /* given up: its words can no longer become those of a complete batch */
} fi_private;

typedef struct fi_parent {
    fi_ring *ring;
    fi_private *slot;       /* S */
    uint32_t *slot_of;      /* sequence modulo S -> slot: the parent never trusts the map */
    uint32_t *free_stack;   /* last in, first out: the newest is still in cache */
    uint32_t *returned_next;
    uint64_t *committed;    /* S: bytes that certainly have pages */
    int64_t *indices;       /* S x B: what the workers were told */
    fi_origin *origins;     /* S: likewise */
    const int *bell_pipes;  /* write ends, or NULL for futexes */
    _Atomic uint32_t returned; /* lock-free stack of released leases: slot + 1 and a mark, 0 = empty */
    uint32_t free_count;
    uint32_t spares; /* slots never used yet, kept to replace retired ones */
    uint64_t head, tail;
    uint32_t offered; /* rows scheduled since the last publish */
    uint32_t leased, draining, retired;
    uint32_t crew; /* what the board should say */
    bool stopping;
} fi_parent;

#define FI_ANY UINT64_MAX /* pwait: the parent sleeps for any event */

/* `spares` of the geometry's slots stay aside. Allocates; ENOMEM. */
int fi_parent_init(fi_parent *parent, fi_ring *ring, uint32_t spares, const int *bell_pipes);
void fi_parent_clear(fi_parent *parent);

/* A free slot: of those with pages for `bytes` the one used last, or, if none has them, the one used
 * last. FI_E_FULL if none is free. It stays free until it is scheduled. */
int fi_parent_next_slot(fi_parent *parent, uint64_t bytes, uint32_t *slot);
/* Says of the batch that the next schedule puts into this slot where it comes from. */
void fi_parent_origin(fi_parent *parent, uint32_t slot, const fi_origin *origin);
/* S1 to S7, in a free slot; FI_E_FULL if it is not free. `heap` is where the slot's bump allocation
 * starts, `limit` where it ends. `single` offers the rows one by one. */
int fi_parent_schedule(fi_parent *parent, uint32_t slot, const int64_t *indices, uint32_t n,
                       uint32_t schema, uint64_t heap, uint64_t limit, bool single, uint64_t *q);
/* S8: wakes sleeping workers for what was scheduled since the last call. */
void fi_parent_publish(fi_parent *parent);
void fi_parent_ring_all(fi_parent *parent);

/* Bytes of the slot that have pages: never more than the file has of them, whatever the shared
 * number says. */
uint64_t fi_parent_committed(fi_parent *parent, uint32_t slot);
/* Sees to it that so many have. As fi_slot_commit. */
int fi_parent_commit(fi_parent *parent, uint32_t slot, uint64_t bytes, uint64_t *need,
                     uint64_t *have);
/* Gives the pages of a free slot beyond `bytes` back to the system, where that can take them. */
void fi_parent_decommit(fi_parent *parent, uint32_t slot, uint64_t bytes);

/* Takes back slots whose leases died and slots that a reset has drained. */
void fi_parent_collect(fi_parent *parent);

/* T1: is the batch at the head READY? The slot's number and flags, or FI_E_BUSY. */
int fi_parent_ready(const fi_parent *parent, uint32_t *slot, uint32_t *flags);
/* How many batches from the head on are READY, for statistics. */
uint32_t fi_parent_count_ready(const fi_parent *parent);
/* T2: announces the sleep; the caller must look again (T3) before it sleeps. */
void fi_parent_doze(fi_parent *parent, uint64_t q);
void fi_parent_wake(fi_parent *parent);
/* T5: checks every row word of the ready head; `odd` counts rows other than FI_ROW_OK. FI_E_BROKEN
 * if a word is impossible, the batch was given up, or the workers were told something else than the
 * parent had said (n, schema, indices, origin): `row` and `word` say where and what. Takes nothing. */
int fi_parent_check(const fi_parent *parent, uint32_t slot, uint32_t *odd, uint32_t *row,
                    uint64_t *word);
/* The head leaves the ring: its slot is leased, or free again at once when `copied`. */
void fi_parent_take(fi_parent *parent, bool copied);
/* The head leaves the ring undelivered, because `check` found it broken. Its slot drains as after
 * a reset, since a worker may still be writing there; it is free at once if it was given up. */
void fi_parent_drop(fi_parent *parent);
/* The last view of a leased slot died: called once for each take that was not copied. Any thread;
 * takes no lock, calls nothing. */
void fi_parent_release(fi_parent *parent, uint32_t slot);
/* In its place, where the program has forked while there were views, so that the child may have
 * some: the slot is never written again, and a spare takes its place. */
void fi_parent_retire(fi_parent *parent, uint32_t slot);
/* Slots that could be filled if the head were leased now. */
uint32_t fi_parent_usable(const fi_parent *parent);

/* X1 to X4: forgets all that is scheduled. Nothing waits. */
void fi_parent_reset(fi_parent *parent);

/* What a dead worker had in hand. */
typedef struct fi_loss {
    uint32_t slot;
    uint32_t row; /* UINT32_MAX: it was finishing the slot */
    uint64_t q;
} fi_loss;
#define FI_LOSS_FINISH UINT32_MAX

/* R2, first half: lists up to `most` losses of a worker whose death is known; returns how many. */
uint32_t fi_parent_losses(const fi_parent *parent, uint32_t worker, fi_loss *losses,
                          uint32_t most);
/* R2, second half: gives one lost row or finish back; `poison` gives it up instead. */
void fi_parent_return(fi_parent *parent, const fi_loss *loss, bool poison);
/* R3 to R5, for all slots and the dead worker's bell (`bell_pipe`: the non-blocking read end, or
 * -1). Afterwards its number may be used again; R6 is fi_parent_ring_all. */
void fi_parent_rewind(fi_parent *parent, uint32_t worker, int bell_pipe);
/* From now on the rows of every scheduled slot are offered one by one. */
void fi_parent_offer_singly(fi_parent *parent);

/* R3, R4, R6 for the stall timer: restores every hint, and wakes all workers whatever their bells
 * say. Harmless at any time. */
void fi_parent_restore_hints(fi_parent *parent);
/* True if no worker will ever make the head READY, or settle a slot that drains: every worker
 * sleeps, and a worker that sleeps owns nothing. Only a corrupt word can cause it. A bell may itself
 * be the corrupt word: the answer is sure only if fi_parent_restore_hints was called before, in time
 * for all workers to fall asleep again. */
bool fi_parent_stalled(const fi_parent *parent);
/* For a ring that is stalled: gives up every scheduled batch that is not READY, and frees the slots
 * that drain. fi_parent_ready then offers these batches, and fi_parent_check says FI_E_BROKEN. */
void fi_parent_give_up(fi_parent *parent);
/* From now on so many workers are wanted: those of a higher number leave when they are through with
 * the slot in hand, as if told to stop. They may be started again after fi_parent_rewind. */
void fi_parent_set_crew(fi_parent *parent, uint32_t count);
void fi_parent_stop(fi_parent *parent);

#endif

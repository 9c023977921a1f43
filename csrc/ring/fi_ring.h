/* The slot ring: the shared segment through which batches go from worker processes to the parent.
 *
 * The truth is one 64-bit word per row, {sequence, owner, code}: a worker owns a row from the moment
 * its compare-and-swap on that word succeeds. Claim words, positions and bells are hints, which may
 * be stale or lost without harm to any byte. The parent alone schedules, frees, recovers and resets,
 * from a private copy of all it needs. csrc/README.md has the states, the byte map and the table of
 * memory orders; it explains the step names (W1, S3, R2, ...) used here.
 *
 * This header declares the segment itself; fi_ring_worker.h and fi_ring_parent.h its two users.
 */
#ifndef FI_RING_H
#define FI_RING_H

#include "base/fi_base.h"
#include "ring/fi_views.h"
#include "ring/fi_worker_stat.h"

/* ---- words ------------------------------------------------------------------------------ */

/* Any two codes differ in four bits, so one or two flipped bits make no code into another one. */
enum fi_code {
    FI_TODO = 0xb1,
    FI_OWNED = 0xd2,
    FI_CANCELLED = 0x63,
    FI_ROW_OK = 0xe4, /* done codes: FI_ROW_OK to FI_POISON */
    FI_SPILL = 0x55,
    FI_ERROR = 0x36,
    FI_POISON = 0x87,
    FI_FILLING = 0x78, /* codes of a slot's state word, besides FI_CANCELLED */
    FI_FINISHING = 0xc9,
    FI_READY = 0xaa,
    FI_FETCH = 0x1b /* of a row: a worker fetches it, and has no right to write */
};
#define FI_HEDGED 1 /* flag of a FETCH word: a second worker fetches the row, too */

/* Flags of a READY state word: what the finisher left beside the rows. */
enum {
    FI_CONVERTED_FIELDS = 1, /* one output array per ragged field */
    FI_CONVERTED_OBJECT = 2, /* the converter's result, packed */
    FI_CONVERTER_ERROR = 4,  /* the converter's exception, packed */
    FI_FINISH_POISON = 8     /* set by the parent: the converter keeps killing workers */
};

/* Kinds of packed objects, for the checksum (fi_place_seed); the last three belong to the batch. */
enum {
    FI_PACKED_EXAMPLE,
    FI_PACKED_ERROR,
    FI_PACKED_FIELD,
    FI_PACKED_RESULT,
    FI_PACKED_FAILURE,
    FI_PACKED_REQUEST
};
#define FI_WHOLE_BATCH UINT32_MAX /* the row of an object that belongs to the batch */

static inline uint64_t fi_word(uint64_t q, uint32_t owner, uint32_t code, uint32_t flags)
{
    return (q & UINT32_MAX) << 32 | (uint64_t)(owner & 0xffff) << 16 | (code & 0xff) << 8 |
           (flags & 0xff);
}
static inline uint32_t fi_word_q(uint64_t word) { return (uint32_t)(word >> 32); }
static inline uint32_t fi_word_code(uint64_t word) { return (word >> 8) & 0xff; }
static inline uint32_t fi_word_owner(uint64_t word) { return (word >> 16) & 0xffff; }
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
static inline uint64_t fi_claim_word(uint64_t q, uint32_t next)
{
    return (q & UINT32_MAX) << 32 | next;
}

/* ---- shared structures ------------------------------------------------------------------ */

typedef struct fi_board {
    _Alignas(FI_CACHE_LINE) _Atomic uint64_t head; /* all sequences before it were taken */
    _Atomic uint64_t tail;                         /* first sequence not yet scheduled */
    _Atomic uint32_t redo;                         /* recoveries so far */
    _Atomic uint32_t stop;
    _Atomic uint32_t spin; /* pauses before sleep; 0 where processes outnumber cores */
    _Atomic uint32_t worker_count; /* workers from this number on leave; 0: all stay */
    _Atomic uint32_t trace;        /* not 0: workers record what they do (fi_trace.h) */
    _Atomic uint64_t credit;       /* streams only: samples that readers may still publish */
    _Atomic uint64_t hedges;       /* rows that may still be hedged, in FI_ONE_HEDGE */
    _Atomic uint32_t hedged, won;  /* rows hedged so far, and those that the second worker wrote */
} fi_board;

/* Place of a row's packed payload (a spill, an error) in its slot. */
typedef struct fi_entry {
    _Atomic uint64_t offset;
    _Atomic uint64_t bytes;
} fi_entry;

typedef struct fi_slot {
    /* A worker that takes a range needs all of this first line. */
    _Alignas(FI_CACHE_LINE) _Atomic uint64_t claim; /* {sequence, next row to offer}: a hint */
    _Atomic uint64_t state;                         /* {sequence, finisher, code, flags} */
    _Atomic uint32_t n;                             /* rows of this batch */
    _Atomic uint32_t schema;
    _Atomic uint32_t single;   /* 1: offer the rows one by one, for one of them kills workers */
    _Atomic uint32_t position; /* fi_origin, for the owner of a row */
    _Atomic uint32_t epoch_size;
    _Atomic uint32_t worker; /* fi_request */
    _Atomic uint64_t epoch;
    _Atomic uint64_t seed[2];
    /* Written by the workers while they fill the slot. */
    _Alignas(FI_CACHE_LINE) _Atomic uint64_t heap; /* fi_heap_word of the next free byte */
    _Atomic uint64_t committed;                    /* bytes of the slot that have pages */
    fi_entry result;                               /* the finisher's packed object */
    _Atomic uint64_t filled; /* streams only: {sequence, rows published, flags} */
    _Atomic uint64_t request_offset; /* fi_request, for the owner of a row */
    _Atomic uint64_t request_bytes;
} fi_slot;

/* Origin of the random numbers of a batch's examples, besides their indices: the seed
 * of the iteration, and its position after the batch. The last `position` rows are of that epoch,
 * `epoch_size` rows in front of them of the one before, and so on. */
typedef struct fi_origin {
    uint64_t seed[2];
    uint64_t epoch;
    uint64_t position;
    uint64_t epoch_size;
} fi_origin;

/* Request to the workers for a batch, besides its rows: a packed object in the slot, and for which
 * worker the batch is. */
typedef struct fi_request {
    uint64_t offset;
    uint64_t bytes;  /* 0: there is no object */
    uint32_t worker; /* 1 + number of the only worker that is offered the rows; 0: all are */
} fi_request;

#define FI_ONE_HEDGE 65536u

typedef struct fi_geometry {
    uint32_t slots;      /* S: also the length of the map */
    uint32_t workers;    /* W, at most 65535 */
    uint32_t rows;       /* B: rows a slot has room for */
    uint32_t schemas;    /* schema records */
    uint64_t slot_bytes; /* range of the file that one slot's payload may fill */
} fi_geometry;

#define FI_SCHEMA_BYTES (64u << 10)
#define FI_START_ERROR_BYTES (64u << 10)
#define FI_TRACE_BYTES (1u << 20)

/* Mappings of one slot in this process (fi_window.h). */
enum { FI_WINDOWS = 25 };
typedef struct fi_window {
    char *address;  /* the largest mapping; */
    uint64_t bytes; /* 0: there is none */
    uint64_t used;  /* bytes that a lease of the slot needs; 0: perhaps all */
    _Atomic uint32_t holders; /* this process' ring, and leases */
    atomic_bool is_shared;    /* a forked child may have views of it */
    char *each[FI_WINDOWS];   /* all mappings, by size */
} fi_window;

/* This process' view of the shared segment. Pointers are private, offsets are shared. */
typedef struct fi_ring {
    fi_geometry geometry;
    char *base;
    int fd;
    uint64_t file; /* fi_shm_file of it */
    int event; /* write end of the parent's bell */
    uint64_t event_file; /* fi_shm_file of it */
    fi_board *board;
    _Atomic uint32_t *map; /* slot of sequence q at q % S */
    _Atomic uint64_t *pwait;
    _Atomic uint32_t *bells;
    fi_worker_stat *worker_stats;
    fi_slot *slots;
    _Atomic uint64_t *words; /* S x B row words */
    int64_t *indices;        /* S x B */
    fi_entry *entries;       /* S x B */
    char *schemas;
    char *start_errors;
    char *traces; /* FI_TRACE_BYTES for each worker, without pages at first */
    uint64_t payload;   /* offset of the first slot in the file */
    fi_window *windows; /* S, private */
    fi_returned returned; /* slots of leases that have ended; private */
    bool is_hidden;     /* from children that this process forks */
} fi_ring;

#define FI_ANY UINT64_MAX /* pwait: the parent sleeps for any event */

/* Bytes of the control area and of the whole segment; FI_E_RANGE for a geometry out of bounds. */
int fi_ring_size(const fi_geometry *geometry, uint64_t *control, uint64_t *total);
/* `base` is where the control area is mapped. Allocates; ENOMEM. */
int fi_ring_attach(fi_ring *ring, const fi_geometry *geometry, void *base, int fd, int event);
/* Whether `fd` is still that of the segment: the program may have closed it, and opened another file. */
bool fi_ring_has_file(const fi_ring *ring);
/* Whether `event` is still the parent's bell, likewise. */
bool fi_ring_has_event(const fi_ring *ring);
/* Gives pages of the segment back, unless the descriptor is gone. */
void fi_ring_decommit(const fi_ring *ring, uint64_t offset, uint64_t bytes);
/* Gives a new control area its pages; a slot gets those of its rows with its first payload. */
int fi_ring_allocate(const fi_ring *ring);
/* Unmaps what is mapped of slots, but not the control area. */
void fi_ring_detach(fi_ring *ring);

/* Offset of the slot in the file. */
static inline uint64_t fi_slot_place(const fi_ring *ring, uint32_t slot)
{
    return ring->payload + (uint64_t)slot * ring->geometry.slot_bytes;
}
/* Address of the slot in this process, as far as fi_slot_reach has mapped it. */
static inline char *fi_slot_payload(const fi_ring *ring, uint32_t slot)
{
    return ring->windows[slot].address;
}
static inline _Atomic uint64_t *fi_row_word(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    return ring->words + (uint64_t)slot * ring->geometry.rows + row;
}
static inline fi_entry *fi_row_entry(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    if (row == FI_WHOLE_BATCH)
        return &ring->slots[slot].result;
    return ring->entries + (uint64_t)slot * ring->geometry.rows + row;
}
static inline int64_t *fi_row_index(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    return ring->indices + (uint64_t)slot * ring->geometry.rows + row;
}

/* The same for who does not own the row, so that the parent may change it meanwhile. */
static inline int64_t fi_row_index_now(const fi_ring *ring, uint32_t slot, uint32_t row)
{
    return fi_load_relaxed((_Atomic int64_t *)fi_row_index(ring, slot, row));
}

static inline uint64_t fi_slot_committed(const fi_ring *ring, uint32_t slot)
{
    return fi_min_u64(fi_load_relaxed(&ring->slots[slot].committed), ring->geometry.slot_bytes);
}
/* An offset in the slot, and 18 bits computed from all of it: a heap that was overwritten would
 * give out bytes that belong to another row, and nothing would notice. */
#define FI_HEAP_OFFSET_BITS 46
static inline uint64_t fi_heap_word(uint64_t offset)
{
    uint64_t check = ~offset * 0x9e3779b97f4a7c15u >> FI_HEAP_OFFSET_BITS; /* of 0: not 0 */
    return check << FI_HEAP_OFFSET_BITS | offset;
}
/* FI_E_CORRUPT for a word that fi_heap_word does not make. */
static inline int fi_heap_offset(uint64_t word, uint64_t *offset)
{
    *offset = word & (((uint64_t)1 << FI_HEAP_OFFSET_BITS) - 1);
    return fi_heap_word(*offset) == word ? FI_OK : FI_E_CORRUPT;
}
/* End of the slot's heap, for the size of its next commit; 0 if the word is corrupt. */
static inline uint64_t fi_slot_used(const fi_ring *ring, uint32_t slot)
{
    uint64_t offset;
    int rc = fi_heap_offset(fi_load_relaxed(&ring->slots[slot].heap), &offset);
    return rc == FI_OK ? fi_min_u64(offset, ring->geometry.slot_bytes) : 0;
}
static inline uint32_t fi_slot_schema(const fi_ring *ring, uint32_t slot)
{
    return fi_load_relaxed(&ring->slots[slot].schema);
}

static inline void fi_slot_origin(const fi_ring *ring, uint32_t slot, fi_origin *origin)
{
    const fi_slot *s = ring->slots + slot;
    origin->seed[0] = fi_load_relaxed(&s->seed[0]);
    origin->seed[1] = fi_load_relaxed(&s->seed[1]);
    origin->epoch = fi_load_relaxed(&s->epoch);
    origin->position = fi_load_relaxed(&s->position);
    origin->epoch_size = fi_load_relaxed(&s->epoch_size);
}
static inline bool fi_slot_has_request(const fi_ring *ring, uint32_t slot)
{
    return fi_load_relaxed(&ring->slots[slot].request_bytes) > 0;
}

/* Place of the batch's request; bytes 0 if there is none. FI_E_CORRUPT if not within the slot. */
static inline int fi_slot_request(const fi_ring *ring, uint32_t slot, uint64_t *offset,
                                  uint64_t *bytes)
{
    uint64_t committed = fi_slot_committed(ring, slot);
    *offset = fi_load_relaxed(&ring->slots[slot].request_offset);
    *bytes = fi_load_relaxed(&ring->slots[slot].request_bytes);
    return *offset <= committed && *bytes <= committed - *offset ? FI_OK : FI_E_CORRUPT;
}
/* The epoch of a row in a batch of n. */
static inline uint64_t fi_row_epoch(const fi_origin *origin, uint32_t row, uint32_t n)
{
    uint64_t size = origin->epoch_size > 0 ? origin->epoch_size : 1, before;
    if (row >= n || n - row <= origin->position)
        return origin->epoch;
    before = 1 + (n - row - origin->position - 1) / size;
    return origin->epoch > before ? origin->epoch - before : 0;
}

/* Packed objects: a row's spill or error, and the finisher's result (row FI_WHOLE_BATCH). The done
 * word of the row, or READY, publishes them; the parent uses neither number before it has compared
 * it with the bytes that are committed. */
static inline void fi_entry_set(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t offset,
                                uint64_t bytes)
{
    fi_entry *entry = fi_row_entry(ring, slot, row);
    fi_store_relaxed(&entry->offset, offset);
    fi_store_relaxed(&entry->bytes, bytes);
}
static inline void fi_entry_get(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t *offset,
                                uint64_t *bytes)
{
    fi_entry *entry = fi_row_entry(ring, slot, row);
    *offset = fi_load_relaxed(&entry->offset);
    *bytes = fi_load_relaxed(&entry->bytes);
}
/* Code of a row's word if it belongs to sequence q, else 0. */
static inline uint32_t fi_row_code(const fi_ring *ring, uint32_t slot, uint32_t row, uint64_t q)
{
    uint64_t word = fi_load_acquire(fi_row_word(ring, slot, row));
    return fi_word_q(word) == (uint32_t)q ? fi_word_code(word) : 0;
}

/* Commits the pages of the slot's payload up to `bytes`, of which `committed` are there already.
 * Called by the parent (fi_parent_commit) and by workers. FI_E_MEMORY
 * with need and have: refused. */
int fi_slot_commit(const fi_ring *ring, uint32_t slot, uint64_t committed, uint64_t bytes,
                   uint64_t *need, uint64_t *have);

/* Takes `bytes` from the slot's heap, 64-byte aligned and mapped. Only the owner of a row, or the
 * finisher, may call it. FI_E_FULL: the slot's range ends here; FI_E_MEMORY: no memory (need, have);
 * FI_E_SPACE: no address space (need); FI_E_CORRUPT: the heap was overwritten. Nothing is taken then. */
int fi_heap_take(const fi_ring *ring, uint32_t slot, uint64_t bytes, uint64_t *offset,
                 uint64_t *need, uint64_t *have);

/* Since when the longest of the workers' present fetches is under way (fi_now_ns); 0: there is none. */
int64_t fi_oldest_fetch(const fi_ring *ring);

/* Wakes the parent if it sleeps for sequence q (FI_ANY: for whatever). Called by workers, after
 * F1 or F2. */
void fi_wake_parent(const fi_ring *ring, uint64_t q);

#endif

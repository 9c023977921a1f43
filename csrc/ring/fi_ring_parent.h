/* The parent's half of the ring: it alone schedules, takes, frees, resets and recovers.
 *
 * All functions are called under one lock of the caller.
 */
#ifndef FI_RING_PARENT_H
#define FI_RING_PARENT_H

#include "os/fi_platform.h"
#include "ring/fi_ring.h"

enum fi_phase { FI_FREE, FI_FILL, FI_DRAIN, FI_LEASED, FI_SPARE, FI_RETIRED };

/* The parent's own copy of what a slot holds. */
typedef struct fi_slot_record {
    uint64_t q;
    uint32_t n;
    uint32_t schema;
    enum fi_phase phase;
    bool corrupt;       /* given up: its words can no longer become those of a complete batch */
    uint64_t committed; /* bytes that certainly have pages */
    fi_origin origin;   /* sent to the workers, and: */
    fi_request request;
} fi_slot_record;

typedef struct fi_parent {
    fi_ring *ring;
    fi_slot_record *slot;  /* S */
    uint32_t *slot_of;     /* sequence modulo S -> slot: the parent never trusts the map */
    uint32_t *free_stack;  /* last in, first out: the newest is still in cache */
    int64_t *indices;      /* S x B: what the workers were told */
    const fi_bell_pipe *bell_pipes; /* W; NULL for futexes */
    uint32_t free_count;
    uint32_t spares; /* slots never used yet, kept to replace retired ones */
    uint64_t head, tail; /* the oldest scheduled batch; the next sequence */
    uint32_t offered; /* rows scheduled since the last publish */
    bool is_for_one;  /* some of them are for a certain worker */
    uint32_t leased, draining, retired;
    uint32_t worker_count; /* right value of the board's word */
    uint32_t hedge;        /* share of the rows that may be hedged, in FI_ONE_HEDGE */
    uint32_t useful;       /* part of the recent hedges that were worth it, likewise */
    uint32_t judged, judged_won; /* hedges that were looked at for that, and how many of them won */
    bool stopping;
} fi_parent;

/* For the files of this half alone: what the workers were told, and a slot that may be scheduled again. */
static inline int64_t *fi_own_indices(const fi_parent *parent, uint32_t slot)
{
    return parent->indices + (size_t)slot * parent->ring->geometry.rows;
}

static inline void fi_make_free(fi_parent *parent, uint32_t slot)
{
    parent->slot[slot].phase = FI_FREE;
    parent->free_stack[parent->free_count++] = slot;
}

/* `spares` of the geometry's slots stay aside. Allocates; ENOMEM. */
int fi_parent_init(fi_parent *parent, fi_ring *ring, uint32_t spares,
                   const fi_bell_pipe *bell_pipes);
void fi_parent_clear(fi_parent *parent);

/* A free slot: of those with pages for `bytes` the one used last, or, if none has them, the one used
 * last. FI_E_FULL if none is free. It stays free until it is scheduled, with the sequence that
 * `tail` is from now on. */
int fi_parent_next_slot(fi_parent *parent, uint64_t bytes, uint32_t *slot);
/* Sets the origin of the batch that the next schedule puts into this slot. */
void fi_parent_origin(fi_parent *parent, uint32_t slot, const fi_origin *origin);
/* Likewise its request, which holds for all later batches of the slot, too. FI_E_RANGE for a worker
 * that cannot exist. */
int fi_parent_request(fi_parent *parent, uint32_t slot, const fi_request *request);
/* S1 to S7, in a free slot; FI_E_FULL if it is not free. `heap` is where the slot's bump allocation
 * starts. `single` offers the rows one by one. */
int fi_parent_schedule(fi_parent *parent, uint32_t slot, const int64_t *indices, uint32_t n,
                       uint32_t schema, uint64_t heap, bool single, uint64_t *q);
/* Takes a batch from a worker that neither goes on nor ends: X1 to X4 in slot `from`, which drains
 * when that worker has let go of it, or never; then S1 to S6 in the free slot `to`, with the same
 * sequence and indices. Origin and request of `to` are set before, as for a schedule; R3, R4 and R6
 * (fi_parent_restore_hints) come next. FI_E_FULL: `to` is not free, and the batch is lost. */
int fi_parent_move(fi_parent *parent, uint32_t from, uint32_t to, uint32_t schema, uint64_t heap,
                   bool single);
/* Poisons a row that no worker has begun; false if one has. */
bool fi_parent_give_up_row(fi_parent *parent, uint32_t slot, uint32_t row);
/* S8: wakes sleeping workers for what was scheduled since the last call. */
void fi_parent_publish(fi_parent *parent);
void fi_parent_ring_all(fi_parent *parent);

/* Bytes of the slot that have pages: never more than the file has of them, whatever the shared
 * number says. */
uint64_t fi_parent_committed(fi_parent *parent, uint32_t slot);
/* Commits pages up to `bytes`. As fi_slot_commit. */
int fi_parent_commit(fi_parent *parent, uint32_t slot, uint64_t bytes, uint64_t *need,
                     uint64_t *have);
/* Gives the pages of a free or leased slot beyond `bytes` back to the system, where that can take
 * them. */
void fi_parent_decommit(fi_parent *parent, uint32_t slot, uint64_t bytes);

/* Takes back slots whose leases have ended: a stack that was taken of the ring's `returned`. */
void fi_parent_take_back(fi_parent *parent, uint32_t stack);
/* Takes back slots that a reset has drained. */
void fi_parent_collect(fi_parent *parent);

/* T1: is the batch in a scheduled slot READY, or given up? Its flags. */
bool fi_parent_is_ready(const fi_parent *parent, uint32_t slot, uint32_t *flags);
/* The same of the batch at the head: its slot's number and flags, or FI_E_BUSY. */
int fi_parent_ready(const fi_parent *parent, uint32_t *slot, uint32_t *flags);
/* Number of batches from the head on that are READY, for statistics. */
uint32_t fi_parent_count_ready(const fi_parent *parent);
/* T2: announces the sleep; the caller must look again (T3) before it sleeps. */
void fi_parent_announce_sleep(fi_parent *parent, uint64_t q);
void fi_parent_cancel_sleep(fi_parent *parent);
/* T5: checks every row word of a ready batch; `irregular` counts rows other than FI_ROW_OK.
 * FI_E_CORRUPT if a word is impossible, the batch was given up, or the workers were told something
 * else than the parent had said (n, schema, indices, origin): `row` and `word` say where and what.
 * Takes nothing. */
int fi_parent_check(const fi_parent *parent, uint32_t slot, uint32_t *irregular, uint32_t *row,
                    uint64_t *word);
/* A ready batch, at the head or not, leaves the ring: its slot is free again at once when `copied`, else
 * leased. Then it is pushed once onto the ring's `returned`, when its last view has ended. */
void fi_parent_take(fi_parent *parent, uint32_t slot, bool copied);
/* A ready batch leaves the ring undelivered, because `check` found it corrupt. Its slot drains as
 * after a reset, since a worker may still be writing there; it is free at once if it was given up. */
void fi_parent_drop(fi_parent *parent, uint32_t slot);
/* Slots that could be filled if the head were leased now. */
uint32_t fi_parent_usable(const fi_parent *parent);

/* X1 to X4: forgets all that is scheduled. Waits for nothing. */
void fi_parent_reset(fi_parent *parent);

/* A row, or a finish, that a dead worker owned. */
typedef struct fi_loss {
    uint32_t slot;
    uint32_t row; /* FI_LOSS_FINISH: it was finishing the slot */
    uint64_t q;
} fi_loss;
#define FI_LOSS_FINISH UINT32_MAX

/* R2, first half: lists up to `most` losses of a worker whose death is known; returns how many. */
uint32_t fi_parent_losses(const fi_parent *parent, uint32_t worker, fi_loss *losses,
                          uint32_t most);
/* R2, second half: gives one row or finish that `worker` has lost back; `poison` gives it up
 * instead. Nothing happens if another worker has the row by now; or, unless the worker `is_dead`, if
 * it may write the row: what a living one only fetches is taken back so, too. */
void fi_parent_return(fi_parent *parent, uint32_t worker, bool is_dead, const fi_loss *loss,
                      bool poison);
/* R3 to R5, for all slots and the dead worker's bell. Afterwards its number may be used again; R6 is
 * fi_parent_ring_all. */
void fi_parent_rewind(fi_parent *parent, uint32_t worker);
/* From now on the rows of every scheduled slot are offered one by one. */
void fi_parent_offer_singly(fi_parent *parent);

/* Whether a worker waits for work and was not told yet that there is some: then it owns nothing. */
bool fi_parent_is_asleep(const fi_parent *parent, uint32_t worker);

/* R3, R4, R6 for the stall timer: restores every hint, and wakes all workers whatever their bells
 * say. Harmless at any time. */
void fi_parent_restore_hints(fi_parent *parent);
/* True if no worker will ever make the head READY, or settle a slot that drains: every worker
 * sleeps, and a worker that sleeps owns nothing. Only a corrupt word can cause it. A bell may itself
 * be the corrupt word: the answer is sure only if fi_parent_restore_hints was called before, in time
 * for all workers to fall asleep again. */
bool fi_parent_stalled(const fi_parent *parent);
/* For a ring that is stalled: gives up every scheduled batch that is not READY, and frees the slots
 * that drain. fi_parent_ready then offers these batches, and fi_parent_check says FI_E_CORRUPT. */
void fi_parent_give_up(fi_parent *parent);

/* Lets workers hedge this share of the rows, from 0 to 1, from now on; how many they have hedged so far,
 * and how many of these the second worker has `won`. */
void fi_parent_set_hedge(fi_parent *parent, double share);
uint32_t fi_parent_hedged(const fi_parent *parent, uint32_t *won);

/* Pauses of a worker before it sleeps. */
void fi_parent_set_spin(fi_parent *parent, uint32_t pauses);
/* From now on this many workers are wanted: those of a higher number leave when they are through with
 * their slot, as if told to stop. They may be started again after fi_parent_rewind. */
void fi_parent_set_worker_count(fi_parent *parent, uint32_t count);
void fi_parent_stop(fi_parent *parent);

#endif

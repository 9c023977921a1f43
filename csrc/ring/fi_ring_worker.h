/* The worker's half of the ring: finds rows to fill, owns them, finishes slots.
 *
 * One fi_worker per worker process, used by one thread at a time.
 */
#ifndef FI_RING_WORKER_H
#define FI_RING_WORKER_H

#include "ring/fi_call_cost.h"
#include "ring/fi_ring.h"

typedef struct fi_claim {
    uint64_t q;
    uint32_t slot;
    uint32_t n;
    uint32_t first; /* FI_CLAIM_ROWS: the range [first, first + count) */
    uint32_t count;
    uint32_t fetcher; /* who fetches them first: another worker's row, a single one, is hedged */
} fi_claim;

typedef struct fi_worker {
    fi_ring *ring;
    uint32_t number;
    int bell_pipe;     /* read end, or -1 for a futex */
    uint32_t seen;     /* last value of board->redo acted upon */
    uint64_t rewound;  /* rows of batches before it may be claimed twice, for a worker has died */
    uint32_t least;    /* rows that a range has at least, where that many are left */
    int64_t row_ns;    /* time for one row, no less than it lately took */
    fi_call_cost call; /* if the dataset fetches several rows in one call */
    bool in_slot;      /* between W3 and W8 */
    bool leave;        /* set by the caller: exit at the next W1 */
    uint32_t slot;     /* valid in a slot */
    uint64_t current;  /* own position: sequence worked on, or the next one */
    bool hedges;       /* set by the caller before the first claim: it looks for rows that are late */
    bool is_aside;     /* the last claim was out of order: */
    fi_claim aside;     /* in this batch */
    int64_t last_look; /* for rows that are late, by fi_coarse_ns */
    int64_t most_sleep; /* set by the caller: nanoseconds that the next claim may wait for work */
} fi_worker;

enum fi_claim_kind { FI_CLAIM_STOP, FI_CLAIM_ROWS, FI_CLAIM_FINISH, FI_CLAIM_NONE };

void fi_worker_init(fi_worker *worker, fi_ring *ring, uint32_t number, int bell_pipe);

/* Blocks until there is something to do and says what: leave, fill rows, or finish a slot whose
 * rows are all done and whose FINISHING now belongs to this worker. FI_CLAIM_NONE after `most_sleep`
 * nanoseconds without any of it; then, and in all claims but such waits, it sleeps no more until the
 * caller sets that anew. FI_FOR_EVER, as at first: never. */
enum fi_claim_kind fi_worker_next(fi_worker *worker, fi_claim *claim);
/* Whether it is to leave, as W1 finds. */
bool fi_worker_leaves(const fi_worker *worker);
/* W6, for a worker that takes further claims while others fetch its rows: after rows of an earlier claim
 * were done. True if it has to finish the slot. */
bool fi_worker_finishes(const fi_worker *worker, const fi_claim *claim);

/* W5. True if this worker owns the row from here on; only then may it read the row's index. */
bool fi_row_own(const fi_worker *worker, const fi_claim *claim, uint32_t row);
/* The same in two steps. W5a: true if the worker may fetch the row, of which `index` is read; it may
 * write nothing yet. Others see that it does so `since` then, by fi_now_ns. The slot may go to another
 * batch at any time: such a row is fetched in vain. */
bool fi_row_promise(const fi_worker *worker, const fi_claim *claim, uint32_t row, int64_t since,
                    int64_t *index);
/* W5a of cheap rows, where these may be fetched twice: no word tells that this worker fetches the row, so if
 * one dies meanwhile, others fetch it, too. */
bool fi_row_announce(const fi_worker *worker, const fi_claim *claim, uint32_t row, int64_t since,
                     int64_t *index);
/* W5b. True if the worker owns the row from here on; false if what it has fetched is to be thrown
 * away, for another one has the row. */
bool fi_row_win(const fi_worker *worker, const fi_claim *claim, uint32_t row);
void fi_row_done(const fi_worker *worker, const fi_claim *claim, uint32_t row, uint32_t code);
/* Says how long the range of the last claim took, so that the next ones of cheap rows are not so
 * short that taking them costs more than filling them. fi_call_cost_add(&worker->call, ...) is called
 * instead where one call of the dataset fetched the rows of the range. */
void fi_worker_pace(fi_worker *worker, uint32_t rows, int64_t nanoseconds);
/* W6, second half. Publishes the batch and rings the parent if it sleeps for it. */
void fi_worker_ready(const fi_worker *worker, const fi_claim *claim, uint32_t flags);

/* Whether batches of this many bytes, as many as are under way now, outrun the caches (fi_copy.h):
 * their rows are then copied past them. */
bool fi_worker_outruns_cache(const fi_worker *worker, uint64_t batch_bytes);

/* Indices of the rows before those of the claim, in the order of the plan, that are not fetched
 * yet; at most `most`. Corrupt words, and slots that are used again meanwhile, give wrong indices. */
size_t fi_rows_before(const fi_worker *worker, const fi_claim *claim, int64_t *indices, size_t most);

#endif

/* Counters that any thread may change without a lock: views of slots that are alive, forks of the
 * program meanwhile, and slots that have come back.
 */
#ifndef FI_VIEWS_H
#define FI_VIEWS_H

#include "base/fi_base.h"

/* The views of one ring. */
typedef struct fi_views {
    _Atomic uint32_t count;
} fi_views;

/* The forks of this process: how often one began or ended, and in the lower half how many are under
 * way, of several threads. */
typedef struct fi_forks {
    _Atomic uint64_t state;
} fi_forks;

#define FI_FORK_STEP (UINT64_C(1) << 32)

static inline void fi_fork_begins(fi_forks *forks)
{
    atomic_fetch_add(&forks->state, FI_FORK_STEP + 1);
}
static inline void fi_fork_ended(fi_forks *forks)
{
    atomic_fetch_add(&forks->state, FI_FORK_STEP - 1);
}
/* In the child no fork is under way: the threads that were about to fork are not there. */
static inline void fi_forks_begin_anew(fi_forks *forks)
{
    atomic_store(&forks->state, 0);
}

/* A view begins; the result is for its end. */
static inline uint64_t fi_view_begins(fi_views *views, const fi_forks *forks)
{
    fi_add_relaxed(&views->count, 1);
    return atomic_load(&forks->state);
}
/* True if there was, or may have been, a fork since it began: the memory must not be used again.
 * A view that begins and ends while a fork is under way counts as one that the child has. */
static inline bool fi_view_ends(fi_views *views, const fi_forks *forks, uint64_t began)
{
    atomic_fetch_sub_explicit(&views->count, 1, memory_order_relaxed);
    uint64_t now = atomic_load(&forks->state);
    return now != began || (now & (FI_FORK_STEP - 1)) != 0;
}
static inline uint32_t fi_views_count(const fi_views *views)
{
    return fi_load_relaxed(&views->count);
}

/* Slots whose last view has ended: a lock-free stack. Any thread pushes, and calls nothing; the parent
 * takes the whole of it, so a slot pushed again cannot be confused with its past. */
typedef struct fi_returned {
    _Atomic uint32_t top; /* slot + 1, and the mark; 0: empty */
    uint32_t *next;       /* of each slot: what lies below it */
} fi_returned;

/* Beside a slot on the stack: a forked child may have views of it. */
#define FI_NOT_AGAIN (UINT32_C(1) << 31)

/* `not_again`: the program has forked while there were views. The slot is never written again then. */
static inline void fi_returned_push(fi_returned *returned, uint32_t slot, bool not_again)
{
    uint32_t mark = not_again ? FI_NOT_AGAIN : 0;
    uint32_t top = fi_load_relaxed(&returned->top);
    do
        returned->next[slot] = top;
    /* Release, pairs with the exchange below: the last accesses to the slot's bytes, and the link. */
    while (!atomic_compare_exchange_weak_explicit(&returned->top, &top, (slot + 1) | mark,
                                                  memory_order_release, memory_order_relaxed));
}
/* The whole stack, which is then empty; walked by fi_returned_next, whenever that may be. */
static inline uint32_t fi_returned_take(fi_returned *returned)
{
    if (fi_load_relaxed(&returned->top) == 0)
        return 0;
    return atomic_exchange_explicit(&returned->top, 0, memory_order_acquire);
}
/* Takes the next slot of a stack that was taken; false at its end. */
static inline bool fi_returned_next(const fi_returned *returned, uint32_t *stack, uint32_t *slot,
                                    bool *not_again)
{
    if (*stack == 0)
        return false;
    *slot = (*stack & ~FI_NOT_AGAIN) - 1;
    *not_again = (*stack & FI_NOT_AGAIN) != 0;
    *stack = returned->next[*slot];
    return true;
}

#endif

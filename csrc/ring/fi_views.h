/* What has to be known of the views of slots on any thread, without a lock: how many there are of one
 * ring, and whether the program has forked while one was alive, so that the child may have it too.
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
/* In the child, where none is under way: threads that were about to fork are not there. */
static inline void fi_forks_begin_anew(fi_forks *forks)
{
    atomic_store(&forks->state, 0);
}

/* A view begins; what is returned is for its end. */
static inline uint64_t fi_view_begins(fi_views *views, const fi_forks *forks)
{
    atomic_fetch_add_explicit(&views->count, 1, memory_order_relaxed);
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
    return atomic_load_explicit(&views->count, memory_order_relaxed);
}

#endif

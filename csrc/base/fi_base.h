/* Definitions for all files of the C library: status codes, sizes, atomic loads, stores, fences.
 *
 * The library is plain C11. It knows neither Python nor NumPy, takes no locks and logs nothing.
 * A function that can fail returns an int status; its results are its last parameters.
 */
#ifndef FI_BASE_H
#define FI_BASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Status: 0 is success, a positive value is an errno, the negative ones are our own. */
enum {
    FI_OK = 0,
    FI_E_MEMORY = -1, /* the commit was refused before it could harm: too little memory */
    FI_E_FULL = -2,   /* no free slot, or the slot's reservation is used up */
    FI_E_RANGE = -3,  /* a number read from shared memory, or an argument, is out of bounds */
    FI_E_CORRUPT = -4, /* a word in shared memory holds a value that the protocol never writes */
    FI_E_BUSY = -5,    /* not yet: look again later */
    FI_E_SPACE = -6    /* no address space is left to map it */
};

/* The memory orders that the library uses, each under one name. */
#define fi_load_relaxed(place) atomic_load_explicit(place, memory_order_relaxed)
#define fi_load_acquire(place) atomic_load_explicit(place, memory_order_acquire)
#define fi_store_relaxed(place, value) atomic_store_explicit(place, value, memory_order_relaxed)
#define fi_store_release(place, value) atomic_store_explicit(place, value, memory_order_release)
#define fi_add_relaxed(place, value) atomic_fetch_add_explicit(place, value, memory_order_relaxed)

/* Raises a word to a value that it is below. */
static inline void fi_raise_to(_Atomic uint64_t *place, uint64_t value)
{
    uint64_t now = fi_load_relaxed(place);
    while (now < value && !atomic_compare_exchange_weak_explicit(
                              place, &now, value, memory_order_acq_rel, memory_order_relaxed))
        ;
}

#define FI_MOST_NDIM 32                   /* dimensions of an array: NumPy 1 allows no more */
#define FI_MOST_BYTES ((uint64_t)1 << 46) /* of an array, or of one slot */

#define FI_CACHE_LINE 64
#define FI_PAGE 4096
#define FI_HUGE_PAGE (2u << 20)

/* Rounds up to a power of two; the caller makes sure that the sum cannot overflow. */
static inline uint64_t fi_align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) & ~(alignment - 1);
}

static inline uint64_t fi_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t fi_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Debug builds stop at a broken promise; release builds take the promise for granted. */
#ifdef FI_DEBUG
#include <assert.h>
#define FI_ASSERT(condition) assert(condition)
#else
#define FI_ASSERT(condition) ((void)0)
#endif

/* The four store-then-load pairs of the protocol (csrc/README.md, D1 to D4) need a full fence:
 * neither acquire/release nor x86 by itself orders a store before a later load. `number` is the
 * fence's name, F1 to F5. The stall test (tests/c/stall.sh) builds with one of them left out. */
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan" /* it does not see fences, and no pair needs it to */
#endif
static inline void fi_fence(int number)
{
#ifdef FI_LEAVE_OUT_FENCE
    if (number == FI_LEAVE_OUT_FENCE) {
        atomic_signal_fence(memory_order_seq_cst); /* binds the compiler, not the processor */
        return;
    }
#else
    (void)number;
#endif
    atomic_thread_fence(memory_order_seq_cst);
}
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

_Static_assert(sizeof(_Atomic uint64_t) == 8, "64-bit atomics have no hidden lock");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the ring lives in memory shared by processes");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "the ring lives in memory shared by processes");

#endif

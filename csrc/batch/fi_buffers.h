/* A pool of large private buffers, handed out last-in first-out.
 *
 * Memory that a process has not touched before costs a page fault per page, many times what writing
 * to it costs. So a buffer that is given back is kept, and handed out again: the one given back
 * last first, since it is the one that still lies in the cache.
 *
 * All functions are thread-safe. They hold a lock for a few instructions, call nothing but the
 * system, and may run at any time, also in a child after a fork: it forgets the idle buffers that
 * it inherited, since another thread may have been changing their table at that moment. The memory
 * of buffers in use is the child's own copy, and is given back there like any other.
 *
 * Built with FI_DEBUG, buffers are overwritten when they are given back; AddressSanitizer is told
 * to report every access to one that is idle.
 */
#ifndef FI_BUFFERS_H
#define FI_BUFFERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Most buffers that may be idle at a time. */
#define FI_BUFFERS_MOST 16

typedef struct {
    void *data;
    size_t capacity; /* bytes */
    int64_t since;   /* when it was given back */
} fi_idle_buffer;

typedef struct {
    _Atomic int holder; /* process whose thread is in the table; 0: none is */
    int pid;           /* of the process that the table belongs to */
    uint32_t count;
    size_t idle_bytes; /* sum of the capacities */
    size_t limit;      /* most bytes that may be idle; 0 keeps nothing */
    int64_t patience;  /* time that a buffer may be idle, in nanoseconds */
    fi_idle_buffer idle[FI_BUFFERS_MOST]; /* the one given back last at the end */
} fi_buffers;

/* Makes an empty pool. */
void fi_buffers_init(fi_buffers *pool, size_t limit, int64_t patience);

/* A buffer of at least `bytes` bytes (1 or more) of undefined content, aligned to a page; from
 * FI_HUGE_PAGE bytes on aligned to that, and of huge pages where the kernel has them.
 *
 * An idle buffer is taken if it is at most a quarter larger than asked for. now_ns: any monotonic clock.
 * Returns FI_OK, or a positive errno if the system gives no memory. */
int fi_buffers_take(fi_buffers *pool, size_t bytes, int64_t now_ns, void **data, size_t *capacity);

/* Takes a buffer back, and unmaps what is then beyond the pool's limits: the buffers that have been
 * idle longest, and those that lost patience. Leaves errno alone. */
void fi_buffers_give(fi_buffers *pool, void *data, size_t capacity, int64_t now_ns);

/* Unmaps all idle buffers. */
void fi_buffers_trim(fi_buffers *pool);

/* Number of idle buffers, and their bytes. */
void fi_buffers_count(fi_buffers *pool, uint32_t *count, size_t *bytes);

#endif

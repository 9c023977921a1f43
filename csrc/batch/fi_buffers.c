#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#include "batch/fi_buffers.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fi_base.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, bytes) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(start, bytes) ((void)0)
#endif

enum { AFTER_USE = 0xDB }; /* byte that a debug build writes over a buffer that is given back */

/* Capacities are powers of two and seven steps between each two, so that batches of slightly
 * different sizes share buffers, and no more than an eighth of a new one is unused. */
enum { STEPS = 8 };

static size_t capacity_for(size_t bytes)
{
    size_t step = FI_PAGE;

    while (step * STEPS * 2 < bytes && step <= SIZE_MAX / (4 * STEPS))
        step *= 2;
    return bytes > SIZE_MAX - step ? 0 : (size_t)fi_align_up(bytes, step);
}

/* Enters the table. The lock names the process whose thread holds it: in a child, one that was held
 * at the fork counts as open. The acquire pairs with the release in leave(). */
static void enter(fi_buffers *pool)
{
    const int self = (int)getpid();
    int holder = 0;

    while (!atomic_compare_exchange_weak_explicit(&pool->holder, &holder, self,
                                                  memory_order_acquire, memory_order_relaxed)) {
        if (holder == self) {
            holder = 0;
            sched_yield();
        }
    }
    if (pool->pid != self) { /* a child begins with an empty table of its own */
        pool->pid = self;
        pool->count = 0;
        pool->idle_bytes = 0;
    }
}

static void leave(fi_buffers *pool)
{
    fi_store_release(&pool->holder, 0);
}

void fi_buffers_init(fi_buffers *pool, size_t limit, int64_t patience)
{
    pool->count = 0;
    pool->idle_bytes = 0;
    pool->limit = limit;
    pool->patience = patience;
    pool->pid = (int)getpid();
    leave(pool);
}

/* Takes entry `i` out of the table, whose lock is held. */
static fi_idle_buffer remove_entry(fi_buffers *pool, uint32_t i)
{
    const fi_idle_buffer entry = pool->idle[i];

    pool->count--;
    memmove(&pool->idle[i], &pool->idle[i + 1], (pool->count - i) * sizeof entry);
    pool->idle_bytes -= entry.capacity;
    return entry;
}

static void unmap(const fi_idle_buffer *entries, uint32_t count)
{
    const int saved = errno;

    for (uint32_t i = 0; i < count; i++) {
        ASAN_UNPOISON_MEMORY_REGION(entries[i].data, entries[i].capacity);
        munmap(entries[i].data, entries[i].capacity);
    }
    errno = saved;
}

/* Moves what the pool should not keep from the table to `out`; the oldest come first there. */
static uint32_t remove_surplus(fi_buffers *pool, int64_t now, fi_idle_buffer *out)
{
    uint32_t removed = 0;

    while (pool->count > 0
           && (pool->idle_bytes > pool->limit || now - pool->idle[0].since > pool->patience)) {
        out[removed++] = remove_entry(pool, 0);
    }
    return removed;
}

/* Fresh memory, of a capacity and alignment as the header promises. */
static int map_fresh(size_t bytes, void **data, size_t *capacity)
{
    const size_t rounded = capacity_for(bytes);
    const bool huge = rounded >= FI_HUGE_PAGE;
    const size_t alignment = huge ? FI_HUGE_PAGE : FI_PAGE;

    if (rounded == 0 || rounded > SIZE_MAX - alignment)
        return ENOMEM;
    const size_t total = rounded + alignment - FI_PAGE;
    char *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return errno;
    const size_t head = (size_t)(fi_align_up((uintptr_t)base, alignment) - (uintptr_t)base);
    if (head != 0)
        munmap(base, head);
    if (total - head > rounded)
        munmap(base + head + rounded, total - head - rounded);
    *data = base + head;
    *capacity = rounded;
    if (huge)
        madvise(*data, rounded, MADV_HUGEPAGE); /* a refusal costs time only */
    return FI_OK;
}

int fi_buffers_take(fi_buffers *pool, size_t bytes, int64_t now_ns, void **data, size_t *capacity)
{
    fi_idle_buffer surplus[FI_BUFFERS_MOST];
    fi_idle_buffer found = {.data = NULL};
    uint32_t removed;

    FI_ASSERT(bytes > 0);
    enter(pool);
    for (uint32_t i = pool->count; i-- > 0;) {
        const size_t size = pool->idle[i].capacity;
        if (size >= bytes && size - bytes <= bytes / 4 + FI_PAGE) {
            found = remove_entry(pool, i);
            break;
        }
    }
    removed = remove_surplus(pool, now_ns, surplus);
    leave(pool);
    unmap(surplus, removed);
    if (found.data == NULL)
        return map_fresh(bytes, data, capacity);
    ASAN_UNPOISON_MEMORY_REGION(found.data, found.capacity);
    *data = found.data;
    *capacity = found.capacity;
    return FI_OK;
}

void fi_buffers_give(fi_buffers *pool, void *data, size_t capacity, int64_t now_ns)
{
    fi_idle_buffer surplus[FI_BUFFERS_MOST + 1];
    uint32_t removed = 0;

#ifdef FI_DEBUG
    memset(data, AFTER_USE, capacity);
#endif
    ASAN_POISON_MEMORY_REGION(data, capacity);
    enter(pool);
    if (pool->count == FI_BUFFERS_MOST)
        surplus[removed++] = remove_entry(pool, 0);
    pool->idle[pool->count++] = (fi_idle_buffer){data, capacity, now_ns};
    pool->idle_bytes += capacity;
    removed += remove_surplus(pool, now_ns, surplus + removed);
    leave(pool);
    unmap(surplus, removed);
}

void fi_buffers_trim(fi_buffers *pool)
{
    fi_idle_buffer all[FI_BUFFERS_MOST];
    uint32_t count;

    enter(pool);
    count = pool->count;
    memcpy(all, pool->idle, count * sizeof *all);
    pool->count = 0;
    pool->idle_bytes = 0;
    leave(pool);
    unmap(all, count);
}

void fi_buffers_count(fi_buffers *pool, uint32_t *count, size_t *bytes)
{
    enter(pool);
    *count = pool->count;
    *bytes = pool->idle_bytes;
    leave(pool);
}

#define _GNU_SOURCE
#include "os/fi_image.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "os/fi_platform.h"
#include "os/fi_thread.h"

/* From here on a thread costs less than the wait. */
#define MANY_BYTES ((uint64_t)64 << 20)

/* A process, and in the lower half how many images its threads are freeing. A forked child has no
 * such thread: the number counts as zero there. */
static _Atomic uint64_t settling;

static uint32_t count_of(uint64_t state)
{
    return state >> 32 == (uint32_t)getpid() ? (uint32_t)state : 0;
}

static void change_settling(uint32_t change)
{
    uint64_t state = fi_load_relaxed(&settling);
    uint64_t pid = (uint32_t)getpid();
    /* Release: who reads zero in fi_image_settle finds the memory free. */
    while (!atomic_compare_exchange_weak_explicit(&settling, &state,
                                                  pid << 32 | (uint32_t)(count_of(state) + change),
                                                  memory_order_release, memory_order_relaxed))
        ;
}

int fi_image_open(uint64_t bytes, int *fd, uint64_t *need, uint64_t *have)
{
    *fd = -1;
    *need = bytes;
    *have = fi_memory_available();
    if (bytes > *have) {
        fi_image_settle();
        *have = fi_memory_available();
    }
    return bytes > *have ? FI_E_MEMORY : fi_shm_open(bytes, fd);
}

struct mapping {
    void *base;
    uint64_t bytes;
};

static void *unmap(void *argument)
{
    struct mapping mapping = *(struct mapping *)argument;
    free(argument);
    (void)munmap(mapping.base, mapping.bytes);
    change_settling(UINT32_MAX); /* one less */
    return NULL;
}

void fi_image_close(int fd, uint64_t bytes)
{
    struct mapping last = {MAP_FAILED, bytes};
    if (bytes >= MANY_BYTES) { /* a mapping in the descriptor's place, which no child gets */
        last.base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
        if (last.base != MAP_FAILED && madvise(last.base, bytes, MADV_DONTFORK) != 0) {
            (void)munmap(last.base, bytes);
            last.base = MAP_FAILED;
        }
    }
    close(fd);
    if (last.base == MAP_FAILED)
        return;
    change_settling(1);
    if (fi_thread_start(unmap, &last, sizeof last) != 0) {
        (void)munmap(last.base, bytes);
        change_settling(UINT32_MAX);
    }
}

void fi_image_settle(void)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    while (count_of(fi_load_acquire(&settling)) > 0)
        nanosleep(&moment, NULL);
}

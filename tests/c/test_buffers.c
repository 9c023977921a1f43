/* The pool of buffers: what is handed out again, what is not kept, threads, and forks. Aborts at the
 * first broken promise. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "base/fi_base.h"
#include "batch/fi_buffers.h"

enum { MIB = 1 << 20 };
static const int64_t PATIENCE = 1000;

typedef struct {
    unsigned char *data;
    size_t capacity;
} buffer;

static buffer take(fi_buffers *pool, size_t bytes, int64_t now)
{
    buffer taken;
    void *data;
    CHECK_EQ(fi_buffers_take(pool, bytes, now, &data, &taken.capacity), FI_OK);
    taken.data = data;
    CHECK(taken.capacity >= bytes);
    CHECK_EQ((uintptr_t)data % (bytes >= FI_HUGE_PAGE ? FI_HUGE_PAGE : FI_PAGE), 0);
    taken.data[0] = taken.data[bytes - 1] = 1;
    return taken;
}

static void give(fi_buffers *pool, buffer taken, int64_t now)
{
    fi_buffers_give(pool, taken.data, taken.capacity, now);
}

static uint32_t idle_count(fi_buffers *pool)
{
    uint32_t count;
    size_t bytes;
    fi_buffers_count(pool, &count, &bytes);
    CHECK(bytes <= pool->limit);
    CHECK_EQ(count == 0, bytes == 0);
    return count;
}

static void test_the_last_comes_first(void)
{
    fi_buffers pool;
    fi_buffers_init(&pool, 64 * MIB, PATIENCE);
    const buffer a = take(&pool, 3 * MIB, 0), b = take(&pool, 3 * MIB, 0);
    CHECK(a.data != b.data);
    give(&pool, a, 1);
    give(&pool, b, 2);
    CHECK(take(&pool, 3 * MIB, 3).data == b.data);
    CHECK(take(&pool, 3 * MIB, 3).data == a.data);
    CHECK_EQ(idle_count(&pool), 0);
    give(&pool, a, 4);
    give(&pool, b, 4);
    fi_buffers_trim(&pool);
    CHECK_EQ(idle_count(&pool), 0);
}

static void test_only_buffers_of_about_that_size_are_taken(void)
{
    fi_buffers pool;
    fi_buffers_init(&pool, 64 * MIB, PATIENCE);
    const buffer large = take(&pool, 8 * MIB, 0);
    give(&pool, large, 0);
    const buffer larger = take(&pool, 9 * MIB, 0);
    CHECK(larger.data != large.data);
    const buffer small = take(&pool, 2 * MIB, 0);
    CHECK(small.data != large.data);
    CHECK(take(&pool, 7 * MIB, 0).data == large.data);
    give(&pool, large, 0);
    give(&pool, larger, 0);
    give(&pool, small, 0);
    fi_buffers_trim(&pool);
}

static void test_no_more_than_an_eighth_is_unused(void)
{
    fi_buffers pool;
    fi_buffers_init(&pool, 0, PATIENCE);
    for (size_t bytes = 1; bytes < 300u * MIB; bytes = bytes * 5 / 4 + 1) {
        const buffer taken = take(&pool, bytes, 0);
        CHECK(taken.capacity - bytes <= bytes / 8 + FI_PAGE);
        give(&pool, taken, 0);
        CHECK_EQ(idle_count(&pool), 0);
    }
}

static void test_limits_of_bytes_count_and_time(void)
{
    fi_buffers pool;
    buffer held[FI_BUFFERS_MOST + 4];

    fi_buffers_init(&pool, 8 * MIB, PATIENCE);
    for (int i = 0; i < 10; i++) {
        held[i] = take(&pool, MIB, 0);
    }
    for (int i = 0; i < 10; i++) {
        give(&pool, held[i], 0);
    }
    CHECK_EQ(idle_count(&pool), 8);
    CHECK(take(&pool, MIB, 0).data == held[9].data); /* the oldest have gone */
    give(&pool, held[9], 0);
    give(&pool, take(&pool, 16 * MIB, 0), 0); /* alone beyond the limit: all go */
    CHECK_EQ(idle_count(&pool), 0);

    for (int i = 0; i < FI_BUFFERS_MOST + 4; i++) {
        held[i] = take(&pool, FI_PAGE, 0);
    }
    for (int i = 0; i < FI_BUFFERS_MOST + 4; i++) {
        give(&pool, held[i], i);
    }
    CHECK_EQ(idle_count(&pool), FI_BUFFERS_MOST);
    const buffer last = take(&pool, FI_PAGE, PATIENCE + 10);
    CHECK(last.data == held[FI_BUFFERS_MOST + 3].data);
    CHECK_EQ(idle_count(&pool), FI_BUFFERS_MOST + 4 - 10 - 1); /* 0 to 9 have lost patience */
    give(&pool, last, 3 * PATIENCE);
    CHECK_EQ(idle_count(&pool), 1);
    fi_buffers_trim(&pool);
}

static void test_no_memory(void)
{
    fi_buffers pool;
    void *data;
    size_t capacity;
    fi_buffers_init(&pool, MIB, PATIENCE);
    CHECK_EQ(fi_buffers_take(&pool, SIZE_MAX, 0, &data, &capacity), ENOMEM);
    CHECK_EQ(fi_buffers_take(&pool, SIZE_MAX / 2, 0, &data, &capacity), ENOMEM);
    CHECK_EQ(idle_count(&pool), 0);
}

static fi_buffers shared;

/* Nobody else may write to a buffer that a thread holds. */
static void *hold_and_look(void *argument)
{
    const unsigned char mark = (unsigned char)(uintptr_t)argument;
    for (int round = 0; round < 2000; round++) {
        const size_t bytes = (size_t)(1 + (round * mark) % 5) * FI_PAGE;
        const buffer taken = take(&shared, bytes, round);
        memset(taken.data, mark, bytes);
        sched_yield();
        for (size_t i = 0; i < bytes; i += 512) {
            CHECK_EQ(taken.data[i], mark);
        }
        give(&shared, taken, round);
        if (round % 500 == 0) {
            fi_buffers_trim(&shared);
        }
    }
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[4];
    fi_buffers_init(&shared, 8 * FI_PAGE, PATIENCE);
    for (uintptr_t i = 0; i < 4; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, hold_and_look, (void *)(i + 1)), 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    fi_buffers_trim(&shared);
}

/* The child of a fork in the middle of a change: the lock is held for ever, by a thread that the
 * child does not have, and the table may be anything. */
static void test_fork(void)
{
    fi_buffers pool;
    fi_buffers_init(&pool, 64 * MIB, PATIENCE);
    const buffer idle = take(&pool, MIB, 0), held = take(&pool, MIB, 0);
    give(&pool, idle, 0);
    held.data[5] = 5;
    pool.holder = getpid();
    const pid_t child = fork();
    if (child == 0) {
        CHECK_EQ(idle_count(&pool), 0);
        CHECK_EQ(held.data[5], 5);
        give(&pool, held, 0);
        CHECK_EQ(idle_count(&pool), 1);
        const buffer again = take(&pool, MIB, 0);
        CHECK(again.data == held.data);
        again.data[5] = 6;
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    pool.holder = 0;
    CHECK_EQ(held.data[5], 5);
    CHECK_EQ(idle_count(&pool), 1);
    give(&pool, held, 0);
    fi_buffers_trim(&pool);
}

static atomic_bool is_given;

static void *give_to_shared(void *taken)
{
    give(&shared, *(buffer *)taken, 0);
    atomic_store(&is_given, true);
    return NULL;
}

/* Of two threads of a child that come first, one is in the table, and about to empty it: the other
 * one neither empties it too nor takes that lock for one of the parent's. */
static void test_two_threads_in_a_child(void)
{
    pthread_t second;
    fi_buffers_init(&shared, MIB, PATIENCE);
    buffer taken = take(&shared, FI_PAGE, 0);
    shared.pid = 1;
    shared.holder = getpid();
    CHECK_EQ(pthread_create(&second, NULL, give_to_shared, &taken), 0);
    for (int look = 0; look < 50; look++) {
        usleep(1000);
        CHECK(!atomic_load(&is_given));
    }
    shared.holder = 0;
    CHECK_EQ(pthread_join(second, NULL), 0);
    CHECK_EQ(idle_count(&shared), 1);
    fi_buffers_trim(&shared);
}

int main(void)
{
    test_the_last_comes_first();
    test_only_buffers_of_about_that_size_are_taken();
    test_no_more_than_an_eighth_is_unused();
    test_limits_of_bytes_count_and_time();
    test_no_memory();
    test_threads();
    test_fork();
    test_two_threads_in_a_child();
    return 0;
}

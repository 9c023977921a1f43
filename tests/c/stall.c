/* Does the ring stall? A program for tests/c/stall.sh, which builds it with one fence left out.
 *
 * Three ways to make the two sides of a pair meet, each for a third of the time; rows take none:
 * two workers who end one batch of two rows after the other at the same moment (F1); a worker that
 * falls asleep just when the parent schedules (F3, F4); a parent that falls asleep again and again
 * while batches become READY (F2, F5). The parent sleeps without a timer of its own: what has not
 * moved for STALL_S seconds is stalled for good.
 *
 * Needs two idle processors, and luck: a run without a stall proves nothing.
 * Argument: seconds to try. Exit code 0: never stalled; 3: stalled.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "os/fi_platform.h"
#include "ring/fi_ring_parent.h"
#include "ring/fi_ring_worker.h"

enum { SLOTS = 64, MOST_WORKERS = 2, ROWS = 2, STALL_S = 2, STALLED = 3 };

typedef struct trial {
    fi_ring ring;
    fi_parent parent;
    bool meet;      /* workers wait for each other before a row is done */
    uint32_t delay; /* try_sleeping_worker: loops between READY and the next schedule */
    uint64_t random, batches;
    int event[2];
    pthread_t threads[MOST_WORKERS];
    _Alignas(FI_CACHE_LINE) _Atomic uint32_t owned; /* rows, by anybody, ever */
} trial;

struct job {
    trial *trial;
    uint32_t number;
};

static uint32_t draw(uint64_t *random, uint32_t bound)
{
    *random = *random * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(*random >> 33) % bound;
}

static void pause_for(uint32_t loops)
{
    for (volatile uint32_t left = loops; left > 0; left--) {
    }
}

/* Waits a moment until the other worker owns the other row, so that both are done at once. */
static void meet(trial *t, uint64_t *random)
{
    if (!t->meet)
        return;
    atomic_fetch_add_explicit(&t->owned, 1, memory_order_relaxed);
    for (uint32_t looks = 1000; looks > 0; looks--)
        if (atomic_load_explicit(&t->owned, memory_order_relaxed) % 2 == 0)
            break;
    pause_for(draw(random, 16));
}

static void *work(void *argument)
{
    struct job job = *(struct job *)argument;
    uint64_t random = job.number;
    fi_worker worker;
    fi_claim claim;
    fi_worker_init(&worker, &job.trial->ring, job.number, -1);
    for (;;) {
        switch (fi_worker_next(&worker, &claim)) {
        case FI_CLAIM_NONE: /* never: no `most_sleep` is set */
        case FI_CLAIM_STOP:
            return NULL;
        case FI_CLAIM_ROWS:
            if (fi_row_own(&worker, &claim, claim.first)) {
                meet(job.trial, &random);
                fi_row_done(&worker, &claim, claim.first, FI_ROW_OK);
            }
            break;
        case FI_CLAIM_FINISH:
            fi_worker_ready(&worker, &claim, 0);
            break;
        }
    }
}

/* Takes the head after `spins` looks and as many sleeps as it needs. Ends the program if nobody
 * rings for STALL_S, be the batch READY by then or not. */
static void take(trial *t, uint32_t spins)
{
    fi_parent *parent = &t->parent;
    uint32_t slot, flags;
    while (fi_parent_ready(parent, &slot, &flags) != FI_OK) {
        if (spins > 0) {
            spins--;
            continue;
        }
        fi_parent_announce_sleep(parent, parent->head);
        uint8_t rung = 1;
        if (fi_parent_ready(parent, &slot, &flags) != FI_OK)
            CHECK_EQ(fi_wait(t->event, 1, STALL_S * INT64_C(1000000000), &rung), FI_OK);
        if (!rung) {
            printf("stalled after %" PRIu64 " batches\n", t->batches);
            fflush(stdout);
            _exit(STALLED); /* the workers sleep for ever */
        }
        fi_parent_cancel_sleep(parent);
        fi_event_drain(t->event[0]);
    }
    fi_parent_take(parent, slot, true);
    t->batches++;
}

static void schedule(trial *t, uint32_t n)
{
    int64_t indices[ROWS] = {0};
    uint64_t q;
    uint32_t slot;
    CHECK_EQ(fi_parent_next_slot(&t->parent, 0, &slot), FI_OK);
    CHECK_EQ(fi_parent_schedule(&t->parent, slot, indices, n, 0, 0, false, &q), FI_OK);
}

static void try_burst(trial *t)
{
    for (uint32_t batch = 0; batch < SLOTS; batch++)
        schedule(t, t->meet ? ROWS : 1 + draw(&t->random, ROWS));
    fi_parent_publish(&t->parent);
    for (uint32_t batch = 0; batch < SLOTS; batch++)
        take(t, 0);
}

/* Seeks the moment at which the worker gives up looking for work: later by a little as long as the
 * worker is quick, sooner once it had to be woken. */
static void try_sleeping_worker(trial *t)
{
    pause_for(t->delay + draw(&t->random, 16));
    int64_t start = fi_now_ns();
    schedule(t, 1);
    fi_parent_publish(&t->parent);
    take(t, 1000000);
    bool quick = fi_now_ns() - start < 3000;
    t->delay = quick ? t->delay + 1 : t->delay > 12 ? t->delay - 12 : 0;
}

static void try_for(int64_t nanoseconds, uint32_t workers, bool meet, void (*attempt)(trial *))
{
    fi_geometry geometry = {SLOTS, workers, ROWS, 1, FI_PAGE};
    trial t = {.meet = meet, .random = 1};
    struct job jobs[MOST_WORKERS];
    uint64_t control, total;
    int fd;
    void *base;
    CHECK_EQ(fi_ring_size(&geometry, &control, &total), FI_OK);
    CHECK_EQ(fi_shm_open(total, &fd), FI_OK);
    CHECK_EQ(fi_shm_map(fd, 0, control, false, &base), FI_OK);
    CHECK_EQ(fi_event_open(t.event), FI_OK);
    CHECK_EQ(fi_ring_attach(&t.ring, &geometry, base, fd, t.event[1]), FI_OK);
    CHECK_EQ(fi_parent_init(&t.parent, &t.ring, 0, NULL), FI_OK);
    fi_parent_set_spin(&t.parent, attempt == try_sleeping_worker ? 16 : 0);
    for (uint32_t w = 0; w < workers; w++) {
        jobs[w] = (struct job){&t, w};
        CHECK_EQ(pthread_create(t.threads + w, NULL, work, jobs + w), 0);
    }
    for (int64_t end = fi_now_ns() + nanoseconds; fi_now_ns() < end;)
        attempt(&t);
    fi_parent_stop(&t.parent);
    for (uint32_t w = 0; w < workers; w++)
        CHECK_EQ(pthread_join(t.threads[w], NULL), 0);
    fi_parent_clear(&t.parent);
    printf("no stall in %" PRIu64 " batches\n", t.batches);
}

int main(int argc, char **argv)
{
    int64_t third = (argc > 1 ? atoi(argv[1]) : 15) * INT64_C(1000000000) / 3;
    try_for(third, 2, true, try_burst);
    try_for(third, 1, false, try_sleeping_worker);
    try_for(third, 2, false, try_burst);
    return 0;
}

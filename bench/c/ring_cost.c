/* Cost of the ring's protocol by itself: forked workers, rows of 8 bytes, no dataset work.
 *
 *     cc -std=c11 -O3 -pthread -Icsrc bench/c/ring_cost.c $(find csrc -name "*.c") \
 *        -o build/ring_cost && build/ring_cost [WORKERS [SECONDS]]
 *
 * The parent keeps the ring full, checks every row word, compares every row with what it must hold
 * and gives the slot back. Prints for several batch sizes the time per batch and per row, the best and
 * the median of the rounds, and the ranges claimed per batch.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/fi_platform.h"
#include "ring/fi_ring_parent.h"
#include "ring/fi_ring_worker.h"
#include "ring/fi_window.h"

enum { SLOTS = 6, MOST_ROWS = 256, ROUNDS = 15 };

static void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "ring_cost: %s\n", what);
        exit(EXIT_FAILURE);
    }
}

static void work(fi_ring *ring, uint32_t number)
{
    fi_worker worker;
    fi_claim claim;
    fi_worker_init(&worker, ring, number, -1);
    for (;;) {
        switch (fi_worker_next(&worker, &claim)) {
        case FI_CLAIM_NONE: /* never: no `most_sleep` is set */
        case FI_CLAIM_STOP:
            return;
        case FI_CLAIM_ROWS: {
            int64_t *column = (int64_t *)fi_slot_payload(ring, claim.slot);
            int64_t since = fi_now_ns();
            for (uint32_t row = claim.first; row < claim.first + claim.count; row++) {
                if (!fi_row_own(&worker, &claim, row))
                    continue;
                column[row] = ~*fi_row_index(ring, claim.slot, row);
                fi_row_done(&worker, &claim, row, FI_ROW_OK);
            }
            since = fi_now_ns() - since;
            fi_worker_pace(&worker, claim.count, since);
            fi_worker_stat_busy(ring->worker_stats + number, since);
            break;
        }
        case FI_CLAIM_FINISH:
            fi_worker_ready(&worker, &claim, 0);
            break;
        }
    }
}

static void schedule(fi_parent *parent, uint32_t n)
{
    static int64_t indices[MOST_ROWS];
    uint64_t q;
    uint32_t slot;
    require(fi_parent_next_slot(parent, 0, &slot) == FI_OK, "a free slot");
    for (uint32_t row = 0; row < n; row++)
        indices[row] = (int64_t)parent->tail * MOST_ROWS + row;
    require(fi_parent_schedule(parent, slot, indices, n, 0, n * 8, false, &q) == FI_OK,
            "scheduling");
}

static void take(fi_parent *parent, const int event[2], uint32_t n)
{
    uint32_t slot, flags, odd, row;
    uint64_t word;
    uint8_t rung;
    while (fi_parent_ready(parent, &slot, &flags) != FI_OK) {
        fi_parent_announce_sleep(parent, parent->head);
        if (fi_parent_ready(parent, &slot, &flags) != FI_OK)
            require(fi_wait(event, 1, 60 * INT64_C(1000000000), &rung) == FI_OK && rung, "stalled");
        fi_parent_cancel_sleep(parent);
        fi_event_drain(event[0]);
    }
    require(fi_parent_check(parent, slot, &odd, &row, &word) == FI_OK && odd == 0, "row words");
    const int64_t *column = (const int64_t *)fi_slot_payload(parent->ring, slot);
    bool right = true;
    for (uint32_t r = 0; r < n; r++)
        right &= column[r] == ~((int64_t)parent->head * MOST_ROWS + r);
    require(right, "contents");
    fi_parent_take(parent, slot, false);
    fi_returned_push(&parent->ring->returned, slot, false);
}

static uint64_t claims(const fi_ring *ring)
{
    uint64_t sum = 0;
    for (uint32_t w = 0; w < ring->geometry.workers; w++) {
        fi_report report;
        fi_worker_stat_read(ring->worker_stats + w, &report);
        sum += report.claims;
    }
    return sum;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(fi_parent *parent, const int event[2], uint32_t n, double seconds)
{
    double rounds[ROUNDS];
    uint64_t batches_in_all = 0, claims_before = claims(parent->ring);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t batches = 0;
        int64_t start = fi_now_ns(), end = start + (int64_t)(seconds * 1e9 / ROUNDS), now;
        do {
            fi_parent_take_back(parent, fi_returned_take(&parent->ring->returned));
            while (parent->free_count > 0)
                schedule(parent, n);
            fi_parent_publish(parent);
            take(parent, event, n);
            batches++;
        } while ((now = fi_now_ns()) < end);
        rounds[round] = (double)(now - start) / (double)batches / 1e3;
        batches_in_all += batches;
    }
    while (parent->head < parent->tail)
        take(parent, event, n);
    fi_parent_take_back(parent, fi_returned_take(&parent->ring->returned));
    qsort(rounds, ROUNDS, sizeof *rounds, by_size);
    printf("%5u rows: %7.2f us a batch (median %7.2f), %7.1f ns a row, %5.1f claims a batch\n", n,
           rounds[0], rounds[ROUNDS / 2], rounds[0] * 1e3 / n,
           (double)(claims(parent->ring) - claims_before) / (double)batches_in_all);
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {256, 32, 1};
    uint32_t workers = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    double seconds = argc > 2 ? atof(argv[2]) : 3;
    fi_geometry geometry = {SLOTS, workers, MOST_ROWS, 1, FI_PAGE};
    uint64_t control, total, need, have;
    fi_ring ring;
    fi_parent parent;
    int fd, event[2];
    void *base;
    require(fi_ring_size(&geometry, &control, &total) == FI_OK, "1 to 65535 workers");
    require(fi_shm_open(total, &fd) == FI_OK && fi_shm_map(fd, 0, control, false, &base) == FI_OK,
            "memory");
    require(fi_shm_commit(fd, 0, total, &need, &have) == FI_OK, "memory");
    require(fi_event_open(event) == FI_OK, "event");
    require(fi_ring_attach(&ring, &geometry, base, fd, event[1]) == FI_OK, "attach");
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        require(fi_slot_reach(&ring, slot, FI_PAGE) == FI_OK, "address space");
    require(fi_parent_init(&parent, &ring, 0, NULL) == FI_OK, "parent");
    for (uint32_t w = 0; w < workers; w++) {
        pid_t pid = fork();
        require(pid >= 0, "fork");
        if (pid == 0) {
            work(&ring, w);
            _exit(EXIT_SUCCESS);
        }
    }
    printf("%u workers, %d slots\n", workers, SLOTS);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        measure(&parent, event, sizes[i], seconds);
    fi_parent_stop(&parent);
    while (wait(NULL) > 0) {
    }
    return 0;
}

/* The deal of the fast shuffle, over several threads. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise */

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "fi_shuffle_loops.h"

enum { MOST_THREADS = 64, PREFETCHED = 4 * FI_CACHE_LINE };

typedef struct {
    const fi_shuffle_loops *loops;
    const fi_seed *key;
    int64_t *order;
    uint32_t n, piles, blocks;
    unsigned pile_bits, block_bits;
    uint32_t *counts; /* (blocks + 1, piles): first counts, then where the block begins in the pile */
    uint32_t *firsts; /* (piles + 1): first value of each pile */
    void *cells;      /* n cells: the piles, one after the other */
    bool cells32;
} deal;

/* ---- fan-out ---------------------------------------------------------------------------- */

typedef void part_function(deal *job, uint32_t part);

typedef struct {
    deal *job;
    part_function *function;
    uint32_t parts;
    _Atomic uint32_t next;
} fan;

static void *fan_work(void *argument)
{
    fan *const work = argument;
    uint32_t part;

    /* Relaxed: the counter hands out numbers only; starting and joining a thread orders the rest. */
    while ((part = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed)) < work->parts) {
        work->function(work->job, part);
    }
    return NULL;
}

/* Does all parts, in any order, on up to `threads` threads; fewer where the system starts no more. */
static void fan_out(deal *job, part_function *function, uint32_t parts, unsigned threads)
{
    fan work = {job, function, parts, 0};
    pthread_t started[MOST_THREADS];
    unsigned count = 0;

    threads = (unsigned)fi_min_u64(fi_min_u64(threads, parts), MOST_THREADS);
    while (count + 1 < threads && pthread_create(&started[count], NULL, fan_work, &work) == 0) {
        count++;
    }
    fan_work(&work);
    while (count > 0) {
        pthread_join(started[--count], NULL);
    }
}

/* ---- scratch ---------------------------------------------------------------------------- */

/* Fresh zeroed memory in huge pages where the system gives them; NULL without any. */
static void *scratch_open(size_t bytes)
{
    void *const base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED) {
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(base, bytes, MADV_HUGEPAGE); /* only advice */
#endif
    return base;
}

/* ---- the deal --------------------------------------------------------------------------- */

static uint32_t block_size(const deal *job, uint32_t block)
{
    const uint64_t start = (uint64_t)block << job->block_bits;

    return (uint32_t)fi_min_u64(job->n - start, (uint64_t)1 << job->block_bits);
}

static void split_block(deal *job, uint32_t block)
{
    fi_unit unit;

    fi_unit_init(&unit, job->key, FI_UNIT_SPLIT, block);
    job->loops->split(&unit, job->pile_bits, block_size(job, block),
                      job->counts + (size_t)block * job->piles);
}

/* Turns counts into where each block begins in each pile; returns the size of the largest pile. */
static uint32_t place_piles(deal *job)
{
    uint32_t begins[1 << FI_PILE_BITS_MAX] = {0}, largest = 0, first = 0;

    for (uint32_t block = 0; block < job->blocks; block++) {
        const uint32_t *const counts = job->counts + (size_t)block * job->piles;
        for (uint32_t b = 0; b < job->piles; b++) {
            begins[b] += counts[b];
        }
    }
    for (uint32_t b = 0; b < job->piles; b++) {
        const uint32_t size = begins[b];
        largest = size > largest ? size : largest;
        begins[b] = job->firsts[b] = first;
        first += size;
    }
    job->firsts[job->piles] = first;
    for (uint32_t block = 0; block < job->blocks; block++) {
        uint32_t *const counts = job->counts + (size_t)block * job->piles;
        for (uint32_t b = 0; b < job->piles; b++) {
            const uint32_t count = counts[b];
            counts[b] = begins[b];
            begins[b] += count;
        }
    }
    memcpy(job->counts + (size_t)job->blocks * job->piles, begins, job->piles * sizeof *begins);
    return largest;
}

static void shuffle_pile(deal *job, uint32_t pile)
{
    const uint32_t first = job->firsts[pile], size = job->firsts[pile + 1] - first;
    fi_unit unit;

    fi_unit_init(&unit, job->key, FI_UNIT_PILE, pile);
    if (job->cells32) {
        job->loops->shuffle32(&unit, (uint32_t *)job->cells + first, size);
    } else {
        job->loops->shuffle16(&unit, (uint16_t *)job->cells + first, size);
    }
}

static void deal_block(deal *job, uint32_t block)
{
    const uint32_t *const begins = job->counts + (size_t)block * job->piles;
    /* A block ends in each pile where the next one begins; after the last comes the pile's end. */
    const fi_share share = {job->piles, job->firsts, begins, begins + job->piles};
    int64_t *const order = job->order + ((size_t)block << job->block_bits);
    fi_unit unit;

    fi_unit_init(&unit, job->key, FI_UNIT_BLOCK, block);
    if (job->cells32) {
        job->loops->deal32(&unit, &share, job->cells, order);
    } else {
        job->loops->deal16(&unit, &share, job->cells, order);
    }
}

int fi_shuffle_deal(const fi_shuffle_plan *plan, const fi_shuffle_loops *loops, int64_t *order,
                    uint32_t n, const fi_seed *key, unsigned threads)
{
    const uint32_t piles = (uint32_t)1 << plan->pile_bits;
    const uint64_t block = (uint64_t)1 << plan->block_bits;
    const uint32_t blocks = (uint32_t)((n + block - 1) >> plan->block_bits);
    deal job = {.loops = loops, .key = key, .order = order, .n = n, .piles = piles,
                .blocks = blocks, .pile_bits = plan->pile_bits, .block_bits = plan->block_bits};
    const size_t counts_bytes = (((size_t)blocks + 2) * piles + 1) * sizeof *job.counts;
    size_t cells_bytes;

    job.counts = scratch_open(counts_bytes);
    if (job.counts == NULL) {
        return FI_E_MEMORY;
    }
    job.firsts = job.counts + ((size_t)blocks + 1) * piles;
    fan_out(&job, split_block, blocks, threads);
    /* Piles have nearly the same size. One that 16 bits do not suffice for is all but impossible
     * where the plan expects none, and then all of them get 32. */
    job.cells32 = place_piles(&job) > (uint32_t)1 << 16 || plan->cells32;
    cells_bytes = (size_t)n * (job.cells32 ? sizeof(uint32_t) : sizeof(uint16_t)) + PREFETCHED;
    job.cells = scratch_open(cells_bytes);
    if (job.cells != NULL) {
        fan_out(&job, shuffle_pile, piles, threads);
        fan_out(&job, deal_block, blocks, threads);
        (void)munmap(job.cells, cells_bytes);
    }
    (void)munmap(job.counts, counts_bytes);
    return job.cells == NULL ? FI_E_MEMORY : FI_OK;
}

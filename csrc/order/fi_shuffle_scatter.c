/* The scatter of the fast shuffle, over several threads. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, madvise */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "order/fi_loops.h"

enum {
    MOST_THREADS = 64,
    MOST_STAGES = 24,
    SPARE_BLOCKS = 8 /* at least this many keep their cells in scratch: it makes for few stages */
};

/* A scatter needs cells of all buckets until its last block is scattered. Fresh memory for them, 200 MB for
 * 100 million indices, is slow to get, on a virtual machine much slower than the rest of the work.
 * So they lie in the part of the order that is not scattered yet:
 *
 *     |  free  |  cells of stage 0  |  of stage 1  | ... |  table of counts  |
 *
 * The blocks of a stage are all those that end before its cells begin; once they are scattered, the
 * place of these cells is free for the blocks of the next stage. The last stage has its cells, and
 * its part of the table, in scratch. */
typedef struct {
    uint32_t first, last; /* blocks */
    uint32_t *begins;     /* (last - first, buckets): counts, later where a block's cells begin */
    uint32_t *ends;       /* (buckets): where those of the last block end */
    char *cells;          /* of these blocks: bucket after bucket, each block after block */
} stage;

typedef struct {
    const fi_loops *loops;
    const fi_seed *key;
    int64_t *order;
    uint32_t n, buckets, blocks;
    unsigned bucket_bits, block_bits, threads;
    bool cells32;
    size_t cell_bytes;
    uint32_t *counts; /* (blocks + MOST_STAGES, buckets) */
    size_t room;      /* bytes of the order before the table */
    stage stages[MOST_STAGES];
    uint32_t stage_count;
    const stage *now; /* the stage that is scattered */
    uint32_t firsts[(1 << FI_BUCKET_BITS_MAX) + 1]; /* first value of each bucket */
    uint32_t sums[1 << FI_BUCKET_BITS_MAX];         /* of counts, by bucket */
    char *desks; /* (threads, desk_bytes): where each thread shuffles its buckets */
    size_t desk_bytes;
} scatter;

/* ---- fan-out ---------------------------------------------------------------------------- */

typedef void part_function(scatter *job, uint32_t part, unsigned worker);

typedef struct {
    scatter *job;
    part_function *function;
    uint32_t parts;
    _Atomic uint32_t next, workers;
} fan;

static void *fan_work(void *argument)
{
    fan *const work = argument;
    /* Relaxed: the counters hand out numbers only; starting and joining threads orders the rest. */
    const unsigned worker = fi_add_relaxed(&work->workers, 1);
    uint32_t part;

    while ((part = fi_add_relaxed(&work->next, 1)) < work->parts)
        work->function(work->job, part, worker);
    return NULL;
}

/* Does all parts, in any order, on up to job->threads threads; fewer where the system starts no
 * more. */
static void fan_out(scatter *job, part_function *function, uint32_t parts)
{
    fan work = {job, function, parts, 0, 0};
    pthread_t started[MOST_THREADS];
    const unsigned threads = (unsigned)fi_min_u64(job->threads, parts);
    unsigned count = 0;

    while (count + 1 < threads && pthread_create(&started[count], NULL, fan_work, &work) == 0)
        count++;
    fan_work(&work);
    while (count > 0)
        pthread_join(started[--count], NULL);
}

/* ---- scratch ---------------------------------------------------------------------------- */

/* Fresh zeroed memory in huge pages where the system gives them; NULL without any. */
static void *scratch_open(size_t bytes)
{
    void *const base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED)
        return NULL;
    (void)madvise(base, bytes, MADV_HUGEPAGE); /* only advice */
    return base;
}

/* ---- layout ----------------------------------------------------------------------------- */

/* Finds the stages that have their cells in the order, and leaves the other blocks to the last. */
static void plan_stages(scatter *job)
{
    const size_t block_bytes = sizeof *job->order << job->block_bits;
    const size_t block_cells = job->cell_bytes << job->block_bits;
    const uint32_t whole = (uint32_t)(job->room / block_bytes);
    const uint32_t inside = whole > SPARE_BLOCKS ? whole - SPARE_BLOCKS : 0;
    const size_t cells = (job->room - inside * block_cells) / FI_CACHE_LINE * FI_CACHE_LINE;
    uint32_t first = 0, last = inside;

    job->stage_count = 0;
    while (first < inside && last > first && job->stage_count < MOST_STAGES - 1) {
        char *const place = (char *)job->order + cells + first * block_cells;
        last = (uint32_t)fi_min_u64((cells + first * block_cells) / block_bytes, inside);
        job->stages[job->stage_count++] = (stage){.first = first, .last = last, .cells = place};
        first = last;
    }
    job->stages[job->stage_count++] = (stage){.first = first, .last = job->blocks};
    for (uint32_t s = 0; s < job->stage_count; s++) {
        stage *const part = &job->stages[s];
        part->begins = job->counts + (size_t)part->first * job->buckets;
        part->ends = job->counts + ((size_t)job->blocks + s) * job->buckets;
    }
}

/* Sums counts of a number of blocks up: sums[b] grows by what they get of bucket b. */
static void add_counts(const uint32_t *counts, uint32_t blocks, uint32_t buckets, uint32_t *sums)
{
    for (uint32_t block = 0; block < blocks; block++, counts += buckets) {
        for (uint32_t b = 0; b < buckets; b++)
            sums[b] += counts[b];
    }
}

/* Finds the first value of each bucket; returns the size of the largest one. */
static uint32_t place_values(scatter *job)
{
    uint32_t *const sizes = job->sums, largest = 0, first = 0;

    memset(sizes, 0, sizeof job->sums);
    add_counts(job->counts, job->blocks, job->buckets, sizes);
    for (uint32_t b = 0; b < job->buckets; b++) {
        largest = sizes[b] > largest ? sizes[b] : largest;
        job->firsts[b] = first;
        first += sizes[b];
    }
    job->firsts[job->buckets] = first;
    return largest;
}

/* Turns the counts of a stage into where its blocks begin among its cells. */
static void place_cells(scatter *job, const stage *part)
{
    uint32_t *const begins = job->sums, first = 0;
    uint32_t *counts = part->begins;

    memset(begins, 0, sizeof job->sums);
    add_counts(counts, part->last - part->first, job->buckets, begins);
    for (uint32_t b = 0; b < job->buckets; b++) {
        const uint32_t size = begins[b];
        begins[b] = first;
        first += size;
    }
    for (uint32_t block = part->first; block < part->last; block++, counts += job->buckets) {
        for (uint32_t b = 0; b < job->buckets; b++) {
            const uint32_t count = counts[b];
            counts[b] = begins[b];
            begins[b] += count;
        }
    }
    memcpy(part->ends, begins, job->buckets * sizeof *begins);
}

/* Moves the last stage's part of the table to scratch, where its cells are going to be, too. */
static void move_last_stage(scatter *job, char *scratch)
{
    stage *const part = &job->stages[job->stage_count - 1];
    const size_t rows = (size_t)(part->last - part->first) * job->buckets;
    uint32_t *const begins = (uint32_t *)scratch, *const ends = begins + rows;

    memcpy(begins, part->begins, rows * sizeof *begins);
    memcpy(ends, part->ends, job->buckets * sizeof *ends);
    part->begins = begins;
    part->ends = ends;
    part->cells = (char *)(ends + job->buckets);
}

/* ---- the scatter --------------------------------------------------------------------------- */

static uint32_t block_size(const scatter *job, uint32_t block)
{
    const uint64_t start = (uint64_t)block << job->block_bits;

    return (uint32_t)fi_min_u64(job->n - start, (uint64_t)1 << job->block_bits);
}

static void split_block(scatter *job, uint32_t block, unsigned worker)
{
    fi_unit unit;

    (void)worker;
    fi_unit_init(&unit, job->key, FI_UNIT_SPLIT, block);
    job->loops->split(&unit, job->bucket_bits, block_size(job, block),
                      job->counts + (size_t)block * job->buckets);
}

/* Shuffles a bucket where it stays in the cache, and gives each stage its part. */
static void shuffle_bucket(scatter *job, uint32_t bucket, unsigned worker)
{
    const uint32_t size = job->firsts[bucket + 1] - job->firsts[bucket];
    char *cells = job->desks + worker * job->desk_bytes;
    fi_unit unit;

    fi_unit_init(&unit, job->key, FI_UNIT_BUCKET, bucket);
    if (job->cells32)
        job->loops->shuffle32(&unit, (uint32_t *)cells, size);
    else
        job->loops->shuffle16(&unit, (uint16_t *)cells, size);
    for (uint32_t s = 0; s < job->stage_count; s++) {
        const stage *const part = &job->stages[s];
        const size_t begin = part->begins[bucket] * job->cell_bytes;
        const size_t bytes = part->ends[bucket] * job->cell_bytes - begin;
        memcpy(part->cells + begin, cells, bytes);
        cells += bytes;
    }
}

static void scatter_block(scatter *job, uint32_t number, unsigned worker)
{
    const stage *const part = job->now;
    const uint32_t *const begins = part->begins + (size_t)number * job->buckets;
    const uint32_t block = part->first + number;
    /* A block ends in each bucket where the next one begins. */
    const uint32_t *const ends = block + 1 < part->last ? begins + job->buckets : part->ends;
    const fi_share share = {job->buckets, job->firsts, begins, ends};
    int64_t *const order = job->order + ((size_t)block << job->block_bits);
    fi_unit unit;

    (void)worker;
    fi_unit_init(&unit, job->key, FI_UNIT_BLOCK, block);
    if (job->cells32)
        job->loops->scatter32(&unit, &share, (const uint32_t *)part->cells, order);
    else
        job->loops->scatter16(&unit, &share, (const uint16_t *)part->cells, order);
}

/* Everything after the counts. */
static int scatter_buckets(scatter *job, bool cells32)
{
    const uint32_t largest = place_values(job);
    const stage *last;
    size_t last_bytes, bytes;
    char *scratch;

    /* Buckets have nearly the same size. One that 16 bits do not suffice for is all but impossible
     * where the plan expects none, and then all of them get 32. */
    job->cells32 = largest > (uint32_t)1 << 16 || cells32;
    job->cell_bytes = job->cells32 ? sizeof(uint32_t) : sizeof(uint16_t);
    plan_stages(job);
    last = &job->stages[job->stage_count - 1];
    last_bytes = ((size_t)(last->last - last->first) + 1) * job->buckets * sizeof *job->counts +
                 ((size_t)(last->last - last->first) << job->block_bits) * job->cell_bytes;
    last_bytes = (size_t)fi_align_up(last_bytes, FI_CACHE_LINE);
    job->desk_bytes = (size_t)fi_align_up(largest * job->cell_bytes, FI_CACHE_LINE);
    bytes = last_bytes + job->threads * job->desk_bytes;
    scratch = scratch_open(bytes);
    if (scratch == NULL)
        return FI_E_MEMORY;
    for (uint32_t s = 0; s < job->stage_count; s++)
        place_cells(job, &job->stages[s]);
    move_last_stage(job, scratch);
    job->desks = scratch + last_bytes;
    fan_out(job, shuffle_bucket, job->buckets);
    for (uint32_t s = 0; s < job->stage_count; s++) {
        job->now = &job->stages[s];
        fan_out(job, scatter_block, job->now->last - job->now->first);
    }
    (void)munmap(scratch, bytes);
    return FI_OK;
}

int fi_shuffle_scatter(const fi_shuffle_plan *plan, const fi_loops *loops, int64_t *order,
                    uint32_t n, const fi_seed *key, unsigned threads)
{
    const uint64_t block = (uint64_t)1 << plan->block_bits;
    scatter *const job = calloc(1, sizeof *job); /* more than a small stack has room for */
    if (job == NULL)
        return FI_E_MEMORY;
    job->loops = loops;
    job->key = key;
    job->order = order;
    job->n = n;
    job->buckets = (uint32_t)1 << plan->bucket_bits;
    job->blocks = (uint32_t)((n + block - 1) >> plan->block_bits);
    job->bucket_bits = plan->bucket_bits;
    job->block_bits = plan->block_bits;
    job->threads = (unsigned)fi_min_u64(threads, MOST_THREADS);
    const size_t table_bytes =
        ((size_t)job->blocks + MOST_STAGES) * job->buckets * sizeof *job->counts;
    const size_t bytes = n * sizeof *order / FI_CACHE_LINE * FI_CACHE_LINE;
    const size_t table_room = (size_t)fi_align_up(table_bytes, FI_CACHE_LINE);
    const bool inside = table_room <= bytes / 2; /* else the plan is one that a test made */
    int rc = FI_E_MEMORY;

    job->room = inside ? bytes - table_room : bytes;
    job->counts = inside ? (uint32_t *)((char *)order + job->room) : scratch_open(table_bytes);
    if (job->counts != NULL) {
        fan_out(job, split_block, job->blocks);
        rc = scatter_buckets(job, plan->cells32);
        if (!inside)
            (void)munmap(job->counts, table_bytes);
    }
    free(job);
    return rc;
}

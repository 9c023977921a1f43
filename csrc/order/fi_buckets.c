#include "order/fi_buckets.h"

#include <string.h>

enum {
    DIGIT_BITS = 11,
    DIGITS = 1 << DIGIT_BITS,
    AHEAD = 24 /* rows whose lengths are fetched into the cache early */
};

static uint64_t length_at(const fi_buckets *buckets, int64_t row)
{
    return buckets->wide ? ((const uint64_t *)buckets->lengths)[row]
                         : ((const uint32_t *)buckets->lengths)[row];
}

static inline uint64_t length_of(uint64_t key)
{
    return key >> 32;
}

static void load(const fi_buckets *buckets, const int64_t *rows, uint64_t count, uint64_t *keys)
{
    for (uint64_t k = 0; k < count; k++) {
        if (k + AHEAD < count) {
            const int64_t row = rows[k + AHEAD];
            __builtin_prefetch(buckets->wide ? (const void *)((const uint64_t *)buckets->lengths + row)
                                             : (const void *)((const uint32_t *)buckets->lengths + row));
        }
        keys[k] = length_at(buckets, rows[k]) << 32 | (uint64_t)rows[k];
    }
}

/* By length, the longest first; keys of equal lengths stay in their order. */
static void sort(fi_buckets *buckets, uint64_t count)
{
    uint64_t differ = 0;

    for (uint64_t k = 1; k < count; k++)
        differ |= buckets->keys[k] ^ buckets->keys[0];
    for (unsigned shift = 32; shift < 64 && differ >> shift != 0; shift += DIGIT_BITS) {
        uint64_t starts[DIGITS] = {0}, start = 0;
        uint64_t *const from = buckets->keys, *const to = buckets->spare;
        if ((differ >> shift & (DIGITS - 1)) == 0)
            continue;
        for (uint64_t k = 0; k < count; k++)
            starts[~from[k] >> shift & (DIGITS - 1)]++;
        for (int digit = 0; digit < DIGITS; digit++) {
            const uint64_t size = starts[digit];
            starts[digit] = start;
            start += size;
        }
        for (uint64_t k = 0; k < count; k++)
            to[starts[~from[k] >> shift & (DIGITS - 1)]++] = from[k];
        buckets->keys = to;
        buckets->spare = from;
    }
}

/* Number of rows of a batch, at most, that begins at a place, with its longest row. */
static uint64_t most_rows_from(const fi_buckets *buckets, uint64_t begin, uint64_t most_tokens)
{
    const uint64_t longest = length_of(buckets->keys[begin]);

    return longest == 0 ? buckets->most_rows : fi_min_u64(buckets->most_rows, most_tokens / longest);
}

/* End of that batch, of rows before `count`. */
static uint64_t batch_end(const fi_buckets *buckets, uint64_t begin, uint64_t count, uint64_t most_tokens)
{
    return begin + fi_min_u64(count - begin, most_rows_from(buckets, begin, most_tokens));
}

/* Every `stride`-th row. */
static void write_batch(fi_buckets *buckets, uint64_t begin, uint64_t end, uint64_t stride)
{
    buckets->marks[buckets->written / 8] |= (uint8_t)(1 << buckets->written % 8);
    for (uint64_t k = begin; k < end; k += stride)
        buckets->out[buckets->written++] = (uint32_t)buckets->keys[k];
    buckets->batches++;
}

/* The step of the rows from begin to before end, whose batches end where they do among `total` rows. */
static void write_step(fi_buckets *buckets, uint64_t begin, uint64_t end, uint64_t total)
{
    const uint64_t ranks = buckets->num_ranks, rows = (end - begin) / ranks;
    const uint64_t longest = length_of(buckets->keys[begin]);
    uint64_t lengths = 0, first = begin;
    bool are_equal = true;

    for (uint64_t rank = 0; rank < ranks; rank++) {
        const uint64_t last = batch_end(buckets, first, total, buckets->most_tokens);
        are_equal = are_equal && last - first == rows;
        lengths += length_of(buckets->keys[first]);
        first = last;
    }
    if (are_equal && (unsigned __int128)10 * ranks * longest > (unsigned __int128)11 * lengths) {
        for (uint64_t rank = 0; rank < ranks; rank++)
            write_batch(buckets, begin + rank, end, ranks);
        return;
    }
    while (begin < end) {
        first = batch_end(buckets, begin, total, buckets->most_tokens);
        write_batch(buckets, begin, first, 1);
        begin = first;
    }
}

/* Number of the longest of `total` rows that are left: some of those that only their number limits, since
 * the longest cost more than others; else, or if they can make a step with all others, none. */
static uint64_t longest_left(const fi_buckets *buckets, uint64_t total)
{
    const uint64_t step = fi_min_u64(buckets->most_rows, total + 1) * buckets->num_ranks;
    uint64_t left = total % step;

    if (buckets->most_tokens != UINT64_MAX)
        return 0;
    if (!buckets->drops && left > 0 && left < buckets->num_ranks && total > step) {
        left += step; /* so that the last step has a row for each rank */
    }
    return left;
}

uint64_t fi_buckets_window(fi_buckets *buckets, const int64_t *rows, uint64_t count, bool trial)
{
    const uint64_t total = buckets->carried + count, left = longest_left(buckets, total);
    uint64_t begin = left;

    load(buckets, rows, count, buckets->keys + buckets->carried);
    sort(buckets, total);
    while (begin < total) {
        uint64_t end = begin;
        uint32_t rank = 0;
        for (; rank < buckets->num_ranks && end < total; rank++) {
            const uint64_t start = end;
            end = batch_end(buckets, start, total, buckets->most_tokens);
            if (end - start < most_rows_from(buckets, start, buckets->most_tokens)) {
                break; /* it is not full */
            }
        }
        if (rank < buckets->num_ranks)
            break;
        if (!trial)
            write_step(buckets, begin, end, total);
        begin = end;
    }
    buckets->carried = left + total - begin;
    memmove(buckets->keys + left, buckets->keys + begin, (total - begin) * sizeof *buckets->keys);
    return buckets->carried;
}

static uint64_t batches_within(const fi_buckets *buckets, uint64_t most_tokens)
{
    uint64_t batches = 0;

    for (uint64_t begin = 0; begin < buckets->carried; batches++)
        begin = batch_end(buckets, begin, buckets->carried, most_tokens);
    return batches;
}

/* The least cost within which the carried rows make at most that number of batches; they do within most_tokens. */
static uint64_t least_cost(const fi_buckets *buckets, uint64_t batches)
{
    const uint64_t longest = length_of(buckets->keys[0]);
    uint64_t low = longest, high = fi_min_u64(buckets->most_tokens, longest * buckets->carried);

    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (batches_within(buckets, middle) <= batches)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool is_marked(const fi_buckets *buckets, uint64_t place)
{
    return buckets->marks[place / 8] >> place % 8 & 1;
}

/* Takes the step written last back, if there is one, and room. */
static bool take_back(fi_buckets *buckets)
{
    uint64_t first = buckets->written;

    if (buckets->batches == 0)
        return false;
    for (uint32_t rank = 0; rank < buckets->num_ranks; rank += is_marked(buckets, first))
        first--;
    if (buckets->carried + (buckets->written - first) > buckets->room)
        return false;
    while (buckets->written > first) {
        const uint64_t place = --buckets->written;
        const uint32_t row = buckets->out[place];
        buckets->keys[buckets->carried++] = length_at(buckets, row) << 32 | row;
        buckets->marks[place / 8] &= (uint8_t)~(1 << place % 8);
    }
    buckets->batches -= buckets->num_ranks;
    return true;
}

void fi_buckets_finish(fi_buckets *buckets)
{
    uint64_t batches = buckets->num_ranks, cost, begin = 0;

    if (buckets->carried == 0)
        return;
    while (buckets->carried < batches && take_back(buckets))
        batches += buckets->num_ranks;
    sort(buckets, buckets->carried);
    while (batches_within(buckets, buckets->most_tokens) > batches)
        batches += buckets->num_ranks;
    batches = fi_min_u64(batches, buckets->carried);
    cost = least_cost(buckets, batches);
    while (begin < buckets->carried) {
        /* Each of the batches to come needs a row. */
        const uint64_t left = buckets->carried - --batches;
        const uint64_t end = batch_end(buckets, begin, left, cost);
        write_batch(buckets, begin, end, 1);
        begin = end;
    }
    buckets->carried = 0;
}

/* Copies batches between two places of out behind what is in rows. */
static void copy(const fi_buckets *buckets, uint64_t from, uint64_t to, uint32_t *rows, uint64_t *count,
                 int64_t **cut)
{
    for (uint64_t place = from; place < to; place++) {
        if (is_marked(buckets, place))
            *(*cut)++ = (int64_t)*count;
        rows[(*count)++] = buckets->out[place];
    }
}

void fi_buckets_arrange(const fi_buckets *buckets, const fi_seed *seed, uint32_t *starts, uint32_t *rows,
                        int64_t *cuts)
{
    const uint64_t steps = buckets->batches / buckets->num_ranks;
    /* Each entry is read before the cuts of its step are written, which end before the next one's. */
    const int64_t *const order = cuts + buckets->batches + 1 - steps;
    uint64_t count = 0, batches = 0;
    int64_t *cut = cuts;
    fi_seed key = *seed;

    for (uint64_t place = 0; place < buckets->written; place++) {
        if (is_marked(buckets, place) && batches++ % buckets->num_ranks == 0)
            starts[(batches - 1) / buckets->num_ranks] = (uint32_t)place;
    }
    if (batches % buckets->num_ranks == 0)
        starts[steps] = (uint32_t)buckets->written;
    for (uint64_t k = 0; k < steps; k++) {
        const uint64_t first = starts[order[k]], last = starts[order[k] + 1];
        uint64_t rotated = first, turn = fi_splitmix64(&key.words[0]) % buckets->num_ranks;
        while (turn > 0) {
            rotated++;
            turn -= is_marked(buckets, rotated);
        }
        copy(buckets, rotated, last, rows, &count, &cut);
        copy(buckets, first, rotated, rows, &count, &cut);
    }
    copy(buckets, count, buckets->written, rows, &count, &cut);
    *cut = (int64_t)count;
}

#include "batch/fi_gather.h"

#include <string.h>

#include "base/fi_base.h"
#include "batch/fi_copy.h"

enum {
    AHEAD_BYTES = 2048, /* so much of the rows to come is on its way at a time */
    MOST_AHEAD = 16,    /* rows: a core keeps 10 to 16 lines in flight */
    MOST_LINES = 16     /* of one row; after these the processor foresees the rest by itself */
};

bool fi_rows_lie_within(const int64_t *rows, size_t n, int64_t length)
{
    const uint64_t last = (uint64_t)length - 1;
    uint64_t outside = 0;

    if (length <= 0)
        return n == 0;
    for (size_t i = 0; i < n; i++) { /* the highest bit: of a negative row, or of one beyond the last */
        outside |= (uint64_t)rows[i] | (last - (uint64_t)rows[i]);
    }
    return outside >> 63 == 0;
}

void fi_rows_translate(int64_t *out, const int64_t *table, const int64_t *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = table[rows[i]];
}

static bool are_consecutive(const int64_t *rows, size_t n)
{
    uint64_t gaps = 0;

    if ((uint64_t)rows[n - 1] - (uint64_t)rows[0] != n - 1) { /* so it is for most orders */
        return false;
    }
    for (size_t i = 0; i < n; i++)
        gaps |= ((uint64_t)rows[i] - (uint64_t)rows[0]) ^ i;
    return gaps == 0;
}

/* A constant size lets the compiler turn the copy into a few moves; a call of memcpy costs more
 * than moving the 64 bytes of a small example. */
#define FIXED_SIZES(CASE)                                                                          \
    CASE(1);                                                                                       \
    CASE(2);                                                                                       \
    CASE(4);                                                                                       \
    CASE(8);                                                                                       \
    CASE(12);                                                                                      \
    CASE(16);                                                                                      \
    CASE(24);                                                                                      \
    CASE(32);                                                                                      \
    CASE(64);                                                                                      \
    CASE(128)

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Rows of an array, or what lies anywhere, where `items` is not NULL. */
typedef struct {
    const char *base;
    ptrdiff_t stride;
    const int64_t *rows;
    const void *const *items;
} source;

static ALWAYS_INLINE const char *at(const source *src, size_t i)
{
    return src->items != NULL ? src->items[i] : src->base + src->rows[i] * src->stride;
}

/* Items to come are asked for `ahead` items before. With constants for `bytes` and `lines` no loop is
 * left within it. The last items, which have nothing ahead of them, are a loop of their own. */
static ALWAYS_INLINE void copy_ahead(char *out, size_t bytes, const source *src, size_t n, size_t ahead,
                                     size_t lines, bool uncached)
{
    size_t i = 0;

    for (; i + ahead < n; i++) {
        const char *next = at(src, i + ahead);
        for (size_t line = 0; line < lines; line++)
            __builtin_prefetch(next + line * FI_CACHE_LINE);
        fi_copy(out + i * bytes, at(src, i), bytes, uncached);
    }
    for (; i < n; i++)
        fi_copy(out + i * bytes, at(src, i), bytes, uncached);
}

/* Of other sizes: the lines of items of up to four are asked for without a loop. */
static ALWAYS_INLINE void gather_others(char *out, size_t bytes, const source *src, size_t n, bool uncached)
{
    const size_t ahead = bytes < AHEAD_BYTES ? AHEAD_BYTES / bytes : 1;
    const size_t lines = fi_min_u64((bytes + FI_CACHE_LINE - 1) / FI_CACHE_LINE, MOST_LINES);

    if (lines <= 2)
        copy_ahead(out, bytes, src, n, ahead, 2, false);
    else if (lines <= 4)
        copy_ahead(out, bytes, src, n, ahead, 4, false);
    else
        copy_ahead(out, bytes, src, n, ahead, lines, uncached);
}

#define GATHER_AHEAD(bytes)                                             \
    case (bytes):                                                       \
        copy_ahead(out, (bytes), &src, n, MOST_AHEAD, 1, false);        \
        break

static ALWAYS_INLINE void gather(char *out, size_t bytes, source src, size_t n, bool uncached)
{
    switch (bytes) {
    case 0:
        break;
    FIXED_SIZES(GATHER_AHEAD);
    default:
        gather_others(out, bytes, &src, n, uncached);
    }
}

void fi_gather_rows(void *dst, size_t row_bytes, const void *base, ptrdiff_t stride,
                    const int64_t *rows, size_t n, bool uncached)
{
    if (n > 0 && row_bytes > 0 && stride == (ptrdiff_t)row_bytes && are_consecutive(rows, n)) {
        fi_copy(dst, (const char *)base + rows[0] * stride, n * row_bytes, uncached);
        return;
    }
    gather(dst, row_bytes, (source){base, stride, rows, NULL}, n, uncached);
}

void fi_gather_far(void *dst, size_t item_bytes, const void *const *src, size_t n, bool uncached)
{
    gather(dst, item_bytes, (source){.items = src}, n, uncached);
}

#define GATHER_ITEMS(bytes)                                             \
    case (bytes):                                                       \
        for (size_t i = 0; i < n; i++) {                                \
            memcpy(out + i * (bytes), src[i], (bytes));                 \
        }                                                               \
        break

static void gather_large_items(unsigned char *out, size_t item_bytes, const void *const *src, size_t n)
{
    const bool uncached =
        item_bytes >= FI_UNCACHED_LEAST && fi_outruns_cache(item_bytes * n, FI_RESULT_BATCHES);

    for (size_t i = 0; i < n; i++)
        fi_copy(out + i * item_bytes, src[i], item_bytes, uncached);
}

void fi_gather(void *dst, size_t item_bytes, const void *const *src, size_t n)
{
    unsigned char *out = dst;

    switch (item_bytes) {
    case 0:
        break;
    FIXED_SIZES(GATHER_ITEMS);
    default:
        gather_large_items(out, item_bytes, src, n);
    }
}

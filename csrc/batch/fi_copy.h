/* Copies, and fills, of bytes that will not be read while they are still in a cache.
 *
 * An ordinary store first reads its cache line from memory and later evicts it: a copy to memory
 * that is in no cache moves three bytes over the bus for each byte copied. Non-temporal stores
 * write past the caches and move two. That pays only where the bytes would leave the caches before
 * they are read: docs/decisions/0018 has the figures.
 */
#ifndef FI_COPY_H
#define FI_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Whether batches of this many bytes, `batches` of them under way at a time, outrun the caches: what
 * is written now will have left them when it is read, pushed out by the batches that are filled
 * meanwhile. */
bool fi_outruns_cache(uint64_t batch_bytes, uint64_t batches);

/* Of a result that is made and read at once as much as this many batches competes for the caches: it,
 * its examples, and both of the call before, whose result mostly lives on until it is replaced. */
#define FI_RESULT_BATCHES 4

/* Shorter copies are made through the caches: to start and to drain takes longer than it saves. */
#define FI_UNCACHED_LEAST 4096

/* Copies `bytes` past the caches, of any alignment; the areas must not overlap. The stores are
 * ordered before all that follow, as memcpy's are: a release store may publish them. Where the
 * processor has no such stores it is memcpy. */
void fi_copy_uncached(void *dst, const void *src, size_t bytes);

/* Fills `bytes` past the caches, in the same way, with what stands in `line`, of FI_CACHE_LINE bytes,
 * over and over: byte i of dst gets byte i % FI_CACHE_LINE of it. */
void fi_fill_uncached(void *dst, const void *line, size_t bytes);

/* Copies an array of elements of `itemsize` bytes, of any strides and FI_MOST_NDIM axes at most, to
 * where they lie one after the other in C order. The areas must not overlap. */
void fi_copy_strided(void *dst, const void *src, int ndim, const int64_t *dims,
                     const int64_t *strides, size_t itemsize);

/* Of one row or one example. `uncached`: what it is part of outruns the caches. */
static inline void fi_copy(void *dst, const void *src, size_t bytes, bool uncached)
{
    if (uncached && bytes >= FI_UNCACHED_LEAST)
        fi_copy_uncached(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

/* The int64 at a place, or int32 unless `wide`. Nothing needs to be aligned: files align nothing. */
static inline int64_t fi_number_at(const void *numbers, bool wide, int64_t place)
{
    int64_t number;
    int32_t narrow;
    if (wide) {
        memcpy(&number, (const char *)numbers + 8 * place, 8);
        return number;
    }
    memcpy(&narrow, (const char *)numbers + 4 * place, 4);
    return narrow;
}

#endif

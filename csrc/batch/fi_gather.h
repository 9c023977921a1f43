/* Items copied back to back: rows of one array by their numbers, or items by their addresses.
 *
 * Everything here works on memory that the caller owns and allocates nothing. Sources and output
 * must not overlap. All functions are thread-safe as long as their outputs differ.
 */
#ifndef FI_GATHER_H
#define FI_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether 0 <= rows[i] < length for all n rows. */
bool fi_rows_lie_within(const int64_t *rows, size_t n, int64_t length);

/* out[i] = table[rows[i]]: what the rows of a view are in the array below. The caller has checked
 * that the rows lie within the table. out may be rows itself. */
void fi_rows_translate(int64_t *out, const int64_t *table, const int64_t *rows, size_t n);

/* Copies n rows of row_bytes bytes each to dst, back to back; row i is the one at
 * base + rows[i] * stride. Rows that follow each other without a gap are one copy; for all others
 * memory is asked for several rows ahead, since a random order is more than a processor foresees.
 *
 * dst: room for n * row_bytes bytes. stride: bytes from row to row, which may be 0 or negative.
 * uncached: what dst is part of outruns the caches (fi_copy.h). The caller has checked the rows.
 * Nothing needs to be aligned. */
void fi_gather_rows(void *dst, size_t row_bytes, const void *base, ptrdiff_t stride,
                    const int64_t *rows, size_t n, bool uncached);

/* Copies n items of item_bytes each to dst, back to back.
 *
 * src[i]: first byte of item i. dst: room for n * item_bytes bytes. */
void fi_gather(void *dst, size_t item_bytes, const void *const *src, size_t n);

/* As fi_gather, for items that lie far from each other: those to come are asked for ahead. uncached: as
 * in fi_copy.h. */
void fi_gather_far(void *dst, size_t item_bytes, const void *const *src, size_t n, bool uncached);

#endif

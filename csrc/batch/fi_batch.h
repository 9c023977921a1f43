/* Batch assembly: ragged rows padded to one shape.
 *
 * Everything here works on memory that the caller owns, allocates nothing, and writes each byte
 * of the output exactly once. Sources and output must not overlap. Nothing needs to be aligned.
 * All functions are thread-safe as long as their outputs differ.
 */
#ifndef FI_BATCH_H
#define FI_BATCH_H

#include "base/fi_base.h"

/* Elementwise maximum of n shapes.
 *
 * src_shapes: n x ndim lengths, row after row; n >= 1. out_shape: ndim lengths.
 * Returns FI_OK; FI_E_RANGE if ndim is not in 0..FI_MOST_NDIM, n is 0, or a length is negative
 * (out_shape is then undefined). */
int fi_pad_shape(int64_t *out_shape, int ndim, const int64_t *src_shapes, size_t n);

/* Writes n C-contiguous arrays into the rows of one C-contiguous array of shape
 * (n, dst_shape[0], ..., dst_shape[ndim-1]) and sets every other element to the fill value.
 *
 * dst_shape: what fi_pad_shape gives for these shapes, or more; the caller holds n * product *
 * itemsize bytes at dst.
 * src[i]: first byte of array i, of shape src_shapes[i * ndim ...]; may be NULL if it is empty.
 * fill: one element, itemsize bytes, at least 1. */
void fi_pad(void *dst, const int64_t *dst_shape, int ndim, size_t itemsize,
            const void *const *src, const int64_t *src_shapes, size_t n, const void *fill);

/* Bytes of an array of that shape; UINT64_MAX if a dimension is negative or it would be
 * FI_MOST_BYTES or more. */
uint64_t fi_array_bytes(const int64_t *shape, int ndim, uint64_t itemsize);

/* Ragged rows by their table in a slot: entry `row`, at entries + row * stride, is the row's offset
 * in the payload and its shape. Fills `sources` (n) and `shapes` (n x ndim). FI_E_RANGE if a row
 * does not lie within the first `available` bytes: then the table was overwritten. */
int fi_ragged_rows(const char *payload, uint64_t available, const char *entries, uint64_t stride,
                   int ndim, uint64_t itemsize, size_t n, const void **sources, int64_t *shapes);

#endif

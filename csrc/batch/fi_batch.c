#include "batch/fi_batch.h"

#include <stdbool.h>
#include <string.h>

#include "base/fi_base.h"
#include "batch/fi_copy.h"
#include "batch/fi_gather.h"

int fi_pad_shape(int64_t *out_shape, int ndim, const int64_t *src_shapes, size_t n)
{
    if (ndim < 0 || ndim > FI_MOST_NDIM || n == 0)
        return FI_E_RANGE;
    for (int d = 0; d < ndim; d++)
        out_shape[d] = 0;
    for (size_t i = 0; i < n; i++) {
        const int64_t *shape = src_shapes + i * (size_t)ndim;
        for (int d = 0; d < ndim; d++) {
            if (shape[d] < 0)
                return FI_E_RANGE;
            if (shape[d] > out_shape[d])
                out_shape[d] = shape[d];
        }
    }
    return FI_OK;
}

/* Fill values are written in blocks of this size, which is that of a vector register with AVX2, and
 * of two without; every number's size divides it. */
enum { BLOCK = 32 };
typedef unsigned char fill_block __attribute__((vector_size(BLOCK)));

/* From this size on memset is called instead: a bound chosen, not measured. */
enum { MEMSET_BYTES = 1024 };

/* Facts that are the same for all rows of one call. */
typedef struct {
    const unsigned char *fill;
    size_t itemsize;
    bool uniform;                    /* all bytes of the fill value are equal */
    bool in_blocks;                  /* the item size divides a block */
    bool uncached;                   /* the result outruns the caches */
    int ndim;
    const int64_t *shape;            /* of a padded row */
    size_t stride[FI_MOST_NDIM];  /* of a padded row, in bytes */
    fill_block block;                /* the fill value, repeated */
    unsigned char line[FI_CACHE_LINE]; /* the same */
} pad_layout;

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Sets bytes (a multiple of the item size) at out to the fill value; returns the end. A fill that
 * is no whole number of blocks ends with a block that overlaps the one before: both begin at an
 * item, and so have the same content. memcpy of a constant size is the portable way to store to an
 * address of any alignment. */
static ALWAYS_INLINE unsigned char *fill_run(const pad_layout *layout, unsigned char *out,
                                             size_t bytes)
{
    unsigned char *const end = out + bytes;

    if (layout->uncached && bytes >= FI_UNCACHED_LEAST) {
        fi_fill_uncached(out, layout->line, bytes);
    } else if (layout->uniform && bytes >= MEMSET_BYTES) {
        memset(out, layout->fill[0], bytes);
    } else if (layout->in_blocks && bytes >= BLOCK) {
        const fill_block block = layout->block;
        for (; out + BLOCK <= end; out += BLOCK)
            memcpy(out, &block, BLOCK);
        memcpy(end - BLOCK, &block, BLOCK);
    } else if (layout->in_blocks) {
        for (size_t part = BLOCK / 2; part > 0; part /= 2) {
            if (bytes & part) {
                memcpy(out, &layout->block, part);
                out += part;
            }
        }
    } else {
        for (; out < end; out += layout->itemsize)
            memcpy(out, layout->fill, layout->itemsize);
    }
    return end;
}

static ALWAYS_INLINE unsigned char *copy_run(const pad_layout *layout, unsigned char *out,
                                             const unsigned char **src, size_t bytes)
{
    if (bytes != 0) { /* the source of an empty array may be NULL */
        fi_copy(out, *src, bytes, layout->uncached);
        *src += bytes;
    }
    return out + bytes;
}

/* Writes dimension dim and all below it of one row: the real data from *src, then the fill.
 * whole: the dimension below which source and row have the same shape, so that its data are one
 * run of bytes. Returns the end of what was written; *src moves behind what was read. This is for
 * dim == whole, and for the one above, rows of a matrix: without recursion, since most are that. */
static ALWAYS_INLINE unsigned char *pad_matrix(const pad_layout *layout, int dim, int whole,
                                               const int64_t *shape, unsigned char *out,
                                               const unsigned char **src)
{
    const size_t stride = layout->stride[dim];
    const size_t length = (size_t)shape[dim];
    const size_t rest = ((size_t)layout->shape[dim] - length) * stride;
    const size_t real = (size_t)shape[whole] * layout->stride[whole];

    if (dim == whole) {
        out = copy_run(layout, out, src, real);
    } else {
        for (size_t i = 0; i < length; i++) {
            out = copy_run(layout, out, src, real);
            out = fill_run(layout, out, stride - real);
        }
    }
    return rest != 0 ? fill_run(layout, out, rest) : out;
}

/* The same for more dimensions between dim and whole. */
static unsigned char *pad_dimension(const pad_layout *layout, int dim, int whole,
                                    const int64_t *shape, unsigned char *out,
                                    const unsigned char **src)
{
    const size_t length = (size_t)shape[dim];
    const size_t rest = ((size_t)layout->shape[dim] - length) * layout->stride[dim];

    for (size_t i = 0; i < length; i++) {
        out = dim + 2 == whole ? pad_matrix(layout, dim + 1, dim + 2, shape, out, src)
                               : pad_dimension(layout, dim + 1, whole, shape, out, src);
    }
    return rest != 0 ? fill_run(layout, out, rest) : out;
}

/* The dimension from which a source's data are one run of bytes in the row: all dimensions after
 * it have full length. 0 where they are one run as a whole. */
static int whole_dimension(const pad_layout *layout, const int64_t *shape)
{
    int dim = layout->ndim - 1;

    while (dim > 0 && shape[dim] == layout->shape[dim])
        dim--;
    return dim;
}

/* Whether a source's data, taken for those of all, are runs long enough to be copied past the caches.
 * To fill past them what lies between short runs would be slower than either way. */
static bool has_long_runs(const pad_layout *layout, const int64_t *shape)
{
    const int whole = whole_dimension(layout, shape);

    return (size_t)shape[whole] * layout->stride[whole] >= FI_UNCACHED_LEAST;
}

static ALWAYS_INLINE void pad_rows(const pad_layout *layout, unsigned char *out,
                                   const void *const *src, const int64_t *shapes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int64_t *const shape = shapes + i * (size_t)layout->ndim;
        const unsigned char *from = src[i];
        const int whole = whole_dimension(layout, shape);
        out = whole == 0   ? pad_matrix(layout, 0, 0, shape, out, &from)
              : whole == 1 ? pad_matrix(layout, 0, 1, shape, out, &from)
                           : pad_dimension(layout, 0, whole, shape, out, &from);
    }
}

#if defined(__x86_64__)
/* The same code, its blocks in registers of 32 bytes. */
__attribute__((target("avx2"))) static void pad_rows_avx2(const pad_layout *layout,
                                                          unsigned char *out,
                                                          const void *const *src,
                                                          const int64_t *shapes, size_t n)
{
    pad_rows(layout, out, src, shapes, n);
}
#endif

void fi_pad(void *dst, const int64_t *dst_shape, int ndim, size_t itemsize,
            const void *const *src, const int64_t *src_shapes, size_t n, const void *fill)
{
    pad_layout layout = {.fill = fill, .itemsize = itemsize, .ndim = ndim, .shape = dst_shape};

    if (ndim == 0) {
        fi_gather(dst, itemsize, src, n);
        return;
    }
    /* An empty row may have huge other lengths: their product would overflow, and looping over
     * them would take for ever. */
    for (int d = 0; d < ndim; d++) {
        if (dst_shape[d] == 0)
            return;
    }
    layout.uniform = memcmp(fill, (const char *)fill + 1, itemsize - 1) == 0;
    layout.in_blocks = BLOCK % itemsize == 0;
    for (size_t b = 0; layout.in_blocks && b < BLOCK; b += itemsize)
        memcpy((unsigned char *)&layout.block + b, fill, itemsize);
    for (size_t b = 0; b < FI_CACHE_LINE; b += BLOCK)
        memcpy(layout.line + b, &layout.block, BLOCK);
    layout.stride[ndim - 1] = itemsize;
    for (int d = ndim - 1; d > 0; d--)
        layout.stride[d - 1] = layout.stride[d] * (size_t)dst_shape[d];
    layout.uncached =
        layout.in_blocks && n > 0 && has_long_runs(&layout, src_shapes) &&
        fi_outruns_cache(layout.stride[0] * (size_t)dst_shape[0] * n, FI_RESULT_BATCHES);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        pad_rows_avx2(&layout, dst, src, src_shapes, n);
        return;
    }
#endif
    pad_rows(&layout, dst, src, src_shapes, n);
}

/* ---- ragged rows --------------------------------------------------------------------------- */

uint64_t fi_array_bytes(const int64_t *shape, int ndim, uint64_t itemsize)
{
    uint64_t bytes = itemsize;
    bool empty = false;
    for (int axis = 0; axis < ndim; axis++) {
        if (shape[axis] < 0)
            return UINT64_MAX;
        if (shape[axis] == 0)
            empty = true;
        else if (bytes > FI_MOST_BYTES / (uint64_t)shape[axis])
            return UINT64_MAX;
        else
            bytes *= (uint64_t)shape[axis];
    }
    return empty ? 0 : bytes < FI_MOST_BYTES ? bytes : UINT64_MAX;
}

int fi_ragged_rows(const char *payload, uint64_t available, const char *entries, uint64_t stride,
                   int ndim, uint64_t itemsize, size_t n, const void **sources, int64_t *shapes)
{
    for (size_t row = 0; row < n; row++) {
        const int64_t *entry = (const int64_t *)(entries + row * stride);
        int64_t *shape = shapes + row * (size_t)ndim;
        uint64_t offset = (uint64_t)entry[0];
        for (int axis = 0; axis < ndim; axis++)
            shape[axis] = entry[1 + axis];
        uint64_t bytes = fi_array_bytes(shape, ndim, itemsize);
        if (bytes > available || offset > available - bytes)
            return FI_E_RANGE;
        sources[row] = payload + offset;
    }
    return FI_OK;
}

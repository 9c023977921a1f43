#include "fi_batch.h"

#include <stdbool.h>
#include <string.h>

#include "fi_base.h"

/* A constant size lets the compiler turn the copy into a few moves; a call of memcpy costs more
 * than moving the 64 bytes of a small example. */
#define GATHER_SIZE(bytes)                                              \
    case (bytes):                                                       \
        for (size_t i = 0; i < n; i++) {                                \
            memcpy(out + i * (bytes), src[i], (bytes));                 \
        }                                                               \
        break

void fi_gather(void *dst, size_t item_bytes, const void *const *src, size_t n)
{
    unsigned char *out = dst;

    switch (item_bytes) {
    case 0:
        break;
    GATHER_SIZE(1);
    GATHER_SIZE(2);
    GATHER_SIZE(4);
    GATHER_SIZE(8);
    GATHER_SIZE(12);
    GATHER_SIZE(16);
    GATHER_SIZE(24);
    GATHER_SIZE(32);
    GATHER_SIZE(64);
    GATHER_SIZE(128);
    default:
        for (size_t i = 0; i < n; i++) {
            memcpy(out + i * item_bytes, src[i], item_bytes);
        }
    }
}

int fi_pad_shape(int64_t *out_shape, int ndim, const int64_t *src_shapes, size_t n)
{
    if (ndim < 0 || ndim > FI_PAD_MAX_NDIM || n == 0) {
        return FI_E_RANGE;
    }
    for (int d = 0; d < ndim; d++) {
        out_shape[d] = 0;
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t *shape = src_shapes + i * (size_t)ndim;
        for (int d = 0; d < ndim; d++) {
            if (shape[d] < 0) {
                return FI_E_RANGE;
            }
            if (shape[d] > out_shape[d]) {
                out_shape[d] = shape[d];
            }
        }
    }
    return FI_OK;
}

/* What stays the same for all rows of one call. */
typedef struct {
    const unsigned char *fill;
    size_t itemsize;
    bool uniform;                    /* all bytes of the fill value are equal */
    int ndim;
    const int64_t *shape;            /* of a padded row */
    size_t stride[FI_PAD_MAX_NDIM];  /* of a padded row, in bytes */
} pad_layout;

/* memcpy of a constant size is the portable way to store to an address of any alignment; the
 * compiler makes vector stores of these loops. */
#define FILL_TYPED(type)                                                \
    do {                                                                \
        type value;                                                     \
        memcpy(&value, layout->fill, sizeof value);                     \
        for (size_t i = 0; i < bytes; i += sizeof value) {              \
            memcpy(out + i, &value, sizeof value);                      \
        }                                                               \
    } while (0)

/* Sets bytes (a multiple of the item size) at out to the fill value; returns the end. */
static inline unsigned char *fill_run(const pad_layout *layout, unsigned char *out, size_t bytes)
{
    if (layout->uniform) {
        memset(out, layout->fill[0], bytes);
        return out + bytes;
    }
    switch (layout->itemsize) {
    case 2:
        FILL_TYPED(uint16_t);
        break;
    case 4:
        FILL_TYPED(uint32_t);
        break;
    case 8:
        FILL_TYPED(uint64_t);
        break;
    default:
        for (size_t i = 0; i < bytes; i += layout->itemsize) {
            memcpy(out + i, layout->fill, layout->itemsize);
        }
    }
    return out + bytes;
}

static inline unsigned char *copy_run(unsigned char *out, const unsigned char **src, size_t bytes)
{
    if (bytes != 0) { /* the source of an empty array may be NULL */
        memcpy(out, *src, bytes);
        *src += bytes;
    }
    return out + bytes;
}

/* Writes dimension dim and all below it of one row: the real data from *src, then the fill.
 * whole: the dimension below which source and row have the same shape, so that its data are one
 * run of bytes. Returns the end of what was written; *src moves behind what was read. */
static unsigned char *pad_dimension(const pad_layout *layout, int dim, int whole,
                                    const int64_t *shape, unsigned char *out,
                                    const unsigned char **src)
{
    const size_t stride = layout->stride[dim];
    const size_t length = (size_t)shape[dim];
    const size_t rest = ((size_t)layout->shape[dim] - length) * stride;

    if (dim == whole) {
        out = copy_run(out, src, length * stride);
    } else if (dim + 1 == whole) { /* rows of a matrix: no call for each of them */
        const size_t real = (size_t)shape[whole] * layout->stride[whole];
        for (size_t i = 0; i < length; i++) {
            out = copy_run(out, src, real);
            out = fill_run(layout, out, stride - real);
        }
    } else {
        for (size_t i = 0; i < length; i++) {
            out = pad_dimension(layout, dim + 1, whole, shape, out, src);
        }
    }
    return rest != 0 ? fill_run(layout, out, rest) : out;
}

/* The dimension from which a source's data are one run of bytes in the row: all dimensions after
 * it have full length. 0 where they are one run as a whole. */
static int whole_dimension(const pad_layout *layout, const int64_t *shape)
{
    int dim = layout->ndim - 1;

    while (dim > 0 && shape[dim] == layout->shape[dim]) {
        dim--;
    }
    return dim;
}

static bool bytes_are_equal(const unsigned char *bytes, size_t n)
{
    return memcmp(bytes, bytes + 1, n - 1) == 0;
}

static bool shapes_fit(const int64_t *dst_shape, int ndim, const int64_t *src_shapes, size_t n)
{
    for (int d = 0; d < ndim; d++) {
        if (dst_shape[d] < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t *shape = src_shapes + i * (size_t)ndim;
        for (int d = 0; d < ndim; d++) {
            if (shape[d] < 0 || shape[d] > dst_shape[d]) {
                return false;
            }
        }
    }
    return true;
}

static bool is_empty(const int64_t *shape, int ndim)
{
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 0) {
            return true;
        }
    }
    return false;
}

int fi_pad(void *dst, const int64_t *dst_shape, int ndim, size_t itemsize,
           const void *const *src, const int64_t *src_shapes, size_t n, const void *fill)
{
    pad_layout layout = {.fill = fill, .itemsize = itemsize, .ndim = ndim, .shape = dst_shape};
    unsigned char *out = dst;

    if (ndim < 0 || ndim > FI_PAD_MAX_NDIM || itemsize == 0) {
        return FI_E_RANGE;
    }
    if (!shapes_fit(dst_shape, ndim, src_shapes, n)) {
        return FI_E_RANGE;
    }
    if (ndim == 0) {
        fi_gather(dst, itemsize, src, n);
        return FI_OK;
    }
    /* An empty row may have huge other lengths: their product would overflow, and looping over
     * them would take for ever. */
    if (is_empty(dst_shape, ndim)) {
        return FI_OK;
    }
    layout.uniform = bytes_are_equal(fill, itemsize);
    layout.stride[ndim - 1] = itemsize;
    for (int d = ndim - 1; d > 0; d--) {
        layout.stride[d - 1] = layout.stride[d] * (size_t)dst_shape[d];
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t *shape = src_shapes + i * (size_t)ndim;
        const unsigned char *data = src[i];
        out = pad_dimension(&layout, 0, whole_dimension(&layout, shape), shape, out, &data);
    }
    return FI_OK;
}

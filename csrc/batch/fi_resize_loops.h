/* The loops of fi_resize, which each instruction set has for itself, and what they work on. */
#ifndef FI_RESIZE_LOOPS_H
#define FI_RESIZE_LOOPS_H

#include "batch/fi_resize.h"

enum {
    FI_RESIZE_ROWS = 4,    /* rows that are resized at once: they share the weights */
    FI_RESIZE_STEP = 8,    /* pixels of a row that are written at once */
    FI_RESIZE_LOADED = 16, /* bytes that are read from where a pair of taps begins, at most */
    FI_RESIZE_VECTOR = 32  /* bytes of the result that are written at once, where there are so many */
};

/* The weighted sums of `taps` neighbours that the pixels of a row, or the rows, of the result are. Neighbours that one
 * does not need have the weight 0. The weights of one are a power of two together, so that one colour stays as it
 * is, and no sum takes more than 31 bits. */
typedef struct {
    uint64_t n;       /* a multiple of FI_RESIZE_STEP, with those that are not wanted */
    uint32_t taps;    /* even */
    unsigned shift;   /* of a sum to the right, rounded */
    uint32_t *firsts; /* the first neighbour of each */
    uint32_t *counts; /* neighbours with a weight */
    int16_t *weights; /* [n][taps] */
} fi_resize_axis;

typedef struct {
    /* FI_RESIZE_ROWS rows along themselves; as many follow that come next, and can be fetched meanwhile. Row k goes to
     * out + k * stride: as planes that begin `plane` values from each other, or with plane 0 as pixels of 3 values,
     * and up to 2 values beyond. */
    void (*across)(const fi_resize_axis *axis, const uint8_t *const *rows, int16_t *out, uint64_t stride,
                   uint64_t plane);
    /* out[v], for v < n: the weighted sum of rows[t][from + v] for `pairs` of taps. FI_RESIZE_VECTOR values of a row
     * can be read also where n is less. */
    void (*down)(const int16_t *const *rows, uint64_t from, const int16_t *weights, uint32_t pairs, unsigned shift,
                 uint64_t n, uint8_t *out);
} fi_resize_loops;

extern const fi_resize_loops fi_resize_avx2; /* of __x86_64__ alone */

#endif

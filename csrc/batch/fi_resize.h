/* Decoded pixels to an image of another size: crop, antialiased resize, mirror, layout and float32 in one pass.
 *
 * The filter is a triangle as wide as the reduction asks for, and of two pixels at least: that of Pillow's
 * `resize(BILINEAR)` and of torchvision's `antialias=True`, which round to 8 bits between rows and columns. Here
 * rows keep more bits meanwhile, so that both are at most 1 away. Each instruction set gives the same result.
 */
#ifndef FI_RESIZE_H
#define FI_RESIZE_H

#include "base/fi_base.h"
#include "base/fi_isa.h"

enum { FI_RESIZE_MOST = (1 << 28) - 1 }; /* pixels of a side, of an image and of a result */

typedef struct {
    const uint8_t *pixels; /* [height][width][3] */
    uint64_t height, width;
    double left, top, right, bottom; /* the box that is resized, in pixels; edges may lie within pixels */
    uint64_t size[2];                /* height and width of the result of the whole box */
    uint64_t corner[2], window[2];   /* top and left, height and width of the part of it that is made */
    bool mirror;                     /* exchange left and right of the window */
    bool planes;                     /* out is [3][h][w], else [h][w][3] */
    const float *table;              /* [3][256]: what becomes of each value; NULL: it stays */
    void *out;                       /* uint8_t, or float with a table */
} fi_resize_task;

/* Allocates the weights and some rows meanwhile: ENOMEM. FI_E_RANGE if the box does not lie within the pixels, the
 * window within the result, if a side is 0 or above FI_RESIZE_MOST, or for an instruction set (fi_isa(), or another
 * one for tests) that this processor lacks. */
int fi_resize(const fi_resize_task *task, int isa);

#endif

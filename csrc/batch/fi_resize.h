/* Decoded pixels to an image of another size: crop, antialiased resize, mirror, layout and the way to
 * float32 in one pass.
 *
 * The filter is a triangle as wide as the reduction asks for (of two pixels at least): what PIL's
 * `resize(BILINEAR)` and torchvision's `antialias=True` compute. First along the rows, rounded to 8 bits, then
 * along the columns. The result is the same with every instruction set.
 */
#ifndef FI_RESIZE_H
#define FI_RESIZE_H

#include "base/fi_base.h"

enum { FI_RESIZE_MOST = (1 << 28) - 1 }; /* pixels of a side, of an image and of a result */

typedef struct {
    const uint8_t *pixels; /* [height][width][3] */
    uint64_t height, width;
    double left, top, right, bottom; /* the box that is resized, in pixels; edges may be fractions */
    uint64_t size[2];                /* height and width of the result of the whole box */
    uint64_t corner[2];              /* of the window of that result which is computed: top, left */
    uint64_t window[2];              /* height and width of that */
    const float *table;              /* [3][256]: out is what it holds for each value; NULL: the values */
    void *out;                       /* [3][h][w] if planes, else [h][w][3]: uint8_t, or float with a table */
    bool planes, mirror;             /* mirror: left and right of the window are exchanged */
} fi_resize_task;

/* Whether box and window lie within pixels and result, and no side is 0 or more than FI_RESIZE_MOST. */
bool fi_resize_fits(const fi_resize_task *task);

/* Allocates some rows and the weights meanwhile. FI_E_RANGE for a task that does not fit, or an
 * instruction set (fi_isa(), or another one for tests) that this processor lacks; ENOMEM. */
int fi_resize(const fi_resize_task *task, int isa);

#endif

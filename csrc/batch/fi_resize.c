#include "batch/fi_resize.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "batch/fi_resize_loops.h"

/* Products and sums are rounded one by one on each machine. gcc does so when told -std=c11. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

enum {
    MOST_BITS = 22, /* of weights: 255 << 23, and a half that rounds, stay below 2^31 */
    ROW_BITS = 7,   /* behind the point, of rows that were resized along themselves, at most */
    LARGEST_WEIGHT = INT16_MAX - 1 /* the rounding of sums may add 1 */
};

/* A side of the box, and how it becomes a side of the result. */
typedef struct {
    uint64_t first, count;       /* pixels that it touches */
    double begin, scale, support; /* from the first pixel on; pixels for one of the result; on each side of a centre */
    uint64_t corner, n;          /* the window */
    bool mirror;
    fi_resize_axis axis;
} box_side;

/* A task with all that it has in memory meanwhile, in one block. */
typedef struct {
    const fi_resize_task *task;
    const fi_resize_loops *loops;
    box_side columns, rows;
    void *block;
    uint64_t used;
    double *exact;            /* weights of a result, while they are found */
    int16_t *ring;            /* the last rows that were resized along themselves */
    uint64_t ring_rows, stride, plane; /* in values */
    uint8_t *copies;          /* of rows of pixels that end too early for the loops, which read `reach` bytes */
    uint64_t reach;
    const int16_t **sources;  /* neighbours of a row of the result */
    uint8_t *values;          /* a row of the result, or a plane's, before the table */
} resizing;

/* False if the box does not lie within the pixels, or the window within the result. */
static bool take_side(box_side *side, double begin, double end, uint64_t pixels, uint64_t size)
{
    if (pixels > FI_RESIZE_MOST || size > FI_RESIZE_MOST || !(begin >= 0 && begin < end && end <= (double)pixels) ||
        side->corner >= size || side->n == 0 || side->n > size - side->corner)
        return false;
    side->first = (uint64_t)begin;
    side->count = (uint64_t)ceil(end) - side->first;
    side->begin = begin - (double)side->first;
    side->scale = (end - begin) / (double)size;
    side->support = side->scale > 1 ? side->scale : 1;
    side->axis.n = fi_align_up(side->n, FI_RESIZE_STEP);
    side->axis.taps = (uint32_t)fi_align_up(fi_min_u64((uint64_t)ceil(2 * side->support), side->count), 2);
    return true;
}

/* The integers are differences of the rounded sums so far: they are 2^shift in all, however many, and the errors of
 * neighbours do not add up. */
static void fill_axis(box_side *side, double *exact)
{
    /* A box holds the pixels within half a support of each centre, of which none counts less than half as much as
     * another. The window does not matter: its pixels are those of the whole result. */
    const double largest = fmin(1, 2 / floor(side->support)), rate = 1 / side->support;
    fi_resize_axis *const axis = &side->axis;

    axis->shift = MOST_BITS;
    while (largest * (1 << axis->shift) > LARGEST_WEIGHT)
        axis->shift--;
    for (uint64_t x = 0; x < axis->n; x++) { /* those that are not wanted are as the last one */
        const uint64_t place = fi_min_u64(x, side->n - 1);
        const uint64_t number = side->corner + (side->mirror ? side->n - 1 - place : place);
        const double centre = side->begin + ((double)number + 0.5) * side->scale;
        uint64_t end = (uint64_t)fmax(0, centre - side->support + 0.5);
        uint32_t n = 0;
        double total = 0, sum = 0;
        int32_t before = 0;

        for (; end < side->count && n < axis->taps; end++) { /* the pixel around the centre counts a half at least */
            const double weight = 1 - fabs((double)end + 0.5 - centre) * rate;
            if (weight > 0)
                total += exact[n++] = weight;
            else if (n > 0)
                break;
        }
        for (uint32_t k = 0; k < n; k++) {
            sum += exact[k] * (1 / total);
            const int32_t rounded = (int32_t)(sum * (1 << axis->shift) + 0.5);
            axis->weights[x * axis->taps + k] = (int16_t)(rounded - before);
            before = rounded;
        }
        axis->firsts[x] = (uint32_t)end - n;
        axis->counts[x] = n;
    }
}

/* The next part of the block; where there is none yet, this only counts. */
static void *part(resizing *work, uint64_t count, uint64_t size)
{
    void *const found = work->block == NULL ? NULL : (char *)work->block + work->used;

    work->used += fi_align_up(count * size, FI_CACHE_LINE);
    return found;
}

static void lay_axis(resizing *work, box_side *side)
{
    fi_resize_axis *const axis = &side->axis;

    axis->firsts = part(work, axis->n, sizeof *axis->firsts);
    axis->counts = part(work, axis->n, sizeof *axis->counts);
    axis->weights = part(work, axis->n * axis->taps, sizeof *axis->weights);
}

/* No product overflows: results times neighbours of an axis are below 2^34, rows times their values below 2^60. */
static void lay_out(resizing *work)
{
    box_side *const columns = &work->columns, *const rows = &work->rows;

    work->used = 0;
    work->plane = work->task->planes ? fi_align_up(columns->n, FI_RESIZE_VECTOR) : 0;
    work->stride = work->task->planes ? 3 * work->plane : fi_align_up(3 * columns->axis.n + 2, FI_RESIZE_VECTOR);
    work->ring_rows = fi_align_up(rows->axis.taps + FI_RESIZE_ROWS, FI_RESIZE_ROWS);
    work->reach = 3 * (columns->count + columns->axis.taps) + FI_RESIZE_LOADED;
    lay_axis(work, columns);
    lay_axis(work, rows);
    work->exact = part(work, fi_max_u64(columns->axis.taps, rows->axis.taps), sizeof *work->exact);
    work->ring = part(work, work->ring_rows * work->stride, sizeof *work->ring);
    work->copies = part(work, FI_RESIZE_ROWS * work->reach, 1);
    work->sources = part(work, rows->axis.taps, sizeof *work->sources);
    work->values = part(work, 3 * columns->n, 1);
}

/* FI_RESIZE_ROWS rows of the box from `row` on; the last one of the box repeats. */
static void resize_rows(const resizing *work, uint64_t row, int16_t *out)
{
    const fi_resize_task *const task = work->task;
    const uint8_t *rows[2 * FI_RESIZE_ROWS];

    for (uint64_t k = 0; k < 2 * FI_RESIZE_ROWS; k++) {
        const uint64_t number = work->rows.first + fi_min_u64(row + k, work->rows.count - 1);
        const uint64_t place = 3 * (number * task->width + work->columns.first);
        rows[k] = task->pixels + place;
        if (k < FI_RESIZE_ROWS && place + work->reach > 3 * task->height * task->width) /* near the end of the pixels */
            rows[k] = memcpy(work->copies + k * work->reach, rows[k], 3 * work->columns.count);
    }
    work->loops->across(&work->columns.axis, rows, out, work->stride, work->plane);
}

/* Row y of the result, or of each of its planes. */
static void resize_columns(const resizing *work, uint64_t y)
{
    const fi_resize_task *const task = work->task;
    const fi_resize_axis *const down = &work->rows.axis;
    const uint32_t pairs = (down->counts[y] + 1) / 2, channels = task->planes ? 1 : 3;
    const uint64_t n = channels * task->window[1];

    for (uint64_t c = 0; c < 3; c += channels) {
        const uint64_t place = (c * task->window[0] + y) * n;
        uint8_t *const values = task->table == NULL ? (uint8_t *)task->out + place : work->values;
        work->loops->down(work->sources, c * work->plane, down->weights + y * down->taps, pairs, down->shift, n,
                          values);
        if (task->table != NULL) {
            float *const out = (float *)task->out + place;
            for (uint64_t v = 0; v < n; v += channels) {
                for (uint64_t k = 0; k < channels; k++)
                    out[v + k] = task->table[256 * (c + k) + values[v + k]];
            }
        }
    }
}

static void resize(resizing *work)
{
    const fi_resize_axis *const down = &work->rows.axis;
    const uint64_t begin = down->firsts[0];
    uint64_t done = begin;

    for (uint64_t y = 0; y < work->rows.n; y++) {
        const uint64_t first = down->firsts[y], end = first + down->counts[y];
        for (; done < end; done += FI_RESIZE_ROWS)
            resize_rows(work, done, work->ring + (done - begin) % work->ring_rows * work->stride);
        for (uint64_t k = 0; k < fi_align_up(end - first, 2); k++) {
            const uint64_t number = fi_min_u64(first + k, end - 1) - begin;
            work->sources[k] = work->ring + number % work->ring_rows * work->stride;
        }
        resize_columns(work, y);
    }
}

/* The loops in plain C: what other processors run, and what defines the result. */
static void across(const fi_resize_axis *axis, const uint8_t *const *rows, int16_t *out, uint64_t stride,
                   uint64_t plane)
{
    const uint64_t next = plane == 0 ? 3 : 1, channel = plane == 0 ? 1 : plane;

    for (int k = 0; k < FI_RESIZE_ROWS; k++, out += stride) {
        for (uint64_t x = 0; x < axis->n; x++) {
            const uint8_t *const source = rows[k] + 3 * (uint64_t)axis->firsts[x];
            const int16_t *const weights = axis->weights + x * axis->taps;
            int32_t sums[3] = {1 << (axis->shift - 1), 1 << (axis->shift - 1), 1 << (axis->shift - 1)};
            for (uint32_t t = 0; t < axis->counts[x]; t++) {
                for (int c = 0; c < 3; c++)
                    sums[c] += weights[t] * source[3 * t + c];
            }
            for (int c = 0; c < 3; c++)
                out[x * next + c * channel] = (int16_t)(sums[c] >> axis->shift);
        }
    }
}

static void down(const int16_t *const *rows, uint64_t from, const int16_t *weights, uint32_t pairs, unsigned shift,
                 uint64_t n, uint8_t *out)
{
    enum { BLOCK = 64 };

    for (uint64_t begin = 0; begin < n; begin += BLOCK) {
        const uint64_t width = fi_min_u64(n - begin, BLOCK);
        int32_t sums[BLOCK];
        for (uint64_t v = 0; v < width; v++)
            sums[v] = 1 << (shift - 1);
        for (uint32_t p = 0; p < pairs; p++) {
            const int16_t *const upper = rows[2 * p] + from + begin, *const lower = rows[2 * p + 1] + from + begin;
            const int16_t first = weights[2 * p], second = weights[2 * p + 1];
            for (uint64_t v = 0; v < width; v++)
                sums[v] += first * upper[v] + second * lower[v];
        }
        for (uint64_t v = 0; v < width; v++)
            out[begin + v] = (uint8_t)(sums[v] >> shift);
    }
}

static const fi_resize_loops generic = {across, down};

int fi_resize(const fi_resize_task *task, int isa)
{
    resizing work = {.task = task, .loops = &generic,
                     .columns = {.corner = task->corner[1], .n = task->window[1], .mirror = task->mirror},
                     .rows = {.corner = task->corner[0], .n = task->window[0]}};

    if (!fi_has_isa(isa) || !take_side(&work.columns, task->left, task->right, task->width, task->size[1]) ||
        !take_side(&work.rows, task->top, task->bottom, task->height, task->size[0]))
        return FI_E_RANGE;
#ifdef __x86_64__
    if (isa >= FI_ISA_AVX2)
        work.loops = &fi_resize_avx2;
#endif
    lay_out(&work);
    work.block = calloc(1, work.used); /* weights that are not needed are 0, as what lies behind copies of rows */
    if (work.block == NULL)
        return ENOMEM;
    lay_out(&work);
    fill_axis(&work.columns, work.exact);
    fill_axis(&work.rows, work.exact);
    /* Rows keep as many bits as the sums of the columns leave. */
    const unsigned kept = (unsigned)fi_min_u64(MOST_BITS + 1 - work.rows.axis.shift, ROW_BITS);
    work.columns.axis.shift -= kept;
    work.rows.axis.shift += kept;
    resize(&work);
    free(work.block);
    return FI_OK;
}

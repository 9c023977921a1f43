#include "batch/fi_resize.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "batch/fi_resize_loops.h"
#include "order/fi_shuffle.h"

enum {
    MOST_BITS = 22, /* of weights: 255 << 23, and a half that rounds, stay below 2^31 */
    ROW_BITS = 7,   /* behind the point, of rows that were resized along themselves, at most */
    LARGEST_WEIGHT = INT16_MAX - 1 /* rounding may add 1 */
};

static const fi_resize_loops *loops_of(int isa)
{
    switch (isa) {
    case FI_ISA_GENERIC: return &fi_resize_generic;
#ifdef __x86_64__
    case FI_ISA_AVX2: return __builtin_cpu_supports("avx2") ? &fi_resize_avx2 : NULL;
    case FI_ISA_AVX512: return loops_of(FI_ISA_AVX2);
#endif
    default: return NULL;
    }
}

static bool is_side(uint64_t pixels)
{
    return pixels > 0 && pixels <= FI_RESIZE_MOST;
}

static bool window_fits(const fi_resize_task *task, int axis)
{
    return is_side(task->size[axis]) && is_side(task->window[axis]) && task->corner[axis] <= task->size[axis] &&
           task->window[axis] <= task->size[axis] - task->corner[axis];
}

bool fi_resize_fits(const fi_resize_task *task)
{
    return is_side(task->height) && is_side(task->width) && window_fits(task, 0) && window_fits(task, 1) &&
           task->left >= 0 && task->left < task->right && task->right <= (double)task->width &&
           task->top >= 0 && task->top < task->bottom && task->bottom <= (double)task->height;
}

/* A side of the box, and how it becomes a side of the result. */
typedef struct {
    uint64_t first, count;   /* pixels that it touches */
    double begin, scale;     /* in pixels from the first; pixels for one of the result */
    double support;          /* pixels on either side of a centre that count */
    uint64_t corner, n;      /* the window */
    bool mirror;
    uint64_t padded, most;   /* results with those that nobody wants; neighbours at most, even */
} box_side;

static box_side side_of(double begin, double end, uint64_t size, uint64_t corner, uint64_t n, bool mirror)
{
    box_side side = {.corner = corner, .n = n, .mirror = mirror};
    side.first = (uint64_t)begin;
    side.count = (uint64_t)ceil(end) - side.first;
    side.begin = begin - (double)side.first;
    side.scale = (end - begin) / (double)size;
    side.support = side.scale > 1 ? side.scale : 1;
    side.padded = fi_align_up(n, FI_RESIZE_STEP);
    side.most = fi_align_up(fi_min_u64((uint64_t)ceil(2 * side.support) + 1, side.count), 2);
    return side;
}

/* The weights of a result, which sum up to 1, without the zeros at their ends. */
static uint32_t weigh(const box_side *side, uint64_t number, double *weights, uint32_t *first)
{
    const double centre = side->begin + ((double)number + 0.5) * side->scale, rate = 1 / side->support;
    const double from = centre - side->support + 0.5, to = centre + side->support + 0.5;
    const uint64_t low = from > 0 ? fi_min_u64((uint64_t)from, side->count - 1) : 0;
    const uint64_t high = fi_min_u64((uint64_t)to, side->count);
    double total = 0;
    uint32_t n = 0;

    *first = (uint32_t)low;
    for (uint64_t k = low; k < high && n < side->most; k++) {
        const double weight = 1 - fabs((double)k + 0.5 - centre) * rate;
        if (weight > 0) {
            if (n == 0)
                *first = (uint32_t)k;
            weights[n++] = weight;
            total += weight;
        }
    }
    if (n == 0) { /* no rounding does that; a sum of 0 would */
        weights[n++] = 1;
        total = 1;
    }
    total = 1 / total;
    for (uint32_t k = 0; k < n; k++)
        weights[k] *= total;
    return n;
}

/* weights: room for side->most of each result. Integers are differences of the rounded sums so far: they sum
 * up to 2^shift whatever their number, and no error adds up. */
static void fill_axis(fi_resize_axis *axis, const box_side *side, double *weights)
{
    double largest = 0;
    uint32_t most = 0;

    axis->n = side->padded;
    for (uint64_t x = 0; x < side->n; x++) {
        double *const own = weights + x * side->most;
        const uint64_t number = side->corner + (side->mirror ? side->n - 1 - x : x);
        axis->counts[x] = weigh(side, number, own, &axis->firsts[x]);
        most = axis->counts[x] > most ? axis->counts[x] : most;
        for (uint32_t k = 0; k < axis->counts[x]; k++)
            largest = own[k] > largest ? own[k] : largest;
    }
    axis->taps = (uint32_t)fi_align_up(most, 2);
    for (axis->shift = MOST_BITS; largest * (1 << axis->shift) > LARGEST_WEIGHT; axis->shift--) {
    }
    memset(axis->weights, 0, axis->n * axis->taps * sizeof *axis->weights);
    for (uint64_t x = 0; x < side->n; x++) {
        double sum = 0;
        int32_t before = 0;
        for (uint32_t k = 0; k < axis->counts[x]; k++) {
            sum += weights[x * side->most + k];
            const int32_t rounded = (int32_t)(sum * (1 << axis->shift) + 0.5);
            axis->weights[x * axis->taps + k] = (int16_t)(rounded - before);
            before = rounded;
        }
    }
    for (uint64_t x = side->n; x < axis->n; x++) {
        axis->firsts[x] = axis->firsts[0];
        axis->counts[x] = 0;
    }
}

/* What a task has in memory meanwhile, in one block. */
typedef struct {
    void *block;
    fi_resize_axis across, down;
    double *weights;         /* of an axis, while it is filled */
    uint64_t ring_rows;      /* the last rows that were resized along themselves */
    uint64_t stride, plane;  /* of these, in values */
    int16_t *ring;
    uint64_t reach;          /* bytes of a row of pixels that loops may read, from the box's first */
    uint8_t *copies;         /* of rows that end too early */
    const int16_t **rows;    /* neighbours of a row of the result */
    uint8_t *line;           /* a row, or a plane's, before the table */
} workspace;

/* Hands out the next part of the block; only counts where there is none yet. */
static void *part(const workspace *work, uint64_t *used, uint64_t count, uint64_t size)
{
    void *const found = work->block == NULL ? NULL : (char *)work->block + *used;
    *used += fi_align_up(count * size, FI_CACHE_LINE);
    return found;
}

static uint64_t lay_axis(workspace *work, fi_resize_axis *axis, const box_side *side, uint64_t used)
{
    axis->firsts = part(work, &used, side->padded, sizeof *axis->firsts);
    axis->counts = part(work, &used, side->padded, sizeof *axis->counts);
    axis->weights = part(work, &used, side->padded * side->most, sizeof *axis->weights);
    return used;
}

/* Returns the bytes that it needs. No product overflows: neighbours times results are at most 4 times
 * FI_RESIZE_MOST and a few. */
static uint64_t lay_out(workspace *work, const fi_resize_task *task, const box_side *columns, const box_side *rows)
{
    uint64_t used = lay_axis(work, &work->down, rows, lay_axis(work, &work->across, columns, 0));

    work->plane = task->planes ? fi_align_up(columns->n, FI_RESIZE_VECTOR) : 0;
    work->stride = task->planes ? 3 * work->plane : fi_align_up(3 * columns->padded + 2, FI_RESIZE_VECTOR);
    work->ring_rows = fi_align_up(rows->most + FI_RESIZE_ROWS, FI_RESIZE_ROWS);
    work->reach = 3 * (columns->count + columns->most) + FI_RESIZE_LOADED;
    work->weights = part(work, &used, fi_max_u64(columns->n * columns->most, rows->n * rows->most), sizeof(double));
    work->ring = part(work, &used, work->ring_rows * work->stride, sizeof *work->ring);
    work->copies = part(work, &used, FI_RESIZE_ROWS * work->reach, 1);
    work->rows = part(work, &used, rows->most, sizeof *work->rows);
    work->line = part(work, &used, task->planes ? columns->n : 3 * columns->n, 1);
    return used;
}

/* FI_RESIZE_ROWS rows of pixels from row `row` on, of which the last repeats. */
static void resize_rows(const fi_resize_task *task, const workspace *work, const fi_resize_loops *loops,
                        const box_side *columns, const box_side *rows, uint64_t row, int16_t *out)
{
    const uint64_t bytes = 3 * task->height * task->width;
    const uint8_t *sources[FI_RESIZE_ROWS];

    for (uint64_t k = 0; k < FI_RESIZE_ROWS; k++) {
        const uint64_t number = rows->first + fi_min_u64(row + k, rows->count - 1);
        const uint64_t place = 3 * (number * task->width + columns->first);
        sources[k] = task->pixels + place;
        if (place + work->reach > bytes) { /* near the end of the pixels */
            uint8_t *const copy = work->copies + k * work->reach;
            memcpy(copy, sources[k], 3 * columns->count);
            memset(copy + 3 * columns->count, 0, work->reach - 3 * columns->count);
            sources[k] = copy;
        }
    }
    loops->across(&work->across, sources, out, work->stride, work->plane);
}

/* A row of the result, or a plane's of it. */
static void write_row(const fi_resize_task *task, uint64_t place, uint64_t n, const uint8_t *values, int channel)
{
    float *const out = (float *)task->out + place;

    if (task->planes) {
        const float *const table = task->table + 256 * channel;
        for (uint64_t b = 0; b < n; b++)
            out[b] = table[values[b]];
    } else {
        for (uint64_t b = 0; b < n; b += 3) {
            for (int c = 0; c < 3; c++)
                out[b + (uint64_t)c] = task->table[256 * c + values[b + (uint64_t)c]];
        }
    }
}

static void resize_columns(const fi_resize_task *task, const workspace *work, const fi_resize_loops *loops,
                           uint64_t y)
{
    const fi_resize_axis *const down = &work->down;
    const int16_t *const weights = down->weights + y * down->taps;
    const uint32_t pairs = (down->counts[y] + 1) / 2;
    const int channels = task->planes ? 3 : 1;
    const uint64_t n = task->planes ? task->window[1] : 3 * task->window[1];

    for (int c = 0; c < channels; c++) {
        const uint64_t place = ((uint64_t)c * task->window[0] + y) * n;
        uint8_t *const out = task->table == NULL ? (uint8_t *)task->out + place : work->line;
        loops->down(work->rows, (uint64_t)c * work->plane, weights, pairs, down->shift, n, out);
        if (task->table != NULL)
            write_row(task, place, n, out, c);
    }
}

int fi_resize(const fi_resize_task *task, int isa)
{
    const fi_resize_loops *const loops = loops_of(isa);
    workspace work = {.block = NULL};

    if (loops == NULL || !fi_resize_fits(task))
        return FI_E_RANGE;
    const box_side columns = side_of(task->left, task->right, task->size[1], task->corner[1],
                                     task->window[1], task->mirror);
    const box_side rows = side_of(task->top, task->bottom, task->size[0], task->corner[0],
                                  task->window[0], false);
    work.block = malloc(lay_out(&work, task, &columns, &rows));
    if (work.block == NULL)
        return ENOMEM;
    lay_out(&work, task, &columns, &rows);
    fill_axis(&work.across, &columns, work.weights);
    fill_axis(&work.down, &rows, work.weights);
    /* Rows keep as many bits as the columns' sums have left, which differ little from those of exact rows. */
    const unsigned kept = (unsigned)fi_min_u64(MOST_BITS + 1 - work.down.shift, ROW_BITS);
    work.across.shift -= kept;
    work.down.shift += kept;

    const fi_resize_axis *const down = &work.down;
    const uint64_t begin = down->firsts[0];
    uint64_t done = begin;
    for (uint64_t y = 0; y < task->window[0]; y++) {
        const uint64_t first = down->firsts[y], end = first + down->counts[y];
        for (; done < end; done += FI_RESIZE_ROWS) {
            resize_rows(task, &work, loops, &columns, &rows, done,
                        work.ring + (done - begin) % work.ring_rows * work.stride);
        }
        for (uint64_t k = 0; k < fi_align_up(end - first, 2); k++) {
            const uint64_t number = fi_min_u64(first + k, end - 1);
            work.rows[k] = work.ring + (number - begin) % work.ring_rows * work.stride;
        }
        resize_columns(task, &work, loops, y);
    }
    free(work.block);
    return FI_OK;
}

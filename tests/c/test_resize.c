/* fi_resize against the plainest possible version of itself, in exact numbers: random boxes, sizes and windows, by
 * each instruction set, with guard bytes around the output and pixels that end where their memory does. Aborts at the
 * first broken promise. Equality with Pillow and torchvision is tested from Python. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "batch/fi_resize.h"
#include "check.h"
#include "guarded.h"

static double triangle(double x)
{
    return fabs(x) < 1 ? 1 - fabs(x) : 0;
}

/* The weight of pixel k, of those that the box touches, for result i of a side; not yet 1 in all. */
static double weight_of(double begin, double end, uint64_t size, uint64_t i, uint64_t k)
{
    const double scale = (end - begin) / (double)size, support = scale > 1 ? scale : 1;
    const double centre = begin + ((double)i + 0.5) * scale;
    const bool touched = (double)k >= floor(begin) && (double)k < ceil(end);

    return touched ? triangle(((double)k + 0.5 - centre) / support) : 0;
}

/* Channel c of pixel (y, x) of the whole result. */
static double exact(const fi_resize_task *task, uint64_t y, uint64_t x, int c)
{
    double sum = 0, total = 0;

    for (uint64_t j = 0; j < task->height; j++) {
        const double down = weight_of(task->top, task->bottom, task->size[0], y, j);
        for (uint64_t i = 0; down > 0 && i < task->width; i++) {
            const double weight = down * weight_of(task->left, task->right, task->size[1], x, i);
            sum += weight * task->pixels[3 * (j * task->width + i) + (uint64_t)c];
            total += weight;
        }
    }
    return sum / total;
}

static uint64_t place_of(const fi_resize_task *task, uint64_t y, uint64_t x, int c)
{
    const uint64_t h = task->window[0], w = task->window[1];

    return task->planes ? ((uint64_t)c * h + y) * w + x : 3 * (y * w + x) + (uint64_t)c;
}

/* Runs the task by each instruction set. Returns what came, which is the same of all; as bytes if there is a table. */
static unsigned char *result_of(fi_resize_task task)
{
    const size_t values = 3 * task.window[0] * task.window[1];
    const size_t bytes = values * (task.table == NULL ? 1 : sizeof(float));
    unsigned char *first = NULL;

    for (int isa = 0; isa < FI_ISA_COUNT; isa++) {
        unsigned char *const block = guarded(bytes);
        task.out = block + GUARD;
        CHECK_EQ(fi_resize(&task, isa), fi_has_isa(isa) ? FI_OK : FI_E_RANGE);
        check_guards(block, bytes);
        if (first == NULL)
            first = block;
        else if (fi_has_isa(isa))
            CHECK(memcmp(block, first, bytes + 2 * GUARD) == 0);
        if (first != block)
            free(block);
    }
    memmove(first, first + GUARD, bytes);
    return first;
}

static void check_values(const fi_resize_task *task, double tolerance)
{
    unsigned char *const result = result_of(*task);

    for (uint64_t y = 0; y < task->window[0]; y++) {
        for (uint64_t x = 0; x < task->window[1]; x++) {
            const uint64_t column = task->corner[1] + (task->mirror ? task->window[1] - 1 - x : x);
            for (int c = 0; c < 3; c++) {
                const double due = exact(task, task->corner[0] + y, column, c);
                CHECK(fabs(result[place_of(task, y, x, c)] - due) <= 0.5 + tolerance);
            }
        }
    }
    free(result);
}

static double random_edge(uint64_t side)
{
    return random_below(2) ? (double)random_below(side + 1) : (double)random_below(1000 * side + 1) / 1000;
}

/* A box that is not empty; narrower than a pixel now and then. */
static void draw_edges(uint64_t side, double *begin, double *end)
{
    do {
        *begin = random_edge(side);
        *end = random_below(8) ? random_edge(side) : fmin(*begin + 1e-9, (double)side);
    } while (!(*begin < *end));
}

static fi_resize_task random_task(uint64_t most)
{
    fi_resize_task task = {.height = 1 + random_below(most), .width = 1 + random_below(most)};

    draw_edges(task.width, &task.left, &task.right);
    draw_edges(task.height, &task.top, &task.bottom);
    for (int axis = 0; axis < 2; axis++) {
        task.size[axis] = 1 + random_below(random_below(4) ? most : 3);
        task.corner[axis] = random_below(2) * random_below(task.size[axis]);
        task.window[axis] = random_below(2) ? task.size[axis] - task.corner[axis]
                                            : 1 + random_below(task.size[axis] - task.corner[axis]);
    }
    task.planes = random_below(2);
    task.mirror = random_below(2);
    task.pixels = random_bytes(3 * task.height * task.width);
    return task;
}

static void test_random_tasks(uint64_t most, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        const fi_resize_task task = random_task(most);
        check_values(&task, 0.05);
        free((void *)(uintptr_t)task.pixels);
    }
}

/* Stripes and noise, many to few, also where the rows keep one bit behind the point. */
static void test_large_reductions(void)
{
    static const uint64_t sides[][4] = {{4000, 1, 1, 1}, {1, 4000, 1, 1}, {4000, 3, 2, 2}, {2, 9000, 1, 7}};

    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++) {
        for (int period = 1; period < 6; period++) {
            const uint64_t height = sides[k][0], width = sides[k][1];
            unsigned char *pixels = random_bytes(3 * height * width);
            for (uint64_t v = 0; period > 1 && v < 3 * height * width; v++)
                pixels[v] = v / 3 % (uint64_t)period == 0 ? 255 : 0;
            check_values(&(fi_resize_task){.pixels = pixels, .height = height, .width = width,
                                           .right = (double)width, .bottom = (double)height,
                                           .size = {sides[k][2], sides[k][3]},
                                           .window = {sides[k][2], sides[k][3]}, .planes = true}, 0.3);
            free(pixels);
        }
    }
}

static void test_what_stays_as_it_is(void)
{
    for (int round = 0; round < 200; round++) {
        fi_resize_task task = random_task(60);
        memset((void *)(uintptr_t)task.pixels, round, 3 * task.height * task.width);
        unsigned char *result = result_of(task);
        for (uint64_t v = 0; v < 3 * task.window[0] * task.window[1]; v++)
            CHECK_EQ(result[v], round);
        free(result);
        free((void *)(uintptr_t)task.pixels);

        task = random_task(60); /* whole pixels, as many as there are */
        task.left = floor(task.left), task.top = floor(task.top);
        task.right = ceil(task.right), task.bottom = ceil(task.bottom);
        task.size[0] = task.window[0] = (uint64_t)(task.bottom - task.top);
        task.size[1] = task.window[1] = (uint64_t)(task.right - task.left);
        task.corner[0] = task.corner[1] = 0;
        check_values(&task, -0.5);
        free((void *)(uintptr_t)task.pixels);
    }
}

static void test_tables(void)
{
    static float table[3][256];

    for (int v = 0; v < 3 * 256; v++)
        table[v / 256][v % 256] = (float)(v * 7 % 1000) / 3;
    for (int round = 0; round < 100; round++) {
        fi_resize_task task = random_task(40);
        unsigned char *const values = result_of(task);
        task.table = *table;
        float *const found = (float *)(void *)result_of(task);
        for (uint64_t y = 0; y < task.window[0]; y++) {
            for (uint64_t x = 0; x < task.window[1]; x++) {
                for (int c = 0; c < 3; c++) {
                    const uint64_t place = place_of(&task, y, x, c);
                    CHECK(found[place] == table[c][values[place]]);
                }
            }
        }
        free(found);
        free(values);
        free((void *)(uintptr_t)task.pixels);
    }
}

static void test_what_does_not_fit(void)
{
    static const unsigned char pixels[3 * 4 * 5];
    unsigned char out[3 * 2 * 2];
    const fi_resize_task good = {.pixels = pixels, .height = 4, .width = 5, .right = 5, .bottom = 4, .size = {3, 3},
                                 .corner = {1, 1}, .window = {2, 2}, .out = out};
    const double edges[] = {-1e-9, NAN, INFINITY, -INFINITY, 5.5, 1e300};
    const uint64_t sides[] = {0, FI_RESIZE_MOST + 1ull, UINT64_MAX, UINT64_MAX / 2};

    CHECK_EQ(fi_resize(&good, fi_isa()), FI_OK);
    CHECK_EQ(fi_resize(&good, FI_ISA_COUNT), FI_E_RANGE);
    CHECK_EQ(fi_resize(&good, -1), FI_E_RANGE);
    for (size_t k = 0; k < sizeof edges / sizeof *edges; k++) {
        for (size_t edge = 0; edge < 4; edge++) {
            fi_resize_task task = good;
            *(&task.left + edge) = edges[k];
            CHECK_EQ(fi_resize(&task, fi_isa()), FI_E_RANGE);
        }
    }
    for (size_t k = 0; k < sizeof sides / sizeof *sides; k++) {
        for (int axis = 0; axis < 2; axis++) {
            fi_resize_task task = good;
            task.size[axis] = sides[k];
            CHECK_EQ(fi_resize(&task, fi_isa()), FI_E_RANGE);
            task = good;
            task.window[axis] = sides[k];
            CHECK_EQ(fi_resize(&task, fi_isa()), FI_E_RANGE);
            task = good;
            task.corner[axis] = sides[k] == 0 ? 2 : sides[k];
            CHECK_EQ(fi_resize(&task, fi_isa()), FI_E_RANGE);
            task = good;
            *(axis ? &task.width : &task.height) = sides[k];
            CHECK_EQ(fi_resize(&task, fi_isa()), FI_E_RANGE);
        }
    }
}

int main(void)
{
    test_what_does_not_fit();
    test_random_tasks(6, 20000);
    test_random_tasks(50, 1500);
    test_large_reductions();
    test_what_stays_as_it_is();
    test_tables();
    return 0;
}

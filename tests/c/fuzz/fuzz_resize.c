/* Fuzz target: resizing by a task whose every number comes from the input. Refused, or the same
 * bytes by each instruction set, and none written or read beyond. */
#include <stdlib.h>
#include <string.h>

#include "batch/fi_resize.h"
#include "check.h"
#include "fuzz.h"
#include "guarded.h"

#define MOST 4096u /* pixels of an image, and of a result */

/* Any bits, or a place within a side. */
static double edge(fuzz_input *in, uint64_t side)
{
    double number;
    uint64_t bits;

    if (fuzz_u8(in) % 4 > 0)
        return (double)side * fuzz_u32(in) / UINT32_MAX;
    bits = fuzz_u64(in);
    memcpy(&number, &bits, sizeof number);
    return number;
}

static uint64_t side(fuzz_input *in)
{
    return fuzz_u8(in) % 8 > 0 ? fuzz_u8(in) % 64 : fuzz_u64(in) >> fuzz_u8(in) % 64;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float table[3 * 256];
    fuzz_input in = {data, size};
    fi_resize_task task = {.height = side(&in), .width = side(&in)};
    const uint8_t flags = fuzz_u8(&in);

    task.mirror = flags & 1, task.planes = flags & 2, task.table = flags & 4 ? table : NULL;
    task.left = edge(&in, task.width), task.right = edge(&in, task.width);
    task.top = edge(&in, task.height), task.bottom = edge(&in, task.height);
    for (int axis = 0; axis < 2; axis++)
        task.size[axis] = side(&in), task.corner[axis] = side(&in), task.window[axis] = side(&in);
    for (int v = 0; v < 3 * 256; v++)
        table[v] = (float)v;
    /* Larger ones take long, and teach nothing. */
    if (task.height > MOST || task.width > MOST || task.height * task.width > MOST || task.window[0] > MOST ||
        task.window[1] > MOST || task.window[0] * task.window[1] > MOST)
        return 0;

    const size_t n = 3 * task.height * task.width;
    const size_t bytes = 3 * task.window[0] * task.window[1] * (task.table ? sizeof *table : 1);
    uint8_t *const pixels = malloc(n + (n == 0)); /* ends where its memory does */
    unsigned char *first = NULL;
    CHECK(pixels != NULL);
    for (size_t k = 0; k < n; k++)
        pixels[k] = fuzz_u8(&in);
    task.pixels = pixels;
    int status = FI_OK;
    for (int isa = 0; isa < FI_ISA_COUNT; isa++) {
        if (!fi_has_isa(isa))
            continue;
        unsigned char *const block = guarded(bytes);
        task.out = block + GUARD;
        const int rc = fi_resize(&task, isa);
        CHECK(rc == FI_OK || rc == FI_E_RANGE);
        check_guards(block, bytes);
        if (first == NULL)
            first = block, status = rc;
        CHECK_EQ(rc, status);
        CHECK(memcmp(block, first, bytes + 2 * GUARD) == 0);
        if (block != first)
            free(block);
    }
    free(first);
    free(pixels);
    return 0;
}

/* Fuzz target: the table of ragged rows in a slot, and the padding of what it tells of. Whatever the
 * table holds, no byte outside of the payload is read, and none outside of the output written. */
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "base/fi_base.h"
#include "batch/fi_batch.h"
#include "fuzz.h"

enum { PAYLOAD = 1024, MOST_ROWS = 8, MOST_NDIM = 4, MOST_OUTPUT = 1 << 16 };

static int64_t small_or_any(fuzz_input *in)
{
    uint8_t kind = fuzz_u8(in);
    if (kind < 224)
        return kind % 20;
    return (int64_t)(kind < 240 ? fuzz_u64(in) : (UINT64_C(1) << kind % 64) - fuzz_u8(in));
}

static void pad(char *payload, int64_t *entries, int ndim, size_t itemsize, size_t n, bool filled)
{
    const void *sources[MOST_ROWS];
    int64_t shapes[MOST_ROWS * MOST_NDIM], shape[MOST_NDIM];
    uint64_t stride = (uint64_t)(1 + ndim) * sizeof(int64_t);
    if (fi_ragged_rows(payload, PAYLOAD, (char *)entries, stride, ndim, itemsize, n, sources,
                       shapes) != FI_OK)
        return;
    for (size_t row = 0; row < n; row++) {
        uint64_t bytes = fi_array_bytes(shapes + row * (size_t)ndim, ndim, itemsize);
        const char *source = sources[row];
        CHECK(source >= payload && bytes <= (uint64_t)(payload + PAYLOAD - source));
    }
    if (fi_pad_shape(shape, ndim, shapes, n) != FI_OK)
        return;
    uint64_t bytes = fi_array_bytes(shape, ndim, n * itemsize);
    if (bytes > MOST_OUTPUT)
        return;
    char *output = malloc(bytes ? bytes : 1), fill[16] = {7};
    CHECK(output);
    if (filled || memcmp(shape, shapes, sizeof *shape * (size_t)ndim) == 0)
        (void)fi_pad(output, shape, ndim, itemsize, sources, shapes, n, fill);
    free(output);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    static const size_t itemsizes[] = {1, 2, 4, 8, 16, 3};
    int ndim = fuzz_u8(&in) % (MOST_NDIM + 1);
    size_t itemsize = itemsizes[fuzz_u8(&in) % 6], n = 1 + fuzz_u8(&in) % MOST_ROWS;
    bool filled = fuzz_u8(&in) & 1;
    /* Of these very sizes: a sanitizer sees what is read beyond them. */
    char *payload = calloc(1, PAYLOAD);
    int64_t *entries = malloc(n * (size_t)(1 + ndim) * sizeof *entries);
    CHECK(payload && entries);
    for (size_t i = 0; i < n * (size_t)(1 + ndim); i++)
        entries[i] = small_or_any(&in);
    pad(payload, entries, ndim, itemsize, n, filled);
    free(payload);
    free(entries);
    return 0;
}

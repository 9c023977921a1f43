/* fi_batch against the plainest possible version of itself, on random shapes, with guard bytes
 * around every output. Aborts at the first broken promise. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "guarded.h"
#include "base/fi_base.h"
#include "batch/fi_batch.h"
#include "batch/fi_gather.h"

static size_t product(const int64_t *shape, int ndim)
{
    size_t count = 1;
    for (int d = 0; d < ndim; d++) {
        count *= (size_t)shape[d];
    }
    return count;
}

/* Each element of the output decides by its coordinates where it comes from. */
static void naive_pad(unsigned char *dst, const int64_t *dst_shape, int ndim, size_t itemsize,
                      const void *const *src, const int64_t *src_shapes, size_t n,
                      const void *fill)
{
    const size_t row = product(dst_shape, ndim);

    for (size_t i = 0; i < n; i++) {
        const int64_t *shape = src_shapes + i * (size_t)ndim;
        for (size_t element = 0; element < row; element++) {
            size_t rest = element, offset = 0, weight = 1;
            int inside = 1;
            for (int d = ndim - 1; d >= 0; d--) {
                const size_t coordinate = rest % (size_t)dst_shape[d];
                rest /= (size_t)dst_shape[d];
                inside = inside && coordinate < (size_t)shape[d];
                offset += coordinate * weight;
                weight *= (size_t)shape[d];
            }
            memcpy(dst + (i * row + element) * itemsize,
                   inside ? (const unsigned char *)src[i] + offset * itemsize : fill, itemsize);
        }
    }
}

static void test_gather_of_every_size(void)
{
    for (size_t item = 0; item <= 300; item++) {
        const size_t n = random_below(9);
        const void *src[8];
        unsigned char *out = guarded(n * item);
        for (size_t i = 0; i < n; i++) {
            src[i] = random_bytes(item);
        }
        fi_gather(out + GUARD, item, src, n);
        check_guards(out, n * item);
        for (size_t i = 0; i < n; i++) {
            CHECK(memcmp(out + GUARD + i * item, src[i], item) == 0);
            free((void *)(uintptr_t)src[i]);
        }
        free(out);
    }
}

/* Lengths that agree in some dimensions and are zero in some, so that every way is taken. */
static void random_shapes(int64_t *shapes, int ndim, size_t n)
{
    for (int d = 0; d < ndim; d++) {
        const int64_t most = 1 + (int64_t)random_below(ndim > 3 ? 3 : 9);
        const int kind = (int)random_below(4);
        for (size_t i = 0; i < n; i++) {
            shapes[i * (size_t)ndim + (size_t)d] =
                kind < 2 ? most : (int64_t)random_below((uint64_t)most + 1);
        }
    }
}

static void random_fill(unsigned char *fill, size_t itemsize)
{
    const unsigned char byte = (unsigned char)random_below(256);
    const int uniform = random_below(2) == 0;
    for (size_t b = 0; b < itemsize; b++) {
        fill[b] = uniform ? byte : (unsigned char)random_below(256);
    }
}

static void check_pad(int ndim, size_t itemsize, size_t n, int64_t *shapes, const int64_t *dst_shape)
{
    const void *src[8] = {NULL};
    unsigned char fill[40];
    const size_t bytes = n * product(dst_shape, ndim) * itemsize;
    unsigned char *out = guarded(bytes);
    unsigned char *expected = guarded(bytes);

    random_fill(fill, itemsize);
    for (size_t i = 0; i < n; i++) {
        src[i] = random_bytes(product(shapes + i * (size_t)ndim, ndim) * itemsize);
    }
    fi_pad(out + GUARD, dst_shape, ndim, itemsize, src, shapes, n, fill);
    naive_pad(expected + GUARD, dst_shape, ndim, itemsize, src, shapes, n, fill);
    CHECK(memcmp(out, expected, bytes + 2 * GUARD) == 0);
    for (size_t i = 0; i < n; i++) {
        free((void *)(uintptr_t)src[i]);
    }
    free(out);
    free(expected);
}

static void test_pad_of_random_shapes(void)
{
    static const size_t itemsizes[] = {1, 2, 3, 4, 8, 12, 16, 32};

    for (int round = 0; round < 20000; round++) {
        const int ndim = (int)random_below(6);
        const size_t n = 1 + random_below(5);
        const size_t itemsize = itemsizes[random_below(8)];
        int64_t shapes[8 * 6], dst_shape[6];

        random_shapes(shapes, ndim, n);
        CHECK(fi_pad_shape(dst_shape, ndim, shapes, n) == FI_OK);
        if (ndim > 0 && random_below(3) == 0) { /* room beyond the largest source */
            dst_shape[random_below((uint64_t)ndim)] += (int64_t)random_below(3);
        }
        check_pad(ndim, itemsize, n, shapes, dst_shape);
    }
}

static void test_pad_of_most_dimensions(void)
{
    int64_t shapes[2 * FI_MOST_NDIM], dst_shape[FI_MOST_NDIM];

    for (int d = 0; d < FI_MOST_NDIM; d++) {
        shapes[d] = d % 4 == 0 ? 2 : 1;
        shapes[FI_MOST_NDIM + d] = d % 8 == 0 ? 2 : 1;
    }
    CHECK(fi_pad_shape(dst_shape, FI_MOST_NDIM, shapes, 2) == FI_OK);
    check_pad(FI_MOST_NDIM, 2, 2, shapes, dst_shape);
}

static void test_pad_shape_is_the_maximum(void)
{
    const int64_t shapes[] = {3, 0, 7, 1, 5, 7};
    int64_t out[FI_MOST_NDIM];

    CHECK(fi_pad_shape(out, 3, shapes, 2) == FI_OK);
    CHECK(out[0] == 3 && out[1] == 5 && out[2] == 7);
    CHECK(fi_pad_shape(out, 0, shapes, 2) == FI_OK);
}

static void test_refused_shapes(void)
{
    const int64_t wide[] = {4}, negative[] = {-1};
    int64_t shape[FI_MOST_NDIM];

    CHECK(fi_pad_shape(shape, -1, wide, 1) == FI_E_RANGE);
    CHECK(fi_pad_shape(shape, FI_MOST_NDIM + 1, wide, 1) == FI_E_RANGE);
    CHECK(fi_pad_shape(shape, 1, wide, 0) == FI_E_RANGE);
    CHECK(fi_pad_shape(shape, 1, negative, 1) == FI_E_RANGE);
}

/* An empty row with a huge length must neither overflow nor be looped over. */
static void test_empty_rows_of_huge_length(void)
{
    const int64_t dst_shape[] = {INT64_MAX / 2, 0, 5};
    const int64_t shapes[] = {INT64_MAX / 2, 0, 3, 0, 0, 5};
    const void *src[] = {NULL, NULL};
    const double fill = 1.5;

    fi_pad(NULL, dst_shape, 3, sizeof fill, src, shapes, 2, &fill);
}

static void test_empty_sources_may_be_null(void)
{
    const int64_t dst_shape[] = {2, 3};
    const int64_t shapes[] = {0, 3, 2, 0};
    const void *src[] = {NULL, NULL};
    const float fill = 1.5f;
    float out[12];

    fi_pad(out, dst_shape, 2, sizeof fill, src, shapes, 2, &fill);
    for (int i = 0; i < 12; i++) {
        CHECK(out[i] == fill);
    }
}

int main(void)
{
    test_gather_of_every_size();
    test_pad_of_random_shapes();
    test_pad_of_most_dimensions();
    test_pad_shape_is_the_maximum();
    test_refused_shapes();
    test_empty_rows_of_huge_length();
    test_empty_sources_may_be_null();
    return 0;
}

/* fi_copy_strided against a loop over all elements; fi_copy_uncached and fi_fill_uncached, at every alignment of either side, with guard bytes around.
 * Aborts at the first broken promise. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "batch/fi_copy.h"
#include "os/fi_platform.h"

enum { GUARD = 64, GUARD_BYTE = 0xA5, LINE = 64 };

static void check_copy(size_t bytes, size_t target_offset, size_t source_offset)
{
    unsigned char *target = aligned_alloc(LINE, (bytes + 4 * GUARD + LINE) / LINE * LINE);
    unsigned char *source = malloc(bytes + source_offset + 1);
    unsigned char *out = target + GUARD + target_offset;

    CHECK(target != NULL && source != NULL);
    for (size_t i = 0; i < bytes; i++) {
        source[source_offset + i] = (unsigned char)(i * 131 + bytes);
    }
    memset(target, GUARD_BYTE, bytes + 2 * GUARD + target_offset);
    fi_copy_uncached(out, source + source_offset, bytes);
    CHECK(memcmp(out, source + source_offset, bytes) == 0);
    for (size_t i = 0; i < GUARD + target_offset; i++) {
        CHECK_EQ(target[i], GUARD_BYTE);
    }
    for (size_t i = 0; i < GUARD; i++) {
        CHECK_EQ(out[bytes + i], GUARD_BYTE);
    }
    free(source);
    free(target);
}

static void check_fill(size_t bytes, size_t offset)
{
    unsigned char *target = aligned_alloc(LINE, (bytes + 4 * GUARD + LINE) / LINE * LINE);
    unsigned char *out = target + GUARD + offset, line[LINE];

    CHECK(target != NULL);
    for (size_t i = 0; i < LINE; i++) {
        line[i] = (unsigned char)(i * 3 + 1);
    }
    memset(target, GUARD_BYTE, bytes + 2 * GUARD + offset);
    fi_fill_uncached(out, line, bytes);
    for (size_t i = 0; i < bytes; i++) {
        CHECK_EQ(out[i], line[i % LINE]);
    }
    for (size_t i = 0; i < GUARD + offset; i++) {
        CHECK_EQ(target[i], GUARD_BYTE);
    }
    for (size_t i = 0; i < GUARD; i++) {
        CHECK_EQ(out[bytes + i], GUARD_BYTE);
    }
    free(target);
}

static void test_every_alignment(void)
{
    static const size_t sizes[] = {0, 1, 15, 63, 64, 65, 127, 128, 200, 4095, 4096, 4097, 150528};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t target_offset = 0; target_offset < LINE; target_offset++) {
            check_copy(sizes[i], target_offset, 0);
            check_copy(sizes[i], target_offset, target_offset * 7 % 17);
            check_copy(sizes[i], 0, target_offset);
            check_fill(sizes[i], target_offset);
        }
    }
}

static void test_either_way(void)
{
    static char from[2 * FI_UNCACHED_LEAST], to[sizeof from];

    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (char)i;
    }
    for (int uncached = 0; uncached < 2; uncached++) {
        memset(to, 0, sizeof to);
        fi_copy(to, from, sizeof from, uncached);
        CHECK(memcmp(to, from, sizeof from) == 0);
    }
}

/* Axes in any order, some of them reversed, with steps between elements. */
static void test_strided(void)
{
    enum { MOST = 4 };
    static unsigned char source[1 << 20], target[1 << 16], wanted[1 << 16];
    uint64_t random = 9;
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int round = 0; round < 20000; round++) {
        int64_t dims[MOST], strides[MOST], step, elements = 1;
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        int ndim = (int)(random >> 60) % (MOST + 1);
        size_t itemsize = 1 + (size_t)(random >> 50) % 17;
        const unsigned char *from = source;
        step = (int64_t)itemsize;
        for (int i = 0; i < ndim; i++) {
            int axis = random >> 40 & 1 ? i : ndim - 1 - i;
            dims[axis] = (int64_t)((random >> (4 * i)) % 6);
            strides[axis] = step;
            step *= dims[axis] + (int64_t)(random >> (30 + i) & 1);
            step += step == 0;
            if (random >> (34 + i) & 1) {
                from += dims[axis] > 0 ? (dims[axis] - 1) * strides[axis] : 0;
                strides[axis] = -strides[axis];
            }
            elements *= dims[axis];
        }
        for (int64_t i = 0; i < elements; i++) {
            int64_t left = i;
            const unsigned char *at = from;
            for (int axis = ndim - 1; axis >= 0; left /= dims[axis--])
                at += left % dims[axis] * strides[axis];
            memcpy(wanted + (size_t)i * itemsize, at, itemsize);
        }
        memset(target, GUARD_BYTE, (size_t)elements * itemsize + GUARD);
        fi_copy_strided(target, from, ndim, dims, strides, itemsize);
        CHECK(memcmp(target, wanted, (size_t)elements * itemsize) == 0);
        for (size_t i = 0; i < GUARD; i++)
            CHECK_EQ(target[(size_t)elements * itemsize + i], GUARD_BYTE);
    }
}

static void test_what_outruns_the_cache(void)
{
    const uint64_t cache = fi_processor_cache_bytes();

    CHECK(cache >= 1 << 15);
    CHECK_EQ(cache, fi_processor_cache_bytes());
    CHECK(!fi_outruns_cache(0, 5));
    CHECK(!fi_outruns_cache(cache / 5, 5));
    CHECK(fi_outruns_cache(cache / 5 + 1, 5));
    CHECK(!fi_outruns_cache(cache, 1));
    CHECK(!fi_outruns_cache(cache, 0));
    CHECK(fi_outruns_cache(cache + 1, 0));
    CHECK(fi_outruns_cache(1, UINT64_MAX));
}

int main(void)
{
    test_strided();
    test_every_alignment();
    test_either_way();
    test_what_outruns_the_cache();
    return 0;
}

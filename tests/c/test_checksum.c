/* fi_checksum notices what it is there for. Aborts at the first broken promise. */
#include <string.h>

#include "check.h"
#include "base/fi_checksum.h"

enum { MOST = 200 };

static void fill(unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)(i * 37 + 11);
}

static void test_every_bit_counts(void)
{
    for (size_t count = 0; count <= MOST; count++) {
        unsigned char *bytes = malloc(count ? count : 1); /* so that a sanitizer sees overreading */
        CHECK(bytes);
        fill(bytes, count);
        uint64_t sum = fi_checksum(bytes, count, 5);
        CHECK(sum != 0 && sum == fi_checksum(bytes, count, 5));
        CHECK(sum != fi_checksum(bytes, count, 6));
        for (size_t bit = 0; bit < 8 * count; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            CHECK(fi_checksum(bytes, count, 5) != sum);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        free(bytes);
    }
}

static void test_length_counts(void)
{
    static const unsigned char zeros[MOST];
    for (size_t count = 0; count < MOST; count++)
        CHECK(fi_checksum(zeros, count, 0) != fi_checksum(zeros, count + 1, 0));
}

static void test_order_counts(void)
{
    unsigned char one[128], other[128];
    fill(one, sizeof one);
    for (size_t a = 0; a < sizeof one; a += 8)
        for (size_t b = 0; b < a; b += 8) {
            memcpy(other, one, sizeof one);
            memcpy(other + a, one + b, 8);
            memcpy(other + b, one + a, 8);
            CHECK(fi_checksum(one, sizeof one, 1) != fi_checksum(other, sizeof one, 1));
        }
}

static void test_places_differ(void)
{
    uint64_t seeds[3 * 3 * 3];
    const uint32_t rows[] = {0, 1, UINT32_MAX};
    size_t count = 0;
    for (uint64_t q = 1; q <= 3; q++)
        for (size_t row = 0; row < 3; row++)
            for (uint32_t kind = 0; kind < 3; kind++)
                seeds[count++] = fi_place_seed(q, rows[row], kind);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            CHECK(seeds[i] != seeds[j]);
    CHECK(fi_place_seed(7, 1, 2) == fi_place_seed(7 + (UINT64_C(1) << 32), 1, 2));
}

int main(void)
{
    test_every_bit_counts();
    test_length_counts();
    test_order_counts();
    test_places_differ();
    return 0;
}

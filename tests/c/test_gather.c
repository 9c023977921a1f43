/* fi_gather against the plainest possible version of itself, with guard bytes around every output.
 * Aborts at the first broken promise. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "guarded.h"
#include "batch/fi_gather.h"

enum { TABLE_ROWS = 100 };

typedef enum { ANY, ASCENDING, ASCENDING_BUT_ONE } row_order;

/* base: row 0, from which the rows lie stride apart. */
static void check_gather(const unsigned char *base, ptrdiff_t stride, size_t row_bytes, size_t n,
                         row_order order, bool uncached)
{
    const size_t first = random_below(TABLE_ROWS - n + 1);
    const size_t bytes = n * row_bytes;
    unsigned char *block = guarded(bytes);
    int64_t *rows = calloc(n + 1, sizeof *rows);

    CHECK(rows != NULL);
    for (size_t i = 0; i < n; i++) {
        rows[i] = (int64_t)(order == ANY ? random_below(TABLE_ROWS) : first + i);
    }
    if (order == ASCENDING_BUT_ONE && n > 0) {
        rows[random_below(n)] = (int64_t)random_below(TABLE_ROWS);
    }
    fi_gather_rows(block + GUARD, row_bytes, base, stride, rows, n, uncached);
    for (size_t i = 0; i < n; i++) {
        for (size_t byte = 0; byte < row_bytes; byte++) {
            CHECK_EQ(block[GUARD + i * row_bytes + byte], *(base + rows[i] * stride + byte));
        }
    }
    check_guards(block, bytes);
    free(rows);
    free(block);
}

static void test_gather_of_every_size(void)
{
    static const size_t large[] = {255, 256, 1000, 1024, 2047, 2048, 2049, 4096, 9000};
    static const size_t counts[] = {0, 1, 2, 15, 16, 17, 18, 40};

    for (size_t number = 0; number < 200 + sizeof large / sizeof *large; number++) {
        const size_t row_bytes = number < 200 ? number : large[number - 200];
        const size_t gap = random_below(2) * random_below(9); /* often none */
        const ptrdiff_t stride = (ptrdiff_t)(row_bytes + gap);
        unsigned char *table = random_bytes(TABLE_ROWS * (row_bytes + gap));
        for (size_t count = 0; count < sizeof counts / sizeof *counts; count++) {
            const unsigned char *last = table + (TABLE_ROWS - 1) * stride;
            for (int variant = 0; variant < 6; variant++) {
                const row_order order = (row_order)(variant / 2);
                const bool uncached = variant % 2 != 0;
                check_gather(table, stride, row_bytes, counts[count], order, uncached);
                check_gather(last, -stride, row_bytes, counts[count], ANY, uncached);
                check_gather(table, 0, row_bytes, counts[count], order, uncached);
            }
        }
        free(table);
    }
}

static void test_rows_within(void)
{
    int64_t rows[] = {0, 5, 9, 3, 3, 0, 7, 9, 1};
    const size_t n = sizeof rows / sizeof *rows;
    static const int64_t wrong[] = {10, -1, INT64_MAX, INT64_MIN};

    CHECK(fi_rows_lie_within(rows, n, 10));
    CHECK(!fi_rows_lie_within(rows, n, 9));
    CHECK(fi_rows_lie_within(rows, 0, 0));
    CHECK(!fi_rows_lie_within(rows, 1, 0));
    for (size_t i = 0; i < n; i++) {
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
            const int64_t right = rows[i];
            rows[i] = wrong[w];
            CHECK(!fi_rows_lie_within(rows, n, 10));
            rows[i] = right;
        }
    }
}

static void test_translation_also_in_place(void)
{
    static const int64_t table[] = {7, -3, INT64_MAX, 0};
    static const int64_t expected[] = {0, 7, 7, INT64_MAX, -3};
    int64_t rows[] = {3, 0, 0, 2, 1};
    int64_t out[5];

    fi_rows_translate(out, table, rows, 5);
    CHECK(memcmp(out, expected, sizeof out) == 0);
    fi_rows_translate(rows, table, rows, 5);
    CHECK(memcmp(rows, expected, sizeof out) == 0);
}

static void test_items_that_lie_far_apart(void)
{
    static const size_t sizes[] = {0, 1, 8, 12, 100, 256, 5000};
    enum { ITEMS = 40, STEP = 6000 };
    char *memory = malloc(ITEMS * STEP), *out = malloc(ITEMS * 5000 + 1);
    const void *places[ITEMS];

    for (size_t i = 0; i < ITEMS * STEP; i++) {
        memory[i] = (char)(i * 7 + i / STEP);
    }
    for (size_t i = 0; i < ITEMS; i++) {
        places[i] = memory + (i * 13 % ITEMS) * STEP + i;
    }
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        out[ITEMS * sizes[s]] = 77;
        fi_gather_far(out, sizes[s], places, ITEMS, s % 2 == 0);
        for (size_t i = 0; i < ITEMS; i++) {
            CHECK(memcmp(out + i * sizes[s], places[i], sizes[s]) == 0);
        }
        CHECK_EQ(out[ITEMS * sizes[s]], 77);
    }
    free(memory);
    free(out);
}

int main(void)
{
    test_items_that_lie_far_apart();
    test_gather_of_every_size();
    test_rows_within();
    test_translation_also_in_place();
    return 0;
}

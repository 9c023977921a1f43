/* fi_pack against the plainest packing, and the segments of a window against its documents. All memory is as large
 * as is promised to do, so that the sanitizer sees what goes beyond. Aborts at the first broken promise. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "guarded.h"
#include "order/fi_pack.h"

static void *take(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);

    CHECK(memory != NULL);
    memset(memory, GUARD_BYTE, bytes);
    return memory;
}

/* The row for a piece among rows with this room: one with the least that is enough; count if there is none. */
static uint32_t plain_row(const uint32_t *room, uint32_t count, uint32_t size)
{
    uint32_t found = count;

    for (uint32_t row = 0; row < count; row++) {
        if (room[row] >= size && (found == count || room[row] < room[found])) {
            found = row;
        }
    }
    return found;
}

/* Walks the pieces as they have to be taken: each must have gone where the plainest packing puts it, or into another
 * row with the same room. */
static void check_rows(uint32_t length, const uint32_t *sizes, uint32_t n, const uint32_t *rows,
                       uint32_t n_rows)
{
    uint32_t *room = take(n * sizeof *room), *order = take(n * sizeof *order), count = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = i;
        for (; k > 0 && sizes[order[k - 1]] < sizes[i]; k--) {
            order[k] = order[k - 1];
        }
        order[k] = i;
    }
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t size = sizes[order[k]], row = rows[order[k]];
        const uint32_t expected = plain_row(room, count, size);
        if (expected == count) {
            CHECK_EQ(row, count);
            room[count++] = length;
        } else {
            CHECK(row < count);
            CHECK_EQ(room[row], room[expected]);
        }
        room[row] -= size;
    }
    CHECK_EQ(n_rows, count);
    free(room), free(order);
}

static void test_rows_of_pieces(void)
{
    static const uint32_t lengths[] = {1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 300000};

    for (size_t number = 0; number < 900; number++) {
        const uint32_t length = lengths[number % (sizeof lengths / sizeof *lengths)];
        const uint32_t n = number < 40 ? (uint32_t)number : (uint32_t)random_below(300);
        const uint32_t longest = random_below(2) ? length : 1 + (uint32_t)random_below(length);
        uint32_t *sizes = take(n * sizeof *sizes), *rows = take(n * sizeof *rows);
        for (uint32_t i = 0; i < n; i++) {
            sizes[i] = 1 + (uint32_t)random_below(longest);
        }
        void *scratch = take(fi_pack_scratch(length, n));
        const uint32_t n_rows = fi_pack(length, sizes, n, rows, scratch);
        check_rows(length, sizes, n, rows, n_rows);
        free(sizes), free(rows), free(scratch);
    }
}

/* Tokens of a document that have to be in rows. */
static int64_t kept_of(int64_t document, int overlong, uint32_t length)
{
    if (document <= length || overlong == FI_OVERLONG_SPLIT) {
        return document;
    }
    return overlong == FI_OVERLONG_TRUNCATE ? length : 0;
}

static void check_window(uint32_t length, int overlong, uint32_t n)
{
    int64_t *documents = take(n * sizeof *documents), *lengths = take(n * sizeof *lengths);
    int64_t *found = calloc(n + 1, sizeof *found);
    uint32_t *sizes = take(n * sizeof *sizes), *rows = take(n * sizeof *rows), n_rows = 0;
    fi_segment *pieces = take(n * sizeof *pieces);
    uint64_t n_whole;

    CHECK(found != NULL);
    for (uint32_t i = 0; i < n; i++) {
        documents[i] = n - 1 - i;
        lengths[i] = (int64_t)random_below(random_below(8) ? length + 2 : 5 * (uint64_t)length + 1);
    }
    const uint32_t n_pieces = fi_pack_pieces(overlong, length, documents, lengths, n, sizes, pieces, &n_whole);
    CHECK(n_pieces <= n);
    if (n_pieces > 0) {
        void *scratch = take(fi_pack_scratch(length, n_pieces));
        n_rows = fi_pack(length, sizes, n_pieces, rows, scratch);
        free(scratch);
    }
    const uint64_t total = n_rows + n_whole, step = 7919; /* a prime that is no divisor of total */
    int64_t *places = take(total * sizeof *places), *starts = take((total + 1) * sizeof *starts);
    fi_segment *segments = take((n_pieces + n_whole) * sizeof *segments);
    for (uint64_t row = 0; row < total; row++) {
        places[row] = (int64_t)((row * step + 5) % total);
    }
    fi_pack_segments(length, documents, lengths, n, overlong, pieces, rows, n_pieces, n_rows, n_whole, places,
                     starts, segments);
    CHECK_EQ(starts[0], 0);
    CHECK_EQ(starts[total], n_pieces + n_whole);
    for (uint64_t number = 0; number < total; number++) {
        const uint64_t row = (number + n_rows) % total; /* whole rows are the first of a document */
        int64_t used = 0;
        for (int64_t k = starts[places[row]]; k < starts[places[row] + 1]; k++) {
            const fi_segment *segment = &segments[k];
            CHECK(segment->document >= 0 && segment->document < n && segment->length > 0);
            CHECK_EQ(segment->start, found[segment->document]);
            found[segment->document] += segment->length;
            used += segment->length;
        }
        CHECK(used > 0 && used <= length && (row < n_rows || used == length));
    }
    for (uint32_t i = 0; i < n; i++) {
        CHECK_EQ(found[documents[i]], kept_of(lengths[i], overlong, length));
    }
    for (uint32_t i = 0; i < n_pieces; i++) {
        const int64_t *row = &starts[places[rows[i]]];
        bool is_there = false;
        for (int64_t k = row[0]; k < row[1]; k++) {
            is_there |= memcmp(&segments[k], &pieces[i], sizeof *pieces) == 0;
        }
        CHECK(is_there);
    }
    free(documents), free(lengths), free(found), free(sizes), free(rows), free(pieces);
    free(places), free(starts), free(segments);
}

static void test_segments_of_windows(void)
{
    static const uint32_t lengths[] = {1, 2, 7, 64, 1000};

    for (uint32_t number = 0; number < 600; number++) {
        for (int overlong = FI_OVERLONG_SPLIT; overlong <= FI_OVERLONG_DROP; overlong++) {
            check_window(lengths[number % 5], overlong, number % 60);
        }
    }
}

/* A document of more tokens than 32 bits can tell is cut without an overflow. */
static void test_a_huge_document(void)
{
    const uint32_t length = 1u << 31;
    const int64_t document = 3, tokens = 5 * (int64_t)length + 9;
    const int64_t places[] = {2, 0, 1, 5, 3, 4};
    int64_t starts[7];
    uint32_t sizes[1], rows[1] = {0};
    fi_segment pieces[1], segments[6];
    uint64_t n_whole;

    CHECK_EQ(fi_pack_pieces(FI_OVERLONG_SPLIT, length, &document, &tokens, 1, sizes, pieces, &n_whole), 1);
    CHECK_EQ(n_whole, 5);
    CHECK_EQ(sizes[0], 9);
    fi_pack_segments(length, &document, &tokens, 1, FI_OVERLONG_SPLIT, pieces, rows, 1, 1, n_whole, places, starts,
                     segments);
    for (int64_t row = 0; row < 6; row++) {
        const fi_segment *segment = &segments[starts[places[row]]];
        CHECK_EQ(segment->start, (row == 0 ? 5 : row - 1) * (int64_t)length);
        CHECK_EQ(segment->length, row == 0 ? 9 : length);
    }
}

int main(void)
{
    test_rows_of_pieces();
    test_segments_of_windows();
    test_a_huge_document();
    return 0;
}

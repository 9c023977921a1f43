/* Columns in Arrow's layout: rows of every layout against what was put into the buffers, in chunks with
 * offsets. Aborts at the first broken promise. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "guarded.h"
#include "base/fi_base.h"
#include "batch/fi_arrow.h"

enum { CHUNKS = 5, ROWS = 400, OFFSET = 3 };

static int64_t lengths[CHUNKS] = {1, 200, 0, 7, 192};

static void *taken[2000];
static size_t n_taken;

/* Memory of zeros until the end of the program. */
static void *take(size_t bytes)
{
    void *memory = calloc(bytes, 1);

    CHECK(memory != NULL && n_taken < sizeof taken / sizeof *taken);
    return taken[n_taken++] = memory;
}

/* A column whose chunks, each with an offset, are made by `make`: buffers of chunk `number`. */
typedef void (*maker)(fi_arrow_array *array, int number, int64_t first);

static void open_column(fi_column *column, maker make, const int64_t *inner, int n_inner)
{
    fi_chunk *chunks = take((CHUNKS + 1) * sizeof *chunks);
    int64_t first = 0;

    column->chunks = chunks;
    column->n_chunks = 0;
    for (int number = 0; number < CHUNKS; number++) {
        fi_arrow_array array = {.length = lengths[number], .offset = OFFSET, .null_count = -1};
        make(&array, number, first);
        if (array.length == 0) {
            continue;
        }
        CHECK_EQ(fi_arrow_chunk(&chunks[column->n_chunks], column, &array, inner, n_inner), FI_OK);
        chunks[column->n_chunks++].first = first;
        first += array.length;
    }
    CHECK_EQ(first, ROWS);
    chunks[column->n_chunks].first = column->n_rows = first;
    column->guide = take(fi_arrow_guide_size(column) * sizeof *column->guide);
    column->starts = take((size_t)(column->n_chunks + 1) * sizeof *column->starts);
    fi_arrow_guide(column);
}

static void random_rows(int64_t *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        rows[i] = (int64_t)random_below(ROWS);
    }
}

static bool is_valid(int64_t row)
{
    return row % 7 != 2;
}

static void set_bit(uint8_t *bitmap, int64_t bit, bool value)
{
    bitmap[bit / 8] |= (uint8_t)(value << bit % 8);
}

/* A bitmap of one bit for each row of a chunk, after the offset's. */
static uint8_t *bitmap_of(int64_t length, int64_t first, bool (*value)(int64_t row))
{
    uint8_t *bitmap = take((size_t)(length + OFFSET) / 8 + 1);

    for (int64_t i = 0; i < length; i++) {
        set_bit(bitmap, OFFSET + i, value(first + i));
    }
    return bitmap;
}

static const void **buffers_of(size_t n)
{
    const void **buffers = take(n * sizeof *buffers);

    return buffers;
}

static void make_fixed(fi_arrow_array *array, int number, int64_t first)
{
    int32_t *values = take(((size_t)array->length + OFFSET) * sizeof *values);

    for (int64_t i = 0; i < array->length; i++) {
        values[OFFSET + i] = (int32_t)(first + i) * 3;
    }
    array->n_buffers = 2;
    array->buffers = buffers_of(2);
    array->buffers[0] = number == 1 ? NULL : bitmap_of(array->length, first, is_valid);
    array->buffers[1] = values;
}

static void test_numbers(void)
{
    static const int32_t fill = -1;
    int64_t rows[ROWS];
    int32_t out[ROWS];
    int64_t days[ROWS];
    uint32_t found[ROWS];

    for (int filled = 0; filled < 2; filled++) {
        fi_column column = {.layout = FI_ARROW_FIXED, .width = 4};
        open_column(&column, make_fixed, NULL, 0);
        column.fill = filled ? &fill : NULL;
        for (size_t n = 0; n <= ROWS; n += 57) {
            random_rows(rows, n);
            CHECK(!fi_arrow_gather(out, &column, rows, n, false, NULL, false));
            CHECK_EQ(fi_arrow_gather(out, &column, rows, n, false, found, false), n > 0);
            memset(out, 0, sizeof out); /* once more, from what was found */
            CHECK_EQ(fi_arrow_gather(out, &column, rows, n, false, found, true), true);
            for (size_t i = 0; i < n; i++) {
                const bool has_bitmap = rows[i] < 1 || rows[i] >= 201;
                const bool is_filled = filled && has_bitmap && !is_valid(rows[i]);
                CHECK_EQ(out[i], is_filled ? -1 : (int32_t)rows[i] * 3);
            }
        }
    }
    fi_column dates = {.layout = FI_ARROW_DAYS, .width = 8};
    open_column(&dates, make_fixed, NULL, 0);
    random_rows(rows, ROWS);
    CHECK(fi_arrow_chunks_agree(&dates, &dates));
    fi_chunk moved[CHUNKS + 1];
    memcpy(moved, dates.chunks, ((size_t)dates.n_chunks + 1) * sizeof *moved);
    moved[1].first++;
    fi_column other = dates;
    other.chunks = moved;
    CHECK(!fi_arrow_chunks_agree(&dates, &other));
    other.n_chunks--;
    CHECK(!fi_arrow_chunks_agree(&dates, &other));
    fi_arrow_gather(days, &dates, rows, ROWS, false, NULL, false);
    for (size_t i = 0; i < ROWS; i++) {
        CHECK_EQ(days[i], rows[i] * 3);
    }
}

/* Rows of 2 lists of 3 int16 each. */
static void make_nested(fi_arrow_array *array, int number, int64_t first)
{
    fi_arrow_array *outer = take(2 * sizeof *outer), *leaf = outer + 1;
    int16_t *values = take(((size_t)(array->length + OFFSET) * 6 + 5 + 3) * sizeof *values);

    (void)number;
    array->n_buffers = 1;
    array->buffers = buffers_of(1);
    array->n_children = 1;
    array->children = take(sizeof *array->children);
    array->children[0] = outer;
    *outer = (fi_arrow_array){.offset = 1, .n_buffers = 1, .n_children = 1, .buffers = buffers_of(1)};
    outer->children = take(sizeof *outer->children);
    outer->children[0] = leaf;
    *leaf = (fi_arrow_array){.offset = 5, .n_buffers = 2, .buffers = buffers_of(2)};
    leaf->buffers[1] = values;
    for (int64_t i = 0; i < array->length * 6; i++) {
        values[5 + (OFFSET * 2 + 1) * 3 + i] = (int16_t)(first * 6 + i);
    }
}

static void test_lists_of_a_fixed_size(void)
{
    static const int64_t inner[] = {2, 3};
    fi_column column = {.layout = FI_ARROW_FIXED, .width = 12};
    int64_t rows[ROWS];
    int16_t out[ROWS * 6];

    open_column(&column, make_nested, inner, 2);
    random_rows(rows, ROWS);
    fi_arrow_gather(out, &column, rows, ROWS, false, NULL, false);
    for (size_t i = 0; i < ROWS * 6; i++) {
        CHECK_EQ(out[i], (int16_t)(rows[i / 6] * 6 + (int64_t)(i % 6)));
    }
}

static void make_bits(fi_arrow_array *array, int number, int64_t first)
{
    (void)number;
    array->n_buffers = 2;
    array->buffers = buffers_of(2);
    array->buffers[1] = bitmap_of(array->length, first, is_valid);
}

static void test_bits(void)
{
    fi_column column = {.layout = FI_ARROW_BITS};
    int64_t rows[ROWS];
    uint8_t out[ROWS];

    open_column(&column, make_bits, NULL, 0);
    random_rows(rows, ROWS);
    fi_arrow_gather(out, &column, rows, ROWS, false, NULL, false);
    for (size_t i = 0; i < ROWS; i++) {
        CHECK_EQ(out[i], is_valid(rows[i]));
    }
}

static int64_t length_of(int64_t row)
{
    return row % 5;
}

/* Row r has length_of(r) elements, each of them r; `wide` of the column tells the offsets' type. */
static void make_lists(fi_arrow_array *array, bool wide)
{
    fi_arrow_array *leaf = take(sizeof *leaf);
    uint8_t *offsets = take(((size_t)array->length + OFFSET + 1) * 8);

    array->n_buffers = 2;
    array->n_children = 1;
    array->children = take(sizeof *array->children);
    array->children[0] = leaf;
    array->buffers = buffers_of(2);
    array->buffers[1] = offsets;
    *leaf = (fi_arrow_array){.offset = 2, .n_buffers = 2, .buffers = buffers_of(2)};
    leaf->buffers[1] = take(((size_t)array->length * 5 + 2) * sizeof(uint16_t));
    for (int64_t i = 0; i < array->length; i++) {
        for (int64_t element = 0; element < length_of(i); element++) {
            ((uint16_t *)leaf->buffers[1])[2 + leaf->length++] = (uint16_t)i;
        }
        if (wide) {
            ((int64_t *)offsets)[OFFSET + i + 1] = leaf->length;
        } else {
            ((int32_t *)offsets)[OFFSET + i + 1] = (int32_t)leaf->length;
        }
    }
}

static void make_narrow_lists(fi_arrow_array *array, int number, int64_t first)
{
    (void)number;
    make_lists(array, false);
    array->buffers[0] = bitmap_of(array->length, first, is_valid);
}

static void make_wide_lists(fi_arrow_array *array, int number, int64_t first)
{
    (void)number, (void)first;
    make_lists(array, true);
}

static void test_lists(void)
{
    for (int wide = 0; wide < 2; wide++) {
        fi_column column = {.layout = FI_ARROW_LISTS, .levels = 1, .width = 2, .wide = {wide}};
        int64_t rows[ROWS];
        fi_span spans[ROWS];
        size_t bad = 0;
        open_column(&column, wide ? make_wide_lists : make_narrow_lists, NULL, 0);
        random_rows(rows, ROWS);
        CHECK_EQ(fi_arrow_spans(spans, &column, rows, ROWS, &bad), FI_OK);
        for (size_t i = 0; i < ROWS; i++) {
            const int64_t local = rows[i] - spans[i].chunk->first;
            CHECK_EQ(spans[i].length, wide || is_valid(rows[i]) ? length_of(local) : 0);
            for (int64_t element = 0; element < spans[i].length; element++) {
                CHECK_EQ(((const uint16_t *)spans[i].data)[element], local);
            }
        }
    }
}

/* Offsets that descend, or lead behind the values, are refused; no memory is read by them. */
static void test_damaged_offsets(void)
{
    fi_column column = {.layout = FI_ARROW_LISTS, .levels = 1, .width = 2};
    int64_t row;
    fi_span span;
    size_t bad;
    int32_t *offsets;

    open_column(&column, make_narrow_lists, NULL, 0);
    for (int number = 0; number < 3; number++) {
        row = 203 + number; /* the chunk of 7 */
        offsets = (int32_t *)column.chunks[2].offsets[0];
        offsets[number + 3] = number == 0 ? -5 : number == 1 ? 1 << 20 : INT32_MIN;
        bad = 9;
        if (fi_arrow_spans(&span, &column, (int64_t[]){row + 1}, 1, &bad) == FI_OK) {
            CHECK(span.length >= 0 && span.start + span.length <= column.chunks[2].counts[0]);
        } else {
            CHECK_EQ(bad, 0);
        }
    }
}

/* Views: texts in themselves, and in one of two buffers. */
static void make_views(fi_arrow_array *array, int number, int64_t first)
{
    static const char long_text[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    static const int64_t sizes[] = {10, sizeof long_text};
    char *views = take(((size_t)array->length + OFFSET) * 16);

    (void)number;
    array->n_buffers = 5;
    array->buffers = buffers_of(5);
    array->buffers[1] = views;
    array->buffers[2] = "unused....";
    array->buffers[3] = long_text;
    array->buffers[4] = sizes;
    for (int64_t i = 0; i < array->length; i++) {
        char *view = views + (OFFSET + i) * 16;
        const int32_t length = (int32_t)((first + i) % 20), buffer = 1, offset = 2;
        memcpy(view, &length, 4);
        if (length <= 12) {
            memcpy(view + 4, "ABCDEFGHIJKL", (size_t)length);
        } else {
            memcpy(view + 8, &buffer, 4);
            memcpy(view + 12, &offset, 4);
        }
    }
}

static void test_views(void)
{
    fi_column column = {.layout = FI_ARROW_VIEWS, .width = 1};
    int64_t rows[ROWS];
    fi_span spans[ROWS];
    size_t bad = 0;
    const int32_t far = 30;

    open_column(&column, make_views, NULL, 0);
    random_rows(rows, ROWS);
    CHECK_EQ(fi_arrow_spans(spans, &column, rows, ROWS, &bad), FI_OK);
    for (size_t i = 0; i < ROWS; i++) {
        const int64_t length = rows[i] % 20;
        CHECK_EQ(spans[i].length, length);
        CHECK(memcmp(spans[i].data, length <= 12 ? "ABCDEFGHIJKL" : "23456789abcdefghijklmnop",
                     (size_t)length) == 0);
    }
    memcpy((char *)column.chunks[1].values + 18 * 16 + 12, &far, 4);
    rows[0] = column.chunks[1].first + 18;
    CHECK_EQ(fi_arrow_spans(spans, &column, rows, 1, &bad), FI_E_RANGE);
}

int main(void)
{
    test_numbers();
    test_lists_of_a_fixed_size();
    test_bits();
    test_lists();
    test_damaged_offsets();
    test_views();
    while (n_taken > 0) {
        free(taken[--n_taken]);
    }
    return 0;
}

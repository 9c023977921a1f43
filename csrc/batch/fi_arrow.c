#include "batch/fi_arrow.h"

#include <string.h>

#include "base/fi_base.h"
#include "batch/fi_copy.h"
#include "batch/fi_gather.h"

enum {
    BLOCK = 512,      /* rows that are looked up together */
    GUIDE_ENTRIES = 8, /* for each chunk: in most of them no chunk begins */
    INLINE_BYTES = 12 /* of a text that lies in its view */
};

static inline bool bit_at(const uint8_t *bitmap, int64_t bit)
{
    return bitmap[bit >> 3] >> (bit & 7) & 1;
}

/* Of lists: the offsets of each level, and where their elements lie. */
static int lists_chunk(fi_chunk *chunk, const fi_column *column, const fi_arrow_array *array)
{
    for (int level = 0; level < column->levels; level++) {
        const bool wide = column->wide[level];
        if (array->n_buffers < 2 || array->buffers[1] == NULL)
            return FI_E_RANGE;
        chunk->offsets[level] =
            (const char *)array->buffers[1] + array->offset * (wide ? 8 : 4);
        if (array->n_children == 0 && array->n_buffers == 3) { /* a text */
            chunk->values = array->buffers[2];
            chunk->counts[level] = fi_number_at(chunk->offsets[level], wide, array->length);
            return level + 1 == column->levels ? FI_OK : FI_E_RANGE;
        }
        if (array->n_children != 1)
            return FI_E_RANGE;
        array = array->children[0];
        chunk->counts[level] = array->length;
        if (array->length == 0) { /* no offset leads there */
            return FI_OK;
        }
    }
    if (array->n_buffers != 2)
        return FI_E_RANGE;
    chunk->values = (const char *)array->buffers[1] + array->offset * (int64_t)column->width;
    chunk->first_bit = column->width == 0 ? array->offset : 0;
    return FI_OK;
}

int fi_arrow_chunk(fi_chunk *chunk, const fi_column *column, const fi_arrow_array *array,
                   const int64_t *inner, int n_inner)
{
    int64_t offset = array->offset, row = (int64_t)column->width;

    *chunk = (fi_chunk){.start = array->offset};
    if (array->n_buffers < 1 || array->offset < 0 || array->length < 1)
        return FI_E_RANGE;
    chunk->validity = array->null_count != 0 ? array->buffers[0] : NULL;
    if (column->layout == FI_ARROW_LISTS)
        return lists_chunk(chunk, column, array);
    for (int level = 0; level < n_inner; level++) {
        if (array->n_children != 1)
            return FI_E_RANGE;
        array = array->children[0];
        offset = offset * inner[level] + array->offset;
        row = inner[level] > 0 ? row / inner[level] : 0;
    }
    if (array->n_buffers < 2)
        return FI_E_RANGE;
    chunk->values = array->buffers[1];
    if (column->layout == FI_ARROW_FIXED) {
        chunk->values = (const char *)chunk->values + offset * row;
    } else if (column->layout == FI_ARROW_DAYS) {
        chunk->values = (const char *)chunk->values + offset * 4;
    } else if (column->layout == FI_ARROW_VIEWS) {
        if (array->n_buffers < 3)
            return FI_E_RANGE;
        chunk->values = (const char *)chunk->values + offset * 16;
        chunk->buffers = array->buffers + 2;
        chunk->n_buffers = array->n_buffers - 3;
        chunk->sizes = array->buffers[array->n_buffers - 1];
    }
    return FI_OK;
}

size_t fi_arrow_guide_size(fi_column *column)
{
    const int64_t most = GUIDE_ENTRIES * column->n_chunks;

    column->guide_shift = 0;
    while (column->n_rows >> column->guide_shift > most)
        column->guide_shift++;
    return (size_t)(column->n_rows >> column->guide_shift) + 1;
}

void fi_arrow_start(const fi_column *column, int64_t number)
{
    const fi_chunk *chunk = column->chunks + number;

    /* Of an address that need not exist: no pointer. */
    column->starts[number].first = chunk->first;
    column->starts[number].origin =
        (uintptr_t)chunk->values - (uint64_t)chunk->first * column->width;
}

void fi_arrow_guide(fi_column *column)
{
    const size_t n = (size_t)(column->n_rows >> column->guide_shift) + 1;
    int64_t chunk = 0;

    for (int64_t i = 0; i <= column->n_chunks; i++)
        fi_arrow_start(column, i);
    for (size_t i = 0; i < n; i++) {
        while (chunk + 1 < column->n_chunks &&
               column->chunks[chunk + 1].first <= (int64_t)i << column->guide_shift) {
            chunk++;
        }
        column->guide[i] = (uint32_t)chunk;
    }
}

/* The last chunk that begins at or before the row. A row of a chunk at random makes each branch a
 * guess: the one that is left is hardly ever taken. */
static inline const fi_chunk_start *start_of(const fi_column *column, int64_t row)
{
    const size_t entry = (size_t)(row >> column->guide_shift);
    const fi_chunk_start *low = column->starts + column->guide[entry], *high;

    low += low[1].first <= row;
    if (__builtin_expect(low[1].first > row, 1))
        return low;
    if (entry < (size_t)(column->n_rows >> column->guide_shift))
        high = column->starts + column->guide[entry + 1];
    else
        high = column->starts + column->n_chunks - 1;
    while (low < high) {
        const fi_chunk_start *middle = low + (high - low + 1) / 2;
        if (middle->first <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static inline const fi_chunk *chunk_of(const fi_column *column, int64_t row)
{
    if (column->n_chunks == 1)
        return column->chunks;
    return column->chunks + (start_of(column, row) - column->starts);
}

static inline bool is_null(const fi_chunk *chunk, int64_t local)
{
    return chunk->validity != NULL && !bit_at(chunk->validity, chunk->start + local);
}

static void gather_bits(uint8_t *out, const fi_column *column, const int64_t *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const fi_chunk *chunk = chunk_of(column, rows[i]);
        const int64_t local = rows[i] - chunk->first;
        if (column->fill != NULL && is_null(chunk, local))
            out[i] = *(const uint8_t *)column->fill;
        else
            out[i] = bit_at(chunk->values, chunk->start + local);
    }
}

static void gather_days(int64_t *out, const fi_column *column, const int64_t *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const fi_chunk *chunk = chunk_of(column, rows[i]);
        const int64_t local = rows[i] - chunk->first;
        if (column->fill != NULL && is_null(chunk, local)) {
            memcpy(out + i, column->fill, sizeof *out);
        } else {
            int32_t day;
            memcpy(&day, (const char *)chunk->values + local * (int64_t)sizeof day, sizeof day);
            out[i] = day;
        }
    }
}

bool fi_arrow_chunks_agree(const fi_column *column, const fi_column *other)
{
    bool agree = column->n_chunks == other->n_chunks;

    for (int64_t i = 0; agree && i <= column->n_chunks; i++)
        agree = column->chunks[i].first == other->chunks[i].first;
    return agree;
}

bool fi_arrow_gather(void *dst, const fi_column *column, const int64_t *rows, size_t n, bool uncached,
                     uint32_t *found, bool are_known)
{
    const size_t width = column->width;
    uintptr_t places[BLOCK];
    char *out = dst;

    if (column->layout == FI_ARROW_BITS) {
        gather_bits(dst, column, rows, n);
        return are_known;
    }
    if (column->layout == FI_ARROW_DAYS) {
        gather_days(dst, column, rows, n);
        return are_known;
    }
    if (n == 0 || width == 0)
        return are_known;
    if (column->n_chunks == 1 && (column->fill == NULL || column->chunks->validity == NULL)) {
        fi_gather_rows(dst, width, column->chunks->values, (ptrdiff_t)width, rows, n, uncached);
        return are_known;
    }
    for (size_t begin = 0; begin < n; begin += BLOCK) {
        const size_t count = n - begin < BLOCK ? n - begin : BLOCK;
        const int64_t *block = rows + begin;
        if (are_known) {
            for (size_t i = 0; i < count; i++)
                places[i] = column->starts[found[begin + i]].origin + (uint64_t)block[i] * width;
        } else {
            for (size_t i = 0; i < count; i++) {
                const fi_chunk_start *start = start_of(column, block[i]);
                places[i] = start->origin + (uint64_t)block[i] * width;
                if (found != NULL)
                    found[begin + i] = (uint32_t)(start - column->starts);
            }
        }
        if (column->fill != NULL) {
            for (size_t i = 0; i < count; i++) {
                const fi_chunk *chunk = chunk_of(column, block[i]);
                if (is_null(chunk, block[i] - chunk->first))
                    places[i] = (uintptr_t)column->fill;
            }
        }
        fi_gather_far(out + begin * width, width, (const void *const *)places, count, uncached);
    }
    return found != NULL;
}

/* The span of the list at `place` of a level; 0 if its offsets are not within their values. */
static inline int span_of(fi_span *span, const fi_column *column, const fi_chunk *chunk, int level,
                          int64_t place)
{
    const int64_t start = fi_number_at(chunk->offsets[level], column->wide[level], place);
    const int64_t stop = fi_number_at(chunk->offsets[level], column->wide[level], place + 1);

    span->chunk = chunk;
    span->start = start;
    span->length = stop - start;
    span->data = NULL;
    if (level + 1 == column->levels && column->width > 0)
        span->data = (const char *)chunk->values + start * (int64_t)column->width;
    return start >= 0 && start <= stop && stop <= chunk->counts[level];
}

static inline int view_of(fi_span *span, const fi_chunk *chunk, int64_t local)
{
    const char *view = (const char *)chunk->values + local * 16;
    int32_t length, buffer, offset;

    memcpy(&length, view, sizeof length);
    span->chunk = chunk;
    span->start = 0;
    span->length = length;
    if (length <= INLINE_BYTES) {
        span->data = view + 4;
        return length >= 0;
    }
    memcpy(&buffer, view + 8, sizeof buffer);
    memcpy(&offset, view + 12, sizeof offset);
    if (buffer < 0 || buffer >= chunk->n_buffers || offset < 0 ||
        (int64_t)offset + length > chunk->sizes[buffer]) {
        return 0;
    }
    span->data = (const char *)chunk->buffers[buffer] + offset;
    return 1;
}

int fi_arrow_spans(fi_span *spans, const fi_column *column, const int64_t *rows, size_t n, size_t *bad)
{
    for (size_t begin = 0; begin < n; begin += BLOCK) {
        const size_t end = n - begin < BLOCK ? n : begin + BLOCK;
        for (size_t i = begin; column->layout == FI_ARROW_LISTS && i < end; i++) {
            const fi_chunk *chunk = spans[i].chunk = chunk_of(column, rows[i]);
            __builtin_prefetch((const char *)chunk->offsets[0] +
                               (rows[i] - chunk->first) * (column->wide[0] ? 8 : 4));
        }
        for (size_t i = begin; i < end; i++) {
            const fi_chunk *chunk =
                column->layout == FI_ARROW_LISTS ? spans[i].chunk : chunk_of(column, rows[i]);
            const int64_t local = rows[i] - chunk->first;
            int is_within = 1;

            if (is_null(chunk, local)) {
                spans[i] = (fi_span){.chunk = chunk};
            } else if (column->layout == FI_ARROW_FIXED) {
                const char *data = (const char *)chunk->values + local * (int64_t)column->width;
                spans[i] = (fi_span){chunk, 0, (int64_t)column->width, data};
            } else if (column->layout == FI_ARROW_VIEWS) {
                is_within = view_of(&spans[i], chunk, local);
            } else {
                is_within = span_of(&spans[i], column, chunk, 0, local);
            }
            if (!is_within) {
                *bad = i;
                return FI_E_RANGE;
            }
            for (int64_t byte = 0; spans[i].data != NULL && byte < 256; byte += FI_CACHE_LINE)
                __builtin_prefetch((const char *)spans[i].data + byte);
        }
    }
    return FI_OK;
}

int fi_arrow_inner(fi_span *spans, const fi_column *column, const fi_span *outer)
{
    for (int64_t i = 0; i < outer->length; i++) {
        if (!span_of(&spans[i], column, outer->chunk, 1, outer->start + i))
            return FI_E_RANGE;
    }
    return FI_OK;
}

void fi_arrow_bits(uint8_t *dst, const uint8_t *bitmap, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = bit_at(bitmap, first + i);
}

#include "batch/fi_tokens.h"

#include <string.h>

#include "batch/fi_copy.h"

enum { MOST_LINES = 16 }; /* of the tokens that come next, asked for ahead */

static const size_t widths[] = {1, 1, 2, 2, 4, 4, 8};

/* Number of the last of n parts that begins at `place` or before it. `first` is where the first part tells its begin,
 * and `stride` the bytes from there to the next part's. */
static int64_t part_at(const int64_t *first, size_t stride, int64_t n, int64_t place)
{
    int64_t low = 0, high = n - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (*(const int64_t *)((const char *)first + (size_t)middle * stride) <= place)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static const fi_document_part *part_of(const fi_tokens *tokens, int64_t document)
{
    const fi_document_part *parts = tokens->documents;
    return parts + part_at(&parts->first, sizeof *parts, tokens->n_document_parts, document);
}

/* In tokens; -1, which no offset is, if it lies within one. */
static int64_t offset_at(const fi_document_part *part, int64_t number)
{
    int64_t offset = fi_number_at(part->offsets, part->wide, number);
    if (part->unit == 1)
        return offset;
    return offset % part->unit == 0 ? offset / part->unit : -1;
}

static bool extent_in(const fi_tokens *tokens, const fi_document_part *part, int64_t document, int64_t *start,
                      int64_t *length)
{
    int64_t number = document - part->first, from = offset_at(part, number);
    bool overflows = __builtin_add_overflow(part->base, from, start);
    if (part->sizes != NULL)
        *length = fi_number_at(part->sizes, false, number);
    else
        overflows |= __builtin_sub_overflow(offset_at(part, number + 1), from, length);
    return !overflows && from >= 0 && *length >= 0 && *start >= 0 && *start <= tokens->n_tokens &&
           *length <= tokens->n_tokens - *start;
}

bool fi_tokens_extent(const fi_tokens *tokens, int64_t document, int64_t *start, int64_t *length)
{
    return extent_in(tokens, part_of(tokens, document), document, start, length);
}

size_t fi_tokens_lengths(const fi_tokens *tokens, const int64_t *documents, size_t n, int64_t *lengths)
{
    const fi_document_part *part = NULL;
    int64_t added = tokens->has_bos + tokens->has_eos, start;
    for (size_t i = 0; i < n; i++) {
        if (part == NULL || documents[i] < part->first || documents[i] >= part[1].first)
            part = part_of(tokens, documents[i]);
        if (!extent_in(tokens, part, documents[i], &start, &lengths[i]))
            return i;
        lengths[i] += lengths[i] > 0 ? added : 0; /* an empty document has no segment */
    }
    return n;
}

int64_t fi_tokens_find(const fi_tokens *tokens, int64_t place)
{
    int64_t low = 0, high = tokens->n_documents - 1, start, length;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        fi_tokens_extent(tokens, middle, &start, &length);
        if (start <= place)
            low = middle;
        else
            high = middle - 1;
    }
    return tokens->n_documents > 0 && fi_tokens_extent(tokens, low, &start, &length) ? low : 0;
}

#define WIDEN(from)                                                       \
    for (int64_t i = 0; i < count; i++) {                                 \
        from value;                                                       \
        memcpy(&value, source + i * (int64_t)sizeof(from), sizeof(from)); \
        out[i] = (int64_t)value;                                          \
    }

static void widen(int kind, const char *source, int64_t count, int64_t *out)
{
    switch (kind) {
    case FI_TOKEN_U8: WIDEN(uint8_t) break;
    case FI_TOKEN_I8: WIDEN(int8_t) break;
    case FI_TOKEN_U16: WIDEN(uint16_t) break;
    case FI_TOKEN_I16: WIDEN(int16_t) break;
    case FI_TOKEN_U32: WIDEN(uint32_t) break;
    default: WIDEN(int32_t) break;
    }
}

/* As they are, or as int64. */
static void read_stream(const fi_tokens *tokens, int64_t place, int64_t count, bool raw, char *out)
{
    int64_t number = 0;
    if (count > 0)
        number = part_at(&tokens->parts->first, sizeof *tokens->parts, tokens->n_parts, place);
    size_t size = raw ? widths[tokens->kind] : 8;
    while (count > 0) {
        const fi_token_part *part = &tokens->parts[number++];
        int64_t here = part[1].first - place < count ? part[1].first - place : count;
        const char *source = part->tokens + (size_t)(place - part->first) * widths[tokens->kind];
        if (raw || tokens->kind == FI_TOKEN_I64)
            memcpy(out, source, (size_t)here * size);
        else
            widen(tokens->kind, source, here, (int64_t *)out);
        out += (size_t)here * size;
        place += here;
        count -= here;
    }
}

/* Asks the memory for the first tokens of a stretch; the processor foresees the rest by itself. */
static void ask_for(const fi_tokens *tokens, int64_t place, int64_t count)
{
    const fi_token_part *part =
        tokens->parts + part_at(&tokens->parts->first, sizeof *tokens->parts, tokens->n_parts, place);
    const char *source = part->tokens + (size_t)(place - part->first) * widths[tokens->kind];
    size_t bytes = (size_t)count * widths[tokens->kind];
    for (size_t b = 0; b < bytes && b < MOST_LINES * FI_CACHE_LINE; b += FI_CACHE_LINE)
        __builtin_prefetch(source + b);
}

static void fill(int64_t *out, size_t count, int64_t value)
{
    for (size_t i = 0; i < count; i++)
        out[i] = value;
}

/* Tokens of a document from `from` on, with what is added to it. */
static void read_document(const fi_tokens *tokens, int64_t document, int64_t from, size_t count, int64_t *out)
{
    int64_t start, length, here;
    size_t done = 0;
    fi_tokens_extent(tokens, document, &start, &length);
    if (count > 0 && tokens->has_bos) {
        if (from == 0) {
            out[0] = tokens->bos;
            done = 1;
            from = 1;
        }
        from--;
    }
    here = length - from < (int64_t)(count - done) ? length - from : (int64_t)(count - done);
    if (here > 0) {
        read_stream(tokens, start + from, here, false, (char *)(out + done));
        done += (size_t)here;
    }
    if (done < count)
        out[done] = tokens->eos;
}

static int64_t length_of(const fi_tokens *tokens, int64_t document)
{
    int64_t length = 0;
    fi_tokens_lengths(tokens, &document, 1, &length);
    return length;
}

static bool ends_document(const fi_tokens *tokens, const fi_segment *segment)
{
    return segment->start + segment->length >= length_of(tokens, segment->document);
}

/* The labels of a segment. next: the segment whose first token follows; or NULL. */
static void write_labels(const fi_tokens *tokens, const fi_row_format *f, const fi_segment *segment,
                         const fi_segment *next, int64_t *out)
{
    size_t n = (size_t)segment->length, known = n;
    if (!f->shifts) {
        read_document(tokens, segment->document, segment->start, n, out);
        out[0] = f->ignored;
        return;
    }
    if (ends_document(tokens, segment)) {
        known--;
        if (next != NULL)
            read_document(tokens, next->document, next->start, 1, out + known);
        else
            out[known] = f->ignored;
    }
    read_document(tokens, segment->document, segment->start + 1, known, out);
}

size_t fi_field_width(const fi_tokens *tokens, int field)
{
    switch (field) {
    case FI_FIELD_SEGMENTS:
    case FI_FIELD_LOSS:
    case FI_FIELD_LONGEST:
    case FI_FIELD_COUNT:
        return 4;
    case FI_FIELD_ALIGNED:
        return widths[tokens->kind];
    default:
        return 8;
    }
}

static void write_summary(const fi_row_format *f, int field, const fi_segment *segments, size_t n, int32_t *out)
{
    int64_t count = 0, longest = 0;
    for (size_t k = 0; k < n; k++) {
        count += segments[k].length;
        longest = segments[k].length > longest ? segments[k].length : longest;
    }
    *out = (int32_t)(field == FI_FIELD_LONGEST && f->borders ? longest : count);
}

/* `out` is where the first of `count` elements stands. */
static void write_padding(const fi_tokens *tokens, const fi_row_format *f, int field, size_t count, char *out)
{
    const size_t width = fi_field_width(tokens, field);
    switch (field) {
    case FI_FIELD_INPUTS:
        fill((int64_t *)out, count, f->pad);
        break;
    case FI_FIELD_LABELS:
        fill((int64_t *)out, count, f->ignored);
        break;
    case FI_FIELD_DOCUMENTS:
        fill((int64_t *)out, count, -1);
        break;
    case FI_FIELD_ALIGNED:
        /* Of labels that are ready the format has what is ignored; of other fields 0. */
        for (size_t i = 0; i < count; i++)
            memcpy(out + i * width, &f->pad, width);
        break;
    default:
        memset(out, 0, count * width);
    }
}

/* A row of n segments. next: what follows in its stream, of which the first token is read; or NULL. */
static void write_row(const fi_tokens *tokens, const fi_row_format *f, int field, const fi_segment *segments,
                      size_t n, const fi_segment *next, char *out)
{
    const size_t width = fi_field_width(tokens, field);
    size_t used = 0, place = 0;
    int64_t start, length;
    if (field == FI_FIELD_LONGEST || field == FI_FIELD_COUNT) {
        write_summary(f, field, segments, n, (int32_t *)out);
        return;
    }
    for (size_t k = 0; k < n; k++)
        used += (size_t)segments[k].length;
    write_padding(tokens, f, field, f->length - used, f->left ? out : out + used * width);
    out += f->left ? (f->length - used) * width : 0;
    for (size_t k = 0; k < n; k++) {
        const fi_segment *segment = &segments[k];
        const fi_segment *following = f->borders ? NULL : k + 1 < n ? segment + 1 : next;
        size_t count = (size_t)segment->length, i;
        bool begins = f->borders || k == 0;
        int64_t *numbers = (int64_t *)out;
        if (count == 0)
            continue;
        switch (field) {
        case FI_FIELD_INPUTS:
            read_document(tokens, segment->document, segment->start, count, numbers);
            break;
        case FI_FIELD_LABELS:
            write_labels(tokens, f, segment, following, numbers);
            if (!f->shifts && !begins)
                read_document(tokens, segment->document, segment->start, 1, numbers);
            break;
        case FI_FIELD_ATTENTION:
            fill(numbers, count, 1);
            break;
        case FI_FIELD_POSITIONS:
            for (i = 0; i < count; i++)
                numbers[i] = (int64_t)(begins ? i : place + i);
            break;
        case FI_FIELD_SEGMENTS:
            for (i = 0; i < count; i++)
                ((int32_t *)out)[i] = f->borders ? (int32_t)k + 1 : 1;
            break;
        case FI_FIELD_DOCUMENTS:
            fill(numbers, count, segment->document);
            break;
        case FI_FIELD_LOSS:
            for (i = 0; i < count; i++)
                ((float *)out)[i] = 1.0f;
            if (f->shifts ? following == NULL && ends_document(tokens, segment) : begins)
                ((float *)out)[f->shifts ? count - 1 : 0] = 0.0f;
            break;
        default: /* nothing is added to documents that have aligned columns */
            fi_tokens_extent(tokens, segment->document, &start, &length);
            read_stream(tokens, start + segment->start, segment->length, true, out);
        }
        out += count * width;
        place += count;
    }
}

static bool reads_tokens(int field)
{
    return field == FI_FIELD_INPUTS || field == FI_FIELD_LABELS || field == FI_FIELD_ALIGNED;
}

void fi_tokens_rows(const fi_tokens *tokens, const fi_row_format *f, int field, const fi_row_segments *rows,
                    size_t n, size_t row_bytes, char *out)
{
    int64_t start, length;
    for (size_t i = 0; i < n; i++) {
        size_t first = rows->starts[i], stop = rows->starts[i + 1];
        if (reads_tokens(field) && i + 1 < n) {
            for (size_t k = stop; k < rows->starts[i + 2]; k++) {
                const fi_segment *segment = &rows->segments[k];
                fi_tokens_extent(tokens, segment->document, &start, &length);
                ask_for(tokens, start + segment->start, segment->length);
            }
        }
        stop -= rows->continues[i];
        write_row(tokens, f, field, rows->segments + first, stop - first,
                  rows->continues[i] ? rows->segments + stop : NULL, out + i * row_bytes);
    }
}

void fi_tokens_windows(const fi_tokens *tokens, const fi_row_format *f, int field, const int64_t *rows,
                       size_t n, int64_t stride, int64_t length, size_t row_bytes, char *out)
{
    fi_segment window = {.document = 0, .length = length};
    for (size_t i = 0; i < n; i++) {
        if (reads_tokens(field) && i + 1 < n)
            ask_for(tokens, rows[i + 1] * stride, length);
        window.start = rows[i] * stride;
        write_row(tokens, f, field, &window, 1, NULL, out + i * row_bytes);
    }
}

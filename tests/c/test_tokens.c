/* Rows of tokens against the plainest possible version: documents written out token by token. Parts and offsets are
 * blocks of exactly their size, so that the sanitizer sees what goes beyond. Aborts at the first broken promise. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "guarded.h"
#include "batch/fi_tokens.h"

enum { PARTS = 4, TOKENS = 300, DOCUMENTS = 40, LENGTH = 24, SEGMENTS = 6, KINDS = FI_TOKEN_I64 + 1 };

static const int64_t sizes[KINDS] = {1, 1, 2, 2, 4, 4, 8};

/* A stream whose parts and documents lie in one of several ways, and what is in it. */
typedef struct {
    fi_tokens tokens;
    fi_token_part parts[PARTS + 1];
    fi_document_part documents[3];
    void *memory[PARTS + 4];
    int n_memory;
    int64_t stream[TOKENS], starts[DOCUMENTS + 1];
} world;

/* One byte further than what any type is aligned to. */
static char *take(world *w, size_t bytes)
{
    char *memory = malloc(bytes + 1);

    CHECK(memory != NULL);
    w->memory[w->n_memory++] = memory;
    return memory + 1;
}

static void close_world(world *w)
{
    for (int k = 0; k < w->n_memory; k++) {
        free(w->memory[k]);
    }
}

static int64_t random_token(int kind)
{
    const int64_t value = (int64_t)(random_below(UINT32_MAX) << 32 ^ random_below(UINT32_MAX));
    const bool is_signed = kind == FI_TOKEN_I8 || kind == FI_TOKEN_I16 || kind == FI_TOKEN_I32;
    const int64_t bits = 8 * sizes[kind];

    if (kind == FI_TOKEN_I64) {
        return value;
    }
    return (value & (((int64_t)1 << bits) - 1)) - (is_signed ? (int64_t)1 << (bits - 1) : 0);
}

static void put_number(char *numbers, bool wide, int64_t place, int64_t value)
{
    const int32_t narrow = (int32_t)value;

    memcpy(numbers + (wide ? 8 : 4) * place, wide ? (const void *)&value : &narrow, wide ? 8 : 4);
}

/* Documents from..to - 1: by their ends, or by starts in bytes and sizes. */
static void open_documents(world *w, fi_document_part *part, int64_t from, int64_t to, bool by_sizes)
{
    const int64_t skipped = (int64_t)random_below(9); /* as of a slice, whose offsets do not begin at 0 */
    const int64_t n = to - from + !by_sizes;
    char *offsets, *lengths;

    *part = (fi_document_part){.wide = random_below(2), .unit = by_sizes ? sizes[w->tokens.kind] : 1, .first = from};
    part->base = w->starts[from] - skipped;
    part->offsets = offsets = take(w, (size_t)(n * (part->wide ? 8 : 4)));
    for (int64_t k = 0; k < n; k++) {
        put_number(offsets, part->wide, k, (w->starts[from + k] - part->base) * part->unit);
    }
    if (by_sizes) {
        part->sizes = lengths = take(w, (size_t)(4 * n));
        for (int64_t k = 0; k < n; k++) {
            put_number(lengths, false, k, w->starts[from + k + 1] - w->starts[from + k]);
        }
    }
}

static int compare(const void *left, const void *right)
{
    return *(const int64_t *)left < *(const int64_t *)right ? -1 : 1;
}

static void random_cuts(int64_t *cuts, int64_t n, int64_t end)
{
    cuts[0] = 0;
    for (int64_t k = 1; k < n; k++) {
        cuts[k] = (int64_t)random_below((uint64_t)end + 1);
    }
    qsort(cuts + 1, (size_t)n - 1, sizeof *cuts, compare);
    cuts[n] = end;
}

static void open_world(world *w, int kind)
{
    const int64_t split = (int64_t)random_below(DOCUMENTS + 1);
    const bool by_sizes = random_below(2);
    int64_t cuts[PARTS + 1];

    memset(w, 0, sizeof *w);
    w->tokens = (fi_tokens){.parts = w->parts, .n_parts = PARTS, .n_tokens = TOKENS, .documents = w->documents,
                            .n_document_parts = 2, .n_documents = DOCUMENTS, .kind = kind};
    w->tokens.has_bos = random_below(2), w->tokens.has_eos = random_below(2);
    w->tokens.bos = -7, w->tokens.eos = -8;
    random_cuts(w->starts, DOCUMENTS, TOKENS);
    random_cuts(cuts, PARTS, TOKENS);
    for (int64_t part = 0; part <= PARTS; part++) {
        w->parts[part].first = cuts[part];
        if (part == PARTS) {
            break;
        }
        char *bytes = take(w, (size_t)((cuts[part + 1] - cuts[part]) * sizes[kind]));
        w->parts[part].tokens = bytes;
        for (int64_t place = cuts[part]; place < cuts[part + 1]; place++) {
            const int64_t token = w->stream[place] = random_token(kind);
            memcpy(bytes + (place - cuts[part]) * sizes[kind], &token, (size_t)sizes[kind]);
        }
    }
    open_documents(w, &w->documents[0], 0, split, by_sizes);
    open_documents(w, &w->documents[1], split, DOCUMENTS, by_sizes && random_below(2));
    w->documents[2].first = DOCUMENTS;
}

static int64_t plain_length(const world *w, int64_t document)
{
    const int64_t length = w->starts[document + 1] - w->starts[document];

    return length > 0 ? length + w->tokens.has_bos + w->tokens.has_eos : 0;
}

static int64_t plain_token(const world *w, int64_t document, int64_t k)
{
    if (w->tokens.has_bos && k-- == 0) {
        return w->tokens.bos;
    }
    k += w->starts[document];
    return k < w->starts[document + 1] ? w->stream[k] : w->tokens.eos;
}

static void check_documents(const world *w)
{
    int64_t numbers[DOCUMENTS], lengths[DOCUMENTS], start, length;

    for (int64_t k = 0; k < DOCUMENTS; k++) {
        numbers[k] = k * 7 % DOCUMENTS;
        CHECK(fi_tokens_extent(&w->tokens, k, &start, &length));
        CHECK_EQ(start, w->starts[k]);
        CHECK_EQ(length, w->starts[k + 1] - w->starts[k]);
        for (int64_t place = start; place < start + length; place++) {
            CHECK_EQ(fi_tokens_find(&w->tokens, place), k);
        }
    }
    CHECK_EQ(fi_tokens_lengths(&w->tokens, numbers, DOCUMENTS, lengths), DOCUMENTS);
    for (int64_t k = 0; k < DOCUMENTS; k++) {
        CHECK_EQ(lengths[k], plain_length(w, numbers[k]));
    }
}

/* Windows are rows of the stream as one document. */
static void check_windows(const world *w)
{
    const int64_t ends[] = {0, TOKENS};
    const fi_document_part document[] = {{.offsets = ends, .wide = true, .unit = 1}, {.first = 1}};
    fi_tokens flat = w->tokens;
    flat.documents = document, flat.n_document_parts = flat.n_documents = 1;
    flat.has_bos = flat.has_eos = false;

    for (int number = 0; number < 40; number++) {
        const int field = number % 2 ? FI_FIELD_LABELS : FI_FIELD_INPUTS;
        const int64_t stride = 1 + (int64_t)random_below(5), length = 1 + (int64_t)random_below(LENGTH);
        const fi_row_format format = {.length = LENGTH, .shifts = number & 2, .left = number & 4};
        const size_t bytes = (size_t)LENGTH * 8;
        const int64_t n_rows = (TOKENS - 1 - length) / stride + 1;
        int64_t rows[3];
        fi_segment segments[3];
        for (int i = 0; i < 3; i++) {
            rows[i] = (int64_t)random_below((uint64_t)n_rows);
            segments[i] = (fi_segment){.start = rows[i] * stride, .length = length};
        }
        const size_t starts[] = {0, 1, 2, 3};
        const uint8_t continues[] = {0, 0, 0};
        const fi_row_segments plain = {.segments = segments, .starts = starts, .continues = continues};
        unsigned char *block = guarded(6 * bytes), *found = block + GUARD;
        fi_tokens_windows(&flat, &format, field, rows, 3, stride, length, bytes, (char *)found);
        fi_tokens_rows(&flat, &format, field, &plain, 3, bytes, (char *)found + 3 * bytes);
        CHECK(memcmp(found, found + 3 * bytes, 3 * bytes) == 0);
        check_guards(block, 6 * bytes);
        free(block);
    }
}

/* A part of a document, of `most` tokens at most; of length 0 if the document is empty. */
static fi_segment random_segment(const world *w, int64_t most)
{
    fi_segment segment = {.document = (int64_t)random_below(DOCUMENTS)};
    const int64_t length = plain_length(w, segment.document);

    if (length > 0) {
        segment.start = random_below(2) ? 0 : (int64_t)random_below((uint64_t)length);
        segment.length = length - segment.start < most ? length - segment.start : most;
        segment.length -= random_below(2) ? 0 : (int64_t)random_below((uint64_t)segment.length);
    }
    return segment;
}

/* Value of a field at token j of segment k, which is `place` tokens into its row. */
static int64_t plain_value(const world *w, const fi_row_format *f, int field, const fi_segment *segments, size_t n,
                           const fi_segment *next, size_t k, int64_t j, int64_t place)
{
    const fi_segment *s = &segments[k], *following = f->borders ? NULL : k + 1 < n ? s + 1 : next;
    const bool begins = j == 0 && (f->borders || k == 0);
    const bool ends = s->start + j + 1 == plain_length(w, s->document);
    const bool has_label = f->shifts ? !ends || following != NULL : !begins;

    switch (field) {
    case FI_FIELD_INPUTS:
    case FI_FIELD_ALIGNED:
        return plain_token(w, s->document, s->start + j);
    case FI_FIELD_LABELS:
        if (!has_label) {
            return f->ignored;
        }
        if (!f->shifts || !ends) {
            return plain_token(w, s->document, s->start + j + f->shifts);
        }
        return plain_token(w, following->document, following->start);
    case FI_FIELD_POSITIONS:
        return f->borders ? j : place;
    case FI_FIELD_SEGMENTS:
        return f->borders ? (int64_t)k + 1 : 1;
    case FI_FIELD_DOCUMENTS:
        return s->document;
    case FI_FIELD_LOSS:
        return has_label;
    default:
        return 1;
    }
}

static int64_t plain_padding(const fi_row_format *f, int field)
{
    switch (field) {
    case FI_FIELD_INPUTS:
    case FI_FIELD_ALIGNED:
        return f->pad;
    case FI_FIELD_LABELS:
        return f->ignored;
    case FI_FIELD_DOCUMENTS:
        return -1;
    default:
        return 0;
    }
}

/* As the field's type tells it. */
static void check_value(const unsigned char *value, size_t width, int field, bool is_signed, int64_t expected)
{
    int64_t found = 0;
    float real;

    if (field == FI_FIELD_LOSS) {
        memcpy(&real, value, sizeof real);
        CHECK(real == (float)expected);
        return;
    }
    memcpy(&found, value, width);
    if (width < 8) {
        const int64_t range = (int64_t)1 << (8 * width);
        found -= is_signed && found >= range / 2 ? range : 0;
        expected = is_signed ? (int32_t)expected : expected & (range - 1);
    }
    CHECK_EQ(found, expected);
}

static void check_row(const world *w, const fi_row_format *f, const fi_segment *segments, size_t n,
                      const fi_segment *next)
{
    const bool may_align = !w->tokens.has_bos && !w->tokens.has_eos;
    const size_t count = n + (next != NULL), starts[] = {0, count, 2 * count};
    const uint8_t continues[] = {next != NULL, next != NULL};
    fi_segment twice[2 * (SEGMENTS + 1)];
    const fi_row_segments rows = {.segments = twice, .starts = starts, .continues = continues};
    int64_t used = 0, longest = 0;

    for (size_t k = 0; k < 2 * count; k++) {
        twice[k] = k % count < n ? segments[k % count] : *next;
    }
    for (size_t k = 0; k < n; k++) {
        used += segments[k].length;
        longest = segments[k].length > longest ? segments[k].length : longest;
    }
    for (int field = FI_FIELD_INPUTS; field <= FI_FIELD_ALIGNED - !may_align; field++) {
        const size_t width = fi_field_width(&w->tokens, field);
        const bool is_number = field == FI_FIELD_LONGEST || field == FI_FIELD_COUNT;
        const size_t bytes = is_number ? width : width * f->length;
        const bool is_signed = field != FI_FIELD_ALIGNED;
        unsigned char *block = guarded(2 * bytes), *out = block + GUARD;
        int64_t place = 0;
        fi_tokens_rows(&w->tokens, f, field, &rows, 2, bytes, (char *)out);
        CHECK(memcmp(out, out + bytes, bytes) == 0);
        check_guards(block, 2 * bytes);
        if (is_number) {
            check_value(out, 4, field, true, field == FI_FIELD_LONGEST && f->borders ? longest : used);
            free(block);
            continue;
        }
        const unsigned char *padding = f->left ? out : out + (size_t)used * width;
        for (int64_t i = 0; i < f->length - used; i++) {
            check_value(padding + (size_t)i * width, width, field, is_signed, plain_padding(f, field));
        }
        out += f->left ? (size_t)(f->length - used) * width : 0;
        for (size_t k = 0; k < n; k++) {
            for (int64_t j = 0; j < segments[k].length; j++, place++) {
                const int64_t expected = plain_value(w, f, field, segments, n, next, k, j, place);
                check_value(out + (size_t)place * width, width, field, is_signed, expected);
            }
        }
        free(block);
    }
}

static void test_rows_of_every_format(void)
{
    world w;

    for (int number = 0; number < 400; number++) {
        open_world(&w, number % KINDS);
        check_documents(&w);
        check_windows(&w);
        for (int variant = 0; variant < 16; variant++) {
            const fi_row_format format = {.length = LENGTH, .shifts = variant & 1, .borders = variant & 2,
                                          .left = variant & 4, .pad = 9, .ignored = -100};
            fi_segment segments[SEGMENTS + 1], next;
            size_t n = 0;
            int64_t room = random_below(4) ? LENGTH : (int64_t)random_below(LENGTH + 1);
            for (int tries = 0; tries < SEGMENTS && room > 0; tries++) {
                segments[n] = random_segment(&w, room);
                room -= segments[n].length;
                n += segments[n].length > 0;
            }
            do {
                next = random_segment(&w, LENGTH);
            } while (next.length == 0);
            check_row(&w, &format, segments, n, variant & 8 ? &next : NULL);
        }
        close_world(&w);
    }
}

/* Offsets of a damaged file, or of another one, lead nowhere, however large they are. */
static void test_offsets_that_are_wrong(void)
{
    static const int64_t wrong[] = {INT64_MIN, INT64_MIN + 1, -1, 11, INT64_MAX - 1, INT64_MAX};
    static const int64_t bases[] = {0, 5, -5};
    static const uint8_t bytes[10];
    const fi_token_part parts[] = {{(const char *)bytes, 0}, {NULL, 10}};
    int64_t start, length, numbers[] = {0, 1, 2}, lengths[3];

    for (size_t k = 0; k < sizeof wrong / sizeof *wrong * 3; k++) {
        const int64_t base = bases[k % 3], bad = wrong[k / 3];
        int64_t offsets[] = {5 - base, 6 - base, bad, 10 - base};
        int32_t sizes_of[] = {1, 4, 1};
        fi_document_part documents[] = {{.offsets = offsets, .wide = true, .unit = 1, .base = base}, {.first = 3}};
        fi_tokens tokens = {.parts = parts, .n_parts = 1, .n_tokens = 10, .documents = documents,
                            .n_document_parts = 1, .n_documents = 3, .kind = FI_TOKEN_U8};
        if (bad == 11 && base == -5) {
            continue; /* the offset of token 6 */
        }
        CHECK_EQ(fi_tokens_lengths(&tokens, numbers, 3, lengths), 1);
        CHECK(!fi_tokens_extent(&tokens, 2, &start, &length));
        CHECK(fi_tokens_find(&tokens, 5) >= 0 && fi_tokens_find(&tokens, 5) < 3);
        documents[0].sizes = sizes_of;
        CHECK_EQ(fi_tokens_lengths(&tokens, numbers, 3, lengths), 2);
        offsets[2] = 6 - base, sizes_of[2] = -1;
        CHECK_EQ(fi_tokens_lengths(&tokens, numbers, 3, lengths), 2);
        sizes_of[2] = 5;
        CHECK_EQ(fi_tokens_lengths(&tokens, numbers, 3, lengths), 2);
    }
}

static void test_no_documents(void)
{
    fi_document_part documents[] = {{.offsets = malloc(1), .sizes = malloc(1), .unit = 1}, {.first = 0}};
    const fi_tokens tokens = {.n_tokens = 10, .documents = documents, .n_document_parts = 1};

    CHECK_EQ(fi_tokens_find(&tokens, 3), 0);
    free((void *)documents[0].offsets), free((void *)documents[0].sizes);
}

int main(void)
{
    test_no_documents();
    test_offsets_that_are_wrong();
    test_rows_of_every_format();
    return 0;
}

/* Rows of tokens: documents in memory that others own, and the fields of a row made of parts of them.
 *
 * Tokens are one stream, whose parts may lie anywhere: files, chunks of a column. Documents are stretches of the
 * stream. Offsets come from files, so each is checked where it is used. Functions allocate nothing, and are
 * thread-safe as long as their outputs differ.
 */
#ifndef FI_TOKENS_H
#define FI_TOKENS_H

#include "base/fi_base.h"
#include "order/fi_pack.h"

enum { FI_TOKEN_U8, FI_TOKEN_I8, FI_TOKEN_U16, FI_TOKEN_I16, FI_TOKEN_U32, FI_TOKEN_I32, FI_TOKEN_I64 };

enum {
    FI_FIELD_INPUTS,
    FI_FIELD_LABELS,
    FI_FIELD_ATTENTION,
    FI_FIELD_POSITIONS,
    FI_FIELD_SEGMENTS,
    FI_FIELD_DOCUMENTS,
    FI_FIELD_LOSS,
    FI_FIELD_LONGEST,
    FI_FIELD_COUNT,
    FI_FIELD_ALIGNED
};

typedef struct {
    const char *tokens;
    int64_t first; /* place in the stream of the first one; of the element behind the last part: their number */
} fi_token_part;

typedef struct {
    const void *offsets;  /* where each document begins; without sizes, with one more for the end of the last */
    const void *sizes;    /* int32; or NULL */
    bool wide;            /* offsets are int64, else int32 */
    int64_t unit;         /* of offsets, in tokens: they are divided by it, and wrong if that leaves a rest */
    int64_t base;         /* place in the stream of offset 0 */
    int64_t first;        /* number of its first document; of the element behind the last part: their number */
} fi_document_part;

typedef struct {
    const fi_token_part *parts;
    int64_t n_parts, n_tokens;
    const fi_document_part *documents;
    int64_t n_document_parts, n_documents;
    int kind;
    bool has_bos, has_eos; /* put before and behind each document, and counted in its length */
    int64_t bos, eos;
} fi_tokens;

/* Format of a row. */
typedef struct {
    uint32_t length;
    bool shifts;   /* a label is the next token */
    bool borders;  /* labels, positions and segments end with documents */
    bool left;     /* padding comes first */
    int64_t pad, ignored;
} fi_row_format;

/* The segments of rows. */
typedef struct {
    const fi_segment *segments; /* of all rows, behind each other */
    const size_t *starts;       /* number of each row's first one, and of the one behind the last */
    const uint8_t *continues;   /* whether a row's last one only follows it in its stream */
} fi_row_segments;

/* Place in the stream of the first token of a document, and its length without what is added. False if its
 * offsets lead out of the stream. */
bool fi_tokens_extent(const fi_tokens *tokens, int64_t document, int64_t *start, int64_t *length);

/* lengths[i] of documents[i], all of which exist, with what is added. The number of the first one whose offsets are
 * wrong, or n. */
size_t fi_tokens_lengths(const fi_tokens *tokens, const int64_t *documents, size_t n, int64_t *lengths);

/* The document that a place of the stream belongs to, empty ones apart; 0 if there is none. */
int64_t fi_tokens_find(const fi_tokens *tokens, int64_t place);

/* Bytes of an element of a field; those of LONGEST and COUNT are the field. */
size_t fi_field_width(const fi_tokens *tokens, int field);

/* Writes a field of n rows, `row_bytes` for each: what they are made of has been found right, also in a source of
 * an aligned column. The segments of a row have at most `length` tokens together. */
void fi_tokens_rows(const fi_tokens *tokens, const fi_row_format *format, int field, const fi_row_segments *rows,
                    size_t n, size_t row_bytes, char *out);

/* A field of n windows of `length` tokens, which begin at rows[i] * stride, of a stream that is one document:
 * `row_bytes` for each. As fi_tokens_rows. */
void fi_tokens_windows(const fi_tokens *tokens, const fi_row_format *format, int field, const int64_t *rows,
                       size_t n, int64_t stride, int64_t length, size_t row_bytes, char *out);

#endif

/* Columns in Arrow's memory layout, gathered from where they lie.
 *
 * A column is a sequence of chunks, each with buffers of its own. The layout of buffers is that of
 * https://arrow.apache.org/docs/format/Columnar.html. Everything here works on memory that the caller
 * owns and allocates nothing; offsets that come from the buffers are checked before they are used.
 * All functions are thread-safe as long as their outputs differ.
 */
#ifndef FI_ARROW_H
#define FI_ARROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An array of the Arrow C data interface:
 * https://arrow.apache.org/docs/format/CDataInterface.html */
typedef struct fi_arrow_array {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct fi_arrow_array **children;
    struct fi_arrow_array *dictionary;
    void (*release)(struct fi_arrow_array *array);
    void *private_data;
} fi_arrow_array;

enum {
    FI_ARROW_FIXED, /* `width` bytes a row */
    FI_ARROW_BITS,  /* one bit a row; gathered as a byte */
    FI_ARROW_DAYS,  /* int32 a row; gathered as int64 */
    FI_ARROW_LISTS, /* offsets, one level for each of `levels`; texts are lists of bytes */
    FI_ARROW_VIEWS  /* 16 bytes a row: a short text, or where a long one lies */
};

typedef struct fi_chunk {
    int64_t first;           /* number of its first row in the column */
    int64_t start;           /* rows of its bitmaps before its first one */
    const uint8_t *validity; /* bitmap; NULL: no row is null */
    const void *values;      /* FIXED, DAYS, VIEWS: of the first row. BITS: the bitmap. LISTS: the first
                              * element that offsets may name */
    int64_t first_bit;       /* of values that are bits in lists: elements of the bitmap before it */
    const void *offsets[2];  /* LISTS: of each level, that of the first row */
    int64_t counts[2];       /* greatest offset of a level */
    const void *const *buffers; /* VIEWS: of long texts */
    const int64_t *sizes;       /* their bytes */
    int64_t n_buffers;
} fi_chunk;

/* The facts of a chunk that are looked up for each row, close together. */
typedef struct fi_chunk_start {
    int64_t first;    /* as in fi_chunk */
    uint64_t origin; /* FIXED: where row 0 of the column would be, if it were in this chunk */
} fi_chunk_start;

typedef struct fi_column {
    const fi_chunk *chunks; /* n_chunks, and one more whose `first` is n_rows */
    fi_chunk_start *starts; /* of these; the caller has allocated them */
    int64_t n_chunks;
    int64_t n_rows;
    uint32_t *guide; /* guide[row >> guide_shift]: a chunk that begins at or before this row */
    int guide_shift;
    int layout;
    int levels;    /* of lists */
    bool wide[2];  /* whether the offsets of a level are int64, not int32 */
    size_t width;  /* bytes of a row, or of an element of a list; 0: a bit */
    const void *fill; /* a row to be written in the place of nulls; NULL: what lies there */
} fi_column;

/* A row of LISTS or VIEWS. */
typedef struct fi_span {
    const fi_chunk *chunk;
    int64_t start; /* number of its first element */
    int64_t length;
    const void *data; /* its first element; of lists in lists, or bits: NULL */
} fi_span;

/* Describes the chunk that an array is, for a column of which layout, levels, wide and width are set.
 * `inner`: for rows of FIXED that are lists of a fixed size in each other, the n_inner sizes. Returns
 * FI_E_RANGE if the array has not the buffers or children of that layout. first and n_rows are the
 * caller's. The array must not be empty. */
int fi_arrow_chunk(fi_chunk *chunk, const fi_column *column, const fi_arrow_array *array,
                   const int64_t *inner, int n_inner);

/* Entries that the guide of a column needs. Sets guide_shift. */
size_t fi_arrow_guide_size(fi_column *column);

/* Fills starts[number] again, after its chunk has changed. */
void fi_arrow_start(const fi_column *column, int64_t number);

/* Fills starts and guide, which the caller has allocated. */
void fi_arrow_guide(fi_column *column);

/* Whether chunks of two columns end at the same rows. */
bool fi_arrow_chunks_agree(const fi_column *column, const fi_column *other);

/* Gathers rows of FIXED, BITS or DAYS to dst, back to back; the caller has checked the rows.
 * BITS are bytes of 0 or 1, and DAYS int64. uncached: as in fi_copy.h.
 *
 * found: the chunks of rows of FIXED, n of them, or NULL. They are looked up and written there, or
 * read from there if they `are_known`, from a column whose chunks agree. Nothing is written for other
 * layouts, or of a single chunk. Returns whether they are known. */
bool fi_arrow_gather(void *dst, const fi_column *column, const int64_t *rows, size_t n, bool uncached,
                     uint32_t *found, bool are_known);

/* The spans of rows of LISTS or VIEWS; of a null row it is empty. FI_E_RANGE if offsets of the buffers
 * are not ascending, or lead out of them; `*bad` is then the place of the first such row. */
int fi_arrow_spans(fi_span *spans, const fi_column *column, const int64_t *rows, size_t n, size_t *bad);

/* The lists in one row of lists of lists: `outer.length` spans. Returns FI_OK or FI_E_RANGE. */
int fi_arrow_inner(fi_span *spans, const fi_column *column, const fi_span *outer);

/* Writes n bits as bytes, from bit `first` of the bitmap on. */
void fi_arrow_bits(uint8_t *dst, const uint8_t *bitmap, int64_t first, int64_t n);

#endif

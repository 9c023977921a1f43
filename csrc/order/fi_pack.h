/* Packing of pieces into rows of one length, and the segments of a window's rows.
 *
 * Best fit decreasing takes the longest pieces first, and puts each into a row with the least room that is enough for
 * it, or begins a row (Johnson, "Near-optimal bin packing algorithms", 1973). A piece takes time that does not depend
 * on the number of rows.
 *
 * Nothing here allocates.
 */
#ifndef FI_PACK_H
#define FI_PACK_H

#include "base/fi_base.h"

/* Treatment of a document that is longer than a row. */
enum { FI_OVERLONG_SPLIT, FI_OVERLONG_TRUNCATE, FI_OVERLONG_DROP };

/* A part of a document in a row. */
typedef struct {
    int64_t document;
    int64_t start; /* in the document */
    int64_t length;
} fi_segment;

/* Bytes that `fi_pack` needs for n pieces; aligned to 8. */
size_t fi_pack_scratch(uint32_t length, uint32_t n);

/* n is at most 2^30 in these functions.
 *
 * rows[i]: the row of piece i, from 0; returns how many rows there are. sizes: 1 to length. */
uint32_t fi_pack(uint32_t length, const uint32_t *sizes, uint32_t n, uint32_t *rows, void *scratch);

/* The pieces of a window's n documents of these lengths: sizes[k] and where they are from, for those shorter
 * than a row; whole rows are counted in *n_whole. sizes, pieces: room for n. Returns the number of pieces. */
uint32_t fi_pack_pieces(int overlong, uint32_t length, const int64_t *documents, const int64_t *lengths,
                        uint32_t n, uint32_t *sizes, fi_segment *pieces, uint64_t *n_whole);

/* The segments of all rows: those of row r, of n_rows packed ones and then the whole ones, are
 * segments[starts[p] .. starts[p + 1] - 1] with p = places[r]. starts: room for all rows and 1 more; segments: for
 * all pieces and whole rows. */
void fi_pack_segments(uint32_t length, const int64_t *documents, const int64_t *lengths, uint32_t n,
                      int overlong, const fi_segment *pieces, const uint32_t *rows, uint32_t n_pieces,
                      uint32_t n_rows, uint64_t n_whole, const int64_t *places, int64_t *starts,
                      fi_segment *segments);

#endif

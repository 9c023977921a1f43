/* Batches of like lengths, in steps of one batch for each rank.
 *
 * Rows come in random order, a window of them at a time. A window's rows, and those that the one before has
 * left, are sorted by length, rows of one length staying in random order, and cut from the longest on: a
 * batch ends where the next row would exceed a limit, a step after num_ranks batches. Where the number of rows is the
 * only limit, the longest rows are left instead of the shortest. So the batches of a
 * step have like costs, a cost being rows * longest length. Where the largest is more than 1.1 times their mean, as
 * among the longest rows, batches of equally many rows are dealt the rows of the step in turn: no batch costs more
 * than the largest did, and the others nearly as much. Rows that make no whole step are carried
 * into the next window; those left at the end are cut anew, into as many batches as steps need, at the
 * least largest cost. Then the steps are put in random order.
 *
 * Rows are below 2^32, as are lengths.
 */
#ifndef FI_BUCKETS_H
#define FI_BUCKETS_H

#include "base/fi_base.h"
#include "base/fi_mix.h"

typedef struct {
    const void *lengths; /* of each row: uint32, or uint64 if wide */
    bool wide;
    uint64_t most_rows, most_tokens; /* of a batch; UINT64_MAX: any. No length is above most_tokens */
    uint32_t num_ranks;
    bool drops; /* what is left at the end is not cut */
    uint64_t *keys, *spare; /* (room): length << 32 | row */
    uint64_t room;          /* for the rows of a window, those carried, and num_ranks more */
    uint64_t carried;       /* rows in keys that the windows before have left */
    uint32_t *out;          /* rows of steps, one batch after the other */
    uint8_t *marks;         /* a bit for each place in out: 1 where a batch begins; 0 at first */
    uint64_t written;       /* rows in out */
    uint64_t batches;
} fi_buckets;

/* Takes the next window of rows. `out` may begin where `rows` does: only places of rows already read are written.
 * Returns how many rows are left; with `trial` it writes nothing, and loses the carried rows. */
uint64_t fi_buckets_window(fi_buckets *buckets, const int64_t *rows, uint64_t count, bool trial);

/* Cuts the rows that are left, with those of the last steps if they are too few, into as many batches as the
 * ranks need; into fewer only if all batches of these steps have a single row. */
void fi_buckets_finish(fi_buckets *buckets);

/* rows: the steps of out in an order of steps, each rotated by a random number of ranks; cuts: where the batches
 * begin and the last one ends. The order of whole steps stands in the last places of cuts; starts: room for
 * a number for each step and one more. Batches behind the last whole step stay there. */
void fi_buckets_arrange(const fi_buckets *buckets, const fi_seed *seed, uint32_t *starts, uint32_t *rows,
                        int64_t *cuts);

#endif

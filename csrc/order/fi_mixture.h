/* The source of each example of a mixture: shares kept at every prefix.
 *
 * A stretch is a run of slots at constant weights; slot s, from 1, is its s-th draw. After slot s source i
 * is due lag_i + s * weight_i / total draws, where the weights add up to the total and the lags, what was
 * due before the stretch and not drawn, add up to 0. Its j-th draw may happen as soon as more than
 * j - 1 draws are due, its release, and has to when j are, its deadline. In each slot the released
 * draw with the earliest deadline is taken, of equal ones that of the first source: EDF over the windows of
 * proportionate fairness (Baruah, Cohen, Plaxton, Varvel, Algorithmica 15, 1996). From lags of 0 no
 * deadline is missed and no slot is without a draw, so every count is what is due, rounded down or up.
 *
 * The slots end at `last`. A draw with a later deadline need not happen: some of them have to, to fill
 * the slots that all others leave open. Which slots these are does not depend on which of the
 * released draws fill them; the caller chooses.
 *
 * Integers only: the same on every machine.
 */
#ifndef FI_MIXTURE_H
#define FI_MIXTURE_H

#include "base/fi_base.h"

#define FI_MIXTURE_TOTAL_MAX ((uint64_t)1 << 56)
#define FI_MIXTURE_SLOTS_MAX ((uint64_t)1 << 46)

enum {
    FI_MIXTURE_SOURCES_MAX = 65535,
    FI_MIXTURE_OPEN = 65535 /* in the place of a source */
};

typedef struct {
    uint64_t weight;
    int64_t lag;   /* times total; above -2 * total, below 2 * total */
    uint64_t drawn; /* draws in slots that were not left open */
    /* The next draw's deadline is whole, or one more if part > 0: drawn + 1 are due at (whole + part / weight). */
    int64_t whole;
    uint64_t part;
} fi_mixture_source;

typedef struct {
    uint64_t total, last, slot; /* slot: how many are done */
    uint32_t count, ready_count, waiting_count;
    uint32_t spare; /* released draws that need not happen, less the slots left open */
    fi_mixture_source *sources; /* (count) */
    uint64_t *ready, *waiting;  /* (count): heaps of deadline or release << 16 | source */
} fi_mixture;

/* Goes on after `slot`, from what was drawn until then. The caller has set total, last, slot, count, the
 * memory, and of each source weight, lag and drawn. */
void fi_mixture_start(fi_mixture *mixture);

/* out[k]: the source of each of the next `count` slots, or FI_MIXTURE_OPEN; no slot is beyond `last`. */
void fi_mixture_run(fi_mixture *mixture, uint64_t count, uint16_t *out);

#endif

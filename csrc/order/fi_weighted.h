/* Draws of n items with given weights: with replacement, and without.
 *
 * With replacement by a table of aliases (Walker, ACM TOMS 3(3), 1977; Vose, IEEE TSE 17(9), 1991): an item is
 * drawn uniformly, and kept or exchanged for its alias. One random word gives both: the upper half of
 * its 128-bit product with n is the item, the lower half is compared with a threshold of 64 bits.
 *
 * Without replacement by the race of exponential variates (Efraimidis and Spirakis, IPL 97(5), 2006): item i
 * arrives at -log(u_i) / w_i, and the first k to arrive are what k draws one after the other would
 * have taken, in that order. u has 53 random bits, so equal times are all but impossible between
 * weights of like size. The logarithm is our own, of additions, multiplications and divisions only,
 * so that a seed gives the same draws on every machine.
 *
 * A draw depends on the weights, the seed and the stream number alone. The generator is eight lanes
 * of xoshiro256++ (Blackman and Vigna, ACM TOMS 47(4), 2021).
 */
#ifndef FI_WEIGHTED_H
#define FI_WEIGHTED_H

#include "order/fi_shuffle.h"

#define FI_WEIGHTED_MAX UINT32_MAX

typedef struct {
    uint64_t threshold; /* kept if the random fraction is below it */
    uint32_t alias;
} fi_alias;

/* table[0 .. n-1] for weights that are positive and finite, and whose sum is; 1 <= n <= FI_WEIGHTED_MAX.
 * shares: scratch for n doubles, stack: for n items. */
void fi_alias_build(fi_alias *table, const double *weights, uint32_t n, double *shares,
                    uint32_t *stack);

/* out[0 .. count-1]: items drawn with replacement. */
void fi_alias_draw(const fi_alias *table, uint32_t n, const fi_seed *seed, uint64_t stream,
                   int64_t *out, size_t count);

/* The items that have arrived, and their times, in the order of items. */
typedef struct {
    double *times;
    uint32_t *items;
    uint32_t room, count;
} fi_arrivals;

/* A time by which about k items, or a few more, have arrived. An estimate: it decides how fast the
 * race is, not who wins it. */
double fi_race_horizon(const double *weights, uint32_t n, uint32_t k);

/* Runs the race up to a time: those arrive who do so before it, and no more than there is room for:
 * FI_E_FULL if there are more. Infinity lets all items arrive. FI_E_RANGE for an instruction set
 * (FI_ISA_...) that this processor lacks. */
int fi_race_run(int isa, const double *weights, uint32_t n, const fi_seed *seed, uint64_t stream,
                double horizon, fi_arrivals *arrivals);

/* out[0 .. k-1]: the first k to arrive, in the order of their times, those of equal times by item.
 * keys: scratch for two words an arrival. */
void fi_race_rank(const fi_arrivals *arrivals, uint32_t k, uint64_t *keys, int64_t *out);

#endif

/* A pseudo-random order of n indices that is computed, not stored: any part of it, at any time.
 *
 * The order is a keyed bijection: a Feistel network (Luby and Rackoff, SIAM J. Comput. 17(2), 1988) on
 * two unequal halves, with walking along the cycle past what lies above n (Black and Rogaway, CT-RSA
 * 2002). An index is split into its lower bits (left) and the rest (right < right_size). Half-rounds
 * change one half by a hash of the other, in turn: left by exclusive or, right by addition modulo
 * right_size. Fewer than 1 in sqrt(n) indices are walked, as (right_size << left_bits) - n < 2^left_bits.
 *
 * Unlike a shuffle it is not exactly uniform: of the n! orders it reaches those of its keys. With
 * FI_VIRTUAL_ROUNDS half-rounds no test of pairs, lags or places tells it from uniform; with 4 to 6
 * half-rounds such tests do. Parity tells it for some n: with an odd right_size, and two bits or more
 * of left, each half-round is an even permutation, so all orders of such an n have the same parity
 * (but for cycles that lie wholly above n).
 *
 * An order depends on n, the seed and the stream number alone, never on the instruction set, and does
 * not change between releases.
 */
#ifndef FI_VIRTUAL_H
#define FI_VIRTUAL_H

#include "order/fi_shuffle.h"

enum {
    FI_VIRTUAL_ROUNDS = 12,
    FI_VIRTUAL_MIN = 4 /* both halves need a bit */
};

#define FI_VIRTUAL_MAX ((uint64_t)1 << 62)

typedef struct {
    uint64_t n;
    uint32_t right_size;
    uint32_t left_bits;
    uint32_t rounds;
    uint32_t keys[FI_VIRTUAL_ROUNDS];
} fi_virtual;

/* Sets up the order of (n, seed, stream); FI_E_RANGE if n is below FI_VIRTUAL_MIN or above FI_VIRTUAL_MAX.
 * `rounds`, even and at most FI_VIRTUAL_ROUNDS, is for tests that must see a weak order fail. */
int fi_virtual_init(fi_virtual *order, uint64_t n, const fi_seed *seed, uint64_t stream,
                    uint32_t rounds);

/* out[k]: the index at position start + k, for k < count; start + count <= n. FI_E_RANGE for an
 * instruction set (fi_isa(), or another one for tests) that this processor lacks. */
int fi_virtual_fill(const fi_virtual *order, int isa, uint64_t start, size_t count, int64_t *out);

/* words[0 .. 3]: 256 bits for the generator of one example in one epoch. */
void fi_example_words(const fi_seed *seed, uint64_t epoch, uint64_t index, uint64_t *words);

#endif

/* Orders: the permutation of an epoch, drawn from a bit generator.
 *
 * Nothing here allocates or locks. A generator is used by one thread at a time: whoever calls holds
 * the lock that belongs to it.
 */
#ifndef FI_ORDER_H
#define FI_ORDER_H

#include <stddef.h>
#include <stdint.h>

/* A bit generator: state and the functions that advance it. Laid out like the structure in the
 * capsules of NumPy's bit generators, so that theirs can be passed as they are. */
typedef struct {
    void *state;
    uint64_t (*next64)(void *state);
    uint32_t (*next32)(void *state);
    double (*next_double)(void *state);
    uint64_t (*next_raw)(void *state);
} fi_bitgen;

/* For k = 0 .. count-1: draws[k] is uniform in [0, highest - k]; count <= highest + 1.
 *
 * Consumes the generator exactly as the bounded draw of NumPy's RandomState does: a bound of 0
 * takes nothing; otherwise words masked to the bound's bits, 32-bit words for a bound below 2^32
 * and 64-bit words above, until one does not exceed the bound. */
void fi_order_draw(const fi_bitgen *generator, uint64_t *draws, uint64_t highest, size_t count);

/* order[0 .. n-1]: the permutation that RandomState.permutation(n) gives from this generator;
 * leaves the generator in the same state. */
void fi_order_permutation(const fi_bitgen *generator, int64_t *order, size_t n);

#endif

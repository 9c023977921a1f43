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

/* order[0 .. n-1]: the permutation that RandomState.permutation(n) gives from this generator;
 * leaves the generator in the same state. */
void fi_order_permutation(const fi_bitgen *generator, int64_t *order, size_t n);

#endif

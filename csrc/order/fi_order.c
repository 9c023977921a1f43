#include "order/fi_order.h"

#include "base/fi_base.h"

/* Draws that are made, and whose places are fetched into the cache, ahead of the swaps. */
enum { LOOK_AHEAD = 256 };

/* Smallest 2^k - 1 that is at least bound. */
static uint64_t mask_of(uint64_t bound)
{
    bound |= bound >> 1;
    bound |= bound >> 2;
    bound |= bound >> 4;
    bound |= bound >> 8;
    bound |= bound >> 16;
    bound |= bound >> 32;
    return bound;
}

/* Writes each word and advances only if it is accepted: about every third word is rejected, at
 * random, and a branch on it would be mispredicted. */
#define FI_DRAW_MASKED(NEXT, WORD)                                                                 \
    for (size_t k = 0; k < run;) {                                                                 \
        const WORD word = NEXT(generator->state) & (WORD)mask;                                     \
        draws[k] = word;                                                                           \
        k += word <= highest - k;                                                                  \
    }

/* For k = 0 .. count-1: draws[k] is uniform in [0, highest - k]; count <= highest + 1.
 *
 * Consumes the generator exactly as the bounded draw of NumPy's RandomState does: a bound of 0
 * takes nothing; otherwise words masked to the bound's bits, 32-bit words for a bound below 2^32
 * and 64-bit words above, until one does not exceed the bound. */
static void draw(const fi_bitgen *generator, uint64_t *draws, uint64_t highest, size_t count)
{
    while (count != 0) {
        const uint64_t mask = mask_of(highest);
        /* Bounds from highest down to mask / 2 + 1 share the mask. */
        const size_t run = (size_t)fi_min_u64(count, highest - (mask >> 1));

        if (highest == 0) {
            draws[0] = 0;
            return;
        }
        if (mask <= UINT32_MAX) {
            FI_DRAW_MASKED(generator->next32, uint32_t)
        } else {
            FI_DRAW_MASKED(generator->next64, uint64_t)
        }
        draws += run;
        highest -= run;
        count -= run;
    }
}

/* Fisher and Yates's shuffle from the top down (Durstenfeld, CACM 7(7), 1964). What is drawn does
 * not depend on the swaps, so the draws run ahead and the cache misses of one block overlap. The
 * cells are the lower part of order itself: cells 0 to i are used until order[i] is written, and end
 * before it. Narrow cells are half as much to miss. */
#define FI_PERMUTATION(NAME, CELL)                                                                 \
    static void NAME(const fi_bitgen *generator, int64_t *order, size_t n)                         \
    {                                                                                              \
        CELL *const cells = (CELL *)order;                                                         \
        uint64_t draws[LOOK_AHEAD];                                                                \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            cells[i] = (CELL)i;                                                                    \
        }                                                                                          \
        while (n > 1) {                                                                            \
            const size_t count = (size_t)fi_min_u64(LOOK_AHEAD, n - 1);                            \
                                                                                                   \
            draw(generator, draws, n - 1, count);                                         \
            for (size_t k = 0; k < count; k++) {                                                   \
                __builtin_prefetch(cells + draws[k], 1);                                           \
            }                                                                                      \
            for (size_t k = 0; k < count; k++) {                                                   \
                const CELL value = cells[draws[k]];                                                \
                cells[draws[k]] = cells[--n];                                                      \
                order[n] = (int64_t)value;                                                         \
            }                                                                                      \
        }                                                                                          \
        if (n != 0) {                                                                              \
            order[0] = (int64_t)cells[0];                                                          \
        }                                                                                          \
    }

FI_PERMUTATION(permutation16, uint16_t)
FI_PERMUTATION(permutation32, uint32_t)
FI_PERMUTATION(permutation64, int64_t)

void fi_order_permutation(const fi_bitgen *generator, int64_t *order, size_t n)
{
    if (n <= (size_t)UINT16_MAX + 1)
        permutation16(generator, order, n);
    else if (n <= UINT32_MAX)
        permutation32(generator, order, n);
    else
        permutation64(generator, order, n);
}

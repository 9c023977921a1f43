/* The loops of the orders. Included once by the file of each instruction set, which defines
 *
 *   FI_TARGET        function attribute that allows its instructions
 *   fi_words         a vector of 64-bit integers, or one of them
 *
 * and where fi_words is a vector, what fi_loops_x86.h needs. That file, or the plain code here, gives
 *
 *   fi_draw16        the next 16 draws: draw k uniform below bound - k, for k < count. Draws 2l and
 *                    2l+1 come from the low and the high half of lane l's word.
 *   fi_swap16_*      16 steps of Fisher and Yates's shuffle, from cell `last` downwards: cell i
 *                    moves to the place drawn for it, and what was there goes out
 *
 * The random bits that each draw takes are part of the definition of an order: they must be the
 * same in every instruction set.
 */
#include <string.h>

/* The lanes in registers. */
enum { FI_PARTS = FI_LANES * sizeof(uint64_t) / sizeof(fi_words) };
typedef struct {
    fi_words s[4][FI_PARTS];
} fi_vector;

FI_TARGET static inline fi_vector fi_vector_load(const fi_unit *unit)
{
    fi_vector vector;

    memcpy(vector.s, unit->lanes, sizeof vector.s);
    return vector;
}

#ifdef FI_VECTORS
#include "order/fi_loops_x86.h"
#else

static inline void fi_draw16(fi_vector *vector, fi_unit *unit, uint32_t bound, uint32_t count,
                             uint32_t *draws)
{
    uint64_t words[FI_LANES];
    uint32_t lowest = UINT32_MAX;

    for (uint32_t l = 0; l < FI_LANES; l++)
        FI_XOSHIRO(words[l], vector->s, l);
    for (uint32_t l = 0; l < FI_LANES; l++) {
        const uint64_t low = (words[l] & UINT32_MAX) * (bound - 2 * l);
        const uint64_t high = (words[l] >> 32) * (bound - 2 * l - 1);
        draws[2 * l] = (uint32_t)(low >> 32);
        draws[2 * l + 1] = (uint32_t)(high >> 32);
        lowest = (uint32_t)low < lowest ? (uint32_t)low : lowest;
        lowest = (uint32_t)high < lowest ? (uint32_t)high : lowest;
    }
    if (__builtin_expect(lowest < bound, 0))
        fi_shuffle_redraw(unit, words, bound, count, draws);
}

#define FI_SWAP16(NAME, CELL, OUT)                                                                 \
    static inline void NAME(CELL *cells, OUT *out, uint32_t last, const uint32_t *draws)           \
    {                                                                                              \
        for (uint32_t m = 0; m < 16; m++) {                                                        \
            const CELL value = cells[draws[m]];                                                    \
            cells[draws[m]] = cells[last - m];                                                     \
            out[last - m] = (OUT)value;                                                            \
        }                                                                                          \
    }

FI_SWAP16(fi_swap16_16, uint16_t, uint16_t)
FI_SWAP16(fi_swap16_32, uint32_t, uint32_t)
FI_SWAP16(fi_swap16_16_out, uint16_t, int64_t)
FI_SWAP16(fi_swap16_32_out, uint32_t, int64_t)

#endif

enum { FI_STEP = 2 * FI_LANES };

/* Fisher and Yates's shuffle from the top down: out[i] takes the value of a cell drawn from 0 .. i,
 * and that cell takes the value of cell i. No later step reads what is out, so `out` may begin where
 * the cells do. The draws are made AHEAD of the swaps; where FETCH, their cells are fetched then. */
#define FI_FISHER_YATES(NAME, CELL, OUT, SWAP16, AHEAD, FETCH)                                     \
    FI_TARGET static void NAME(fi_unit *unit, CELL *cells, OUT *out, uint32_t n)                   \
    {                                                                                              \
        _Alignas(FI_CACHE_LINE) uint32_t draws[AHEAD];                                             \
        const uint32_t total = n == 0 ? 0 : n - 1;                                                 \
        fi_vector vector = fi_vector_load(unit);                                                   \
                                                                                                   \
        for (uint32_t k = 0; k < (AHEAD) && k < total; k += FI_STEP) {                             \
            fi_draw16(&vector, unit, n - k, total - k, draws + k);                                 \
        }                                                                                          \
        for (uint32_t k = 0; k < total; k += FI_STEP) {                                            \
            uint32_t *const turn = draws + k % (AHEAD);                                            \
            if (total - k >= FI_STEP) {                                                            \
                SWAP16(cells, out, n - 1 - k, turn);                                               \
            } else {                                                                               \
                for (uint32_t m = 0; m < total - k; m++) {                                         \
                    const CELL value = cells[turn[m]];                                             \
                    cells[turn[m]] = cells[n - 1 - k - m];                                         \
                    out[n - 1 - k - m] = (OUT)value;                                               \
                }                                                                                  \
            }                                                                                      \
            if (total - k > (AHEAD)) {                                                             \
                fi_draw16(&vector, unit, n - k - (AHEAD), total - k - (AHEAD), turn);              \
                if (FETCH && total - k >= (AHEAD) + FI_STEP) {                                     \
                    for (uint32_t m = 0; m < FI_STEP; m++) {                                       \
                        __builtin_prefetch(cells + turn[m], 1);                                    \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        if (n != 0) {                                                                              \
            out[0] = (OUT)cells[0];                                                                \
        }                                                                                          \
    }

FI_FISHER_YATES(run16, uint16_t, uint16_t, fi_swap16_16, 64, 0)
FI_FISHER_YATES(run32, uint32_t, uint32_t, fi_swap16_32, 256, 1)
FI_FISHER_YATES(run16_out, uint16_t, int64_t, fi_swap16_16_out, 64, 0)
FI_FISHER_YATES(run32_out, uint32_t, int64_t, fi_swap16_32_out, 64, 0)
FI_FISHER_YATES(run32_out_far, uint32_t, int64_t, fi_swap16_32_out, 256, 1)

/* The same of the numbers 0 .. n-1, whose cells lie where `out` begins. */
#define FI_NUMBERED(NAME, CELL, OUT, RUN)                                                          \
    FI_TARGET static void NAME(fi_unit *unit, OUT *out, uint32_t n)                                \
    {                                                                                              \
        CELL *const cells = (CELL *)out;                                                           \
                                                                                                   \
        for (uint32_t i = 0; i < n; i++) {                                                         \
            cells[i] = (CELL)i;                                                                    \
        }                                                                                          \
        RUN(unit, cells, out, n);                                                                  \
    }

FI_NUMBERED(shuffle16, uint16_t, uint16_t, run16)
FI_NUMBERED(shuffle32, uint32_t, uint32_t, run32)
FI_NUMBERED(order16, uint16_t, int64_t, run16_out)
FI_NUMBERED(order32, uint32_t, int64_t, run32_out_far)

/* Halves each count in turn: of m positions, as many take the left half of the buckets as there are
 * ones among m random bits. A count takes the least number of words that hold its bits. */
FI_TARGET static void split(fi_unit *unit, unsigned bucket_bits, uint32_t n, uint32_t *counts)
{
    _Alignas(FI_CACHE_LINE) uint64_t words[FI_LANES];
    fi_vector vector = fi_vector_load(unit);
    unsigned used = FI_LANES;

    counts[0] = n;
    for (uint32_t step = (uint32_t)1 << bucket_bits; step > 1; step /= 2) {
        for (uint32_t b = 0; b < (uint32_t)1 << bucket_bits; b += step) {
            uint32_t left = 0;
            for (uint32_t bits = counts[b]; bits > 0;) {
                const uint32_t some = bits < 64 ? bits : 64;
                if (used == FI_LANES) {
                    for (unsigned p = 0; p < FI_PARTS; p++) {
                        fi_words part;
                        FI_XOSHIRO(part, vector.s, p);
                        memcpy(words + p * (FI_LANES / FI_PARTS), &part, sizeof part);
                    }
                    used = 0;
                }
                left += (uint32_t)__builtin_popcountll(words[used++] >> (64 - some));
                bits -= some;
            }
            counts[b + step / 2] = counts[b] - left;
            counts[b] = left;
        }
    }
}

/* Puts the share's values into the lower part of order itself, then shuffles them. Where there are
 * many buckets each part is in another page, and a short one: it is fetched some buckets ahead. */
#define FI_SCATTER(NAME, CELL)                                                                     \
    FI_TARGET static void NAME(fi_unit *unit, const fi_share *share, const CELL *buckets,          \
                               int64_t *order)                                                     \
    {                                                                                              \
        uint32_t *values = (uint32_t *)order;                                                      \
                                                                                                   \
        for (uint32_t b = 0; b < share->buckets; b++) {                                            \
            const CELL *const cells = buckets + share->begins[b];                                  \
            const uint32_t first = share->firsts[b], count = share->ends[b] - share->begins[b];    \
            const CELL *const later = buckets + share->begins[b + 8 < share->buckets ? b + 8 : b]; \
            __builtin_prefetch(later);                                                             \
            __builtin_prefetch((const char *)later + FI_CACHE_LINE);                               \
            for (uint32_t i = 0; i < count; i++) {                                                 \
                values[i] = first + cells[i];                                                      \
            }                                                                                      \
            values += count;                                                                       \
        }                                                                                          \
        run32_out(unit, (uint32_t *)order, order, (uint32_t)(values - (uint32_t *)order));         \
    }

FI_SCATTER(scatter16, uint16_t)
FI_SCATTER(scatter32, uint32_t)

#define FI_LOOPS(STEP) {order16, order32, shuffle16, shuffle32, split, scatter16, scatter32, STEP}

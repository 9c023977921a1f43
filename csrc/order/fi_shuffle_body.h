/* The loops of the fast shuffle. Included once by the file of each instruction set, which defines
 *
 *   FI_TARGET        function attribute that allows its instructions
 *   fi_vector        the lanes in registers
 *   fi_vector_load   from the unit
 *   fi_draw16        the next 16 draws: draw k uniform below bound - k, for k < count. Draws 2l and
 *                    2l+1 come from the low and the high half of lane l's word.
 *   fi_words8        the lanes' next words, lane 0's first
 *   fi_swap16_*      16 steps of Fisher and Yates's shuffle, from cell `last` downwards: cell i
 *                    moves to the place drawn for it, and what was there goes out
 *
 * Which random bits each draw takes is part of what an order is: it must be the same in every
 * instruction set.
 */
enum { FI_STEP = 2 * FI_LANES };

/* Fisher and Yates's shuffle from the top down: out[i] takes the value of a cell drawn from 0 .. i,
 * and that cell takes the value of cell i. No later step reads what is out, so `out` may begin where
 * the cells do. The draws are made AHEAD of the swaps; where FETCH, their cells are fetched then. */
#define FI_FISHER_YATES(NAME, CELL, OUT, SWAP16, AHEAD, FETCH)                                      \
    FI_TARGET static void NAME(fi_unit *unit, CELL *cells, OUT *out, uint32_t n)                    \
    {                                                                                               \
        _Alignas(FI_CACHE_LINE) uint32_t draws[AHEAD];                                              \
        const uint32_t total = n == 0 ? 0 : n - 1;                                                  \
        fi_vector vector = fi_vector_load(unit);                                                    \
                                                                                                    \
        for (uint32_t k = 0; k < (AHEAD) && k < total; k += FI_STEP) {                              \
            fi_draw16(&vector, unit, n - k, total - k, draws + k);                                  \
        }                                                                                           \
        for (uint32_t k = 0; k < total; k += FI_STEP) {                                             \
            uint32_t *const turn = draws + k % (AHEAD);                                             \
            if (total - k >= FI_STEP) {                                                             \
                SWAP16(cells, out, n - 1 - k, turn);                                                \
            } else {                                                                                \
                for (uint32_t m = 0; m < total - k; m++) {                                          \
                    const CELL value = cells[turn[m]];                                              \
                    cells[turn[m]] = cells[n - 1 - k - m];                                          \
                    out[n - 1 - k - m] = (OUT)value;                                                \
                }                                                                                   \
            }                                                                                       \
            if (total - k > (AHEAD)) {                                                              \
                fi_draw16(&vector, unit, n - k - (AHEAD), total - k - (AHEAD), turn);               \
                if (FETCH && total - k >= (AHEAD) + FI_STEP) {                                      \
                    for (uint32_t m = 0; m < FI_STEP; m++) {                                        \
                        __builtin_prefetch(cells + turn[m], 1);                                     \
                    }                                                                               \
                }                                                                                   \
            }                                                                                       \
        }                                                                                           \
        if (n != 0) {                                                                               \
            out[0] = (OUT)cells[0];                                                                 \
        }                                                                                           \
    }

FI_FISHER_YATES(run16, uint16_t, uint16_t, fi_swap16_16, 64, 0)
FI_FISHER_YATES(run32, uint32_t, uint32_t, fi_swap16_32, 256, 1)
FI_FISHER_YATES(run16_out, uint16_t, int64_t, fi_swap16_16_out, 64, 0)
FI_FISHER_YATES(run32_out, uint32_t, int64_t, fi_swap16_32_out, 64, 0)
FI_FISHER_YATES(run32_out_far, uint32_t, int64_t, fi_swap16_32_out, 256, 1)

#define FI_COUNT_UP(CELLS, CELL, N)                                                                 \
    for (uint32_t i = 0; i < (N); i++) {                                                            \
        (CELLS)[i] = (CELL)i;                                                                       \
    }

FI_TARGET static void shuffle16(fi_unit *unit, uint16_t *cells, uint32_t n)
{
    FI_COUNT_UP(cells, uint16_t, n)
    run16(unit, cells, cells, n);
}

FI_TARGET static void shuffle32(fi_unit *unit, uint32_t *cells, uint32_t n)
{
    FI_COUNT_UP(cells, uint32_t, n)
    run32(unit, cells, cells, n);
}

FI_TARGET static void order16(fi_unit *unit, int64_t *order, uint32_t n)
{
    uint16_t *const cells = (uint16_t *)order;

    FI_COUNT_UP(cells, uint16_t, n)
    run16_out(unit, cells, order, n);
}

FI_TARGET static void order32(fi_unit *unit, int64_t *order, uint32_t n)
{
    uint32_t *const cells = (uint32_t *)order;

    FI_COUNT_UP(cells, uint32_t, n)
    run32_out_far(unit, cells, order, n);
}

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
                    fi_words8(&vector, words);
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
#define FI_SCATTER(NAME, CELL)                                                                         \
    FI_TARGET static void NAME(fi_unit *unit, const fi_share *share, const CELL *buckets,             \
                               int64_t *order)                                                      \
    {                                                                                               \
        uint32_t *values = (uint32_t *)order;                                                       \
                                                                                                    \
        for (uint32_t b = 0; b < share->buckets; b++) {                                               \
            const CELL *const cells = buckets + share->begins[b];                                     \
            const uint32_t first = share->firsts[b], count = share->ends[b] - share->begins[b];     \
            const CELL *const later = buckets + share->begins[b + 8 < share->buckets ? b + 8 : b];      \
            __builtin_prefetch(later);                                                              \
            __builtin_prefetch((const char *)later + FI_CACHE_LINE);                                \
            for (uint32_t i = 0; i < count; i++) {                                                  \
                values[i] = first + cells[i];                                                       \
            }                                                                                       \
            values += count;                                                                        \
        }                                                                                           \
        run32_out(unit, (uint32_t *)order, order, (uint32_t)(values - (uint32_t *)order));          \
    }

FI_SCATTER(scatter16, uint16_t)
FI_SCATTER(scatter32, uint32_t)

#undef FI_FISHER_YATES
#undef FI_COUNT_UP
#undef FI_SCATTER

#define FI_SHUFFLE_LOOPS {order16, order32, shuffle16, shuffle32, split, scatter16, scatter32}

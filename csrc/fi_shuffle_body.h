/* The loops of the fast shuffle. Included once by the file of each instruction set, which defines
 *
 *   FI_TARGET          function attribute that allows its instructions
 *   fi_vector          the lanes in registers
 *   fi_vector_load     from the unit
 *   fi_draw16          the next 16 draws: draw k uniform below bound - k, for k < count. Draws 2l and
 *                      2l+1 come from the low and the high half of lane l's word.
 *   fi_label32         the next 32 labels: label 4l + m is the upper bits of 16-bit part m of lane l's word
 *
 * Which random bits each draw and label takes is part of what an order is: it must be the same in
 * every instruction set.
 */
enum {
    FI_STEP = 16,       /* draws made at once */
    FI_LABEL_STEP = 32, /* labels made at once */
    FI_TABLES = 2       /* of counts: equal labels soon after each other would wait for the store */
};

/* Fisher and Yates from the top down: out[i] takes the value of a cell drawn from 0 .. i, which takes
 * the value of cell i. The draws are made AHEAD of the swaps, and PREFETCH fetches their cells. */
#define FI_FISHER_YATES(NAME, CELL, OUT, AHEAD, PREFETCH)                                            \
    FI_TARGET static void NAME(fi_unit *unit, OUT *out, uint32_t n)                                  \
    {                                                                                                \
        _Alignas(FI_CACHE_LINE) uint32_t draws[AHEAD];                                               \
        CELL *const cells = (CELL *)out;                                                             \
        const uint32_t total = n == 0 ? 0 : n - 1;                                                   \
        fi_vector vector = fi_vector_load(unit);                                                     \
                                                                                                     \
        for (uint32_t i = 0; i < n; i++) {                                                           \
            cells[i] = (CELL)i;                                                                      \
        }                                                                                            \
        for (uint32_t k = 0; k < (AHEAD) && k < total; k += FI_STEP) {                               \
            fi_draw16(&vector, unit, n - k, total - k, draws + k);                                   \
        }                                                                                            \
        for (uint32_t k = 0; k < total; k += FI_STEP) {                                              \
            uint32_t *const turn = draws + k % (AHEAD);                                              \
            const uint32_t count = total - k < FI_STEP ? total - k : FI_STEP;                        \
            if (count == FI_STEP) {                                                                  \
                _Pragma("GCC unroll 16") for (uint32_t m = 0; m < FI_STEP; m++)                      \
                {                                                                                    \
                    const uint32_t i = n - 1 - k - m, j = turn[m];                                   \
                    const CELL value = cells[j];                                                     \
                    cells[j] = cells[i];                                                             \
                    out[i] = (OUT)value;                                                             \
                }                                                                                    \
            } else {                                                                                 \
                for (uint32_t m = 0; m < count; m++) {                                               \
                    const uint32_t i = n - 1 - k - m, j = turn[m];                                   \
                    const CELL value = cells[j];                                                     \
                    cells[j] = cells[i];                                                             \
                    out[i] = (OUT)value;                                                             \
                }                                                                                    \
            }                                                                                        \
            if (total - k > (AHEAD)) {                                                               \
                fi_draw16(&vector, unit, n - k - (AHEAD), total - k - (AHEAD), turn);                \
                if (PREFETCH && total - k >= (AHEAD) + FI_STEP) {                                    \
                    _Pragma("GCC unroll 16") for (uint32_t m = 0; m < FI_STEP; m++)                  \
                    {                                                                                \
                        __builtin_prefetch(cells + turn[m], 1);                                      \
                    }                                                                                \
                }                                                                                    \
            }                                                                                        \
        }                                                                                            \
        if (n != 0) {                                                                                \
            out[0] = (OUT)cells[0];                                                                  \
        }                                                                                            \
    }

FI_FISHER_YATES(order16, uint16_t, int64_t, 64, 0)
FI_FISHER_YATES(order32, uint32_t, int64_t, 256, 1)
FI_FISHER_YATES(shuffle16, uint16_t, uint16_t, 64, 0)
FI_FISHER_YATES(shuffle32, uint32_t, uint32_t, 256, 1)

FI_TARGET static void count(fi_unit *unit, unsigned label_bits, uint32_t n, uint32_t *counts)
{
    _Alignas(FI_CACHE_LINE) uint16_t labels[FI_LABEL_STEP];
    _Alignas(FI_CACHE_LINE) uint32_t tables[FI_TABLES][1 << FI_LABEL_BITS_MAX];
    const uint32_t piles = (uint32_t)1 << label_bits;
    fi_vector vector = fi_vector_load(unit);

    for (uint32_t t = 0; t < FI_TABLES; t++) {
        for (uint32_t b = 0; b < piles; b++) {
            tables[t][b] = 0;
        }
    }
    for (uint32_t k = 0; k < n; k += FI_LABEL_STEP) {
        fi_label32(&vector, label_bits, labels);
        if (n - k >= FI_LABEL_STEP) {
            _Pragma("GCC unroll 32") for (uint32_t m = 0; m < FI_LABEL_STEP; m++)
            {
                tables[m % FI_TABLES][labels[m]]++;
            }
        } else {
            for (uint32_t m = 0; m < n - k; m++) {
                tables[0][labels[m]]++;
            }
        }
    }
    for (uint32_t t = 0; t < FI_TABLES; t++) {
        for (uint32_t b = 0; b < piles; b++) {
            counts[b] += tables[t][b];
        }
    }
}

/* Each cell's line is fetched two lines before its turn. */
#define FI_DEAL(NAME, CELL)                                                                          \
    FI_TARGET static void NAME(fi_unit *unit, unsigned label_bits, uint32_t n, fi_pile *piles,       \
                               const CELL *cells, int64_t *order)                                    \
    {                                                                                                \
        _Alignas(FI_CACHE_LINE) uint16_t labels[FI_LABEL_STEP];                                      \
        fi_vector vector = fi_vector_load(unit);                                                     \
                                                                                                     \
        for (uint32_t k = 0; k < n; k += FI_LABEL_STEP) {                                            \
            fi_label32(&vector, label_bits, labels);                                                 \
            if (n - k >= FI_LABEL_STEP) {                                                            \
                _Pragma("GCC unroll 32") for (uint32_t m = 0; m < FI_LABEL_STEP; m++)                \
                {                                                                                    \
                    const fi_pile pile = piles[labels[m]]++;                                         \
                    const CELL *const next = cells + (uint32_t)pile;                                 \
                    order[k + m] = (int64_t)(pile >> 32) + *next;                                    \
                    __builtin_prefetch((const char *)next + 2 * FI_CACHE_LINE);                      \
                }                                                                                    \
            } else {                                                                                 \
                for (uint32_t m = 0; m < n - k; m++) {                                               \
                    const fi_pile pile = piles[labels[m]]++;                                         \
                    order[k + m] = (int64_t)(pile >> 32) + cells[(uint32_t)pile];                    \
                }                                                                                    \
            }                                                                                        \
        }                                                                                            \
    }

FI_DEAL(deal16, uint16_t)
FI_DEAL(deal32, uint32_t)

#undef FI_FISHER_YATES
#undef FI_DEAL

#define FI_SHUFFLE_LOOPS {order16, order32, shuffle16, shuffle32, count, deal16, deal32}

/* The loops of the fast shuffle in plain C: what other processors run, and what defines the result. */
#include "order/fi_shuffle_loops.h"

#define FI_TARGET

typedef struct {
    uint64_t s[4][FI_LANES];
} fi_vector;

static inline fi_vector fi_vector_load(const fi_unit *unit)
{
    fi_vector vector;

    for (int w = 0; w < 4; w++) {
        for (int l = 0; l < FI_LANES; l++) {
            vector.s[w][l] = unit->lanes[w][l];
        }
    }
    return vector;
}

static inline uint64_t rotated(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static inline void next_words(fi_vector *v, uint64_t *words)
{
    for (int l = 0; l < FI_LANES; l++) {
        const uint64_t t = v->s[1][l] << 17;
        words[l] = rotated(v->s[0][l] + v->s[3][l], 23) + v->s[0][l];
        v->s[2][l] ^= v->s[0][l];
        v->s[3][l] ^= v->s[1][l];
        v->s[1][l] ^= v->s[2][l];
        v->s[0][l] ^= v->s[3][l];
        v->s[2][l] ^= t;
        v->s[3][l] = rotated(v->s[3][l], 45);
    }
}

static inline void fi_draw16(fi_vector *vector, fi_unit *unit, uint32_t bound, uint32_t count,
                             uint32_t *draws)
{
    uint64_t words[FI_LANES];
    uint32_t lowest = UINT32_MAX;

    next_words(vector, words);
    for (uint32_t l = 0; l < FI_LANES; l++) {
        const uint64_t low = (words[l] & UINT32_MAX) * (bound - 2 * l);
        const uint64_t high = (words[l] >> 32) * (bound - 2 * l - 1);
        draws[2 * l] = (uint32_t)(low >> 32);
        draws[2 * l + 1] = (uint32_t)(high >> 32);
        lowest = (uint32_t)low < lowest ? (uint32_t)low : lowest;
        lowest = (uint32_t)high < lowest ? (uint32_t)high : lowest;
    }
    if (__builtin_expect(lowest < bound, 0)) {
        fi_shuffle_redraw(unit, words, bound, count, draws);
    }
}

static inline void fi_words8(fi_vector *vector, uint64_t *words)
{
    next_words(vector, words);
}

#define FI_SWAP16(NAME, CELL, OUT)                                                                  \
    static inline void NAME(CELL *cells, OUT *out, uint32_t last, const uint32_t *draws)            \
    {                                                                                               \
        for (uint32_t m = 0; m < 16; m++) {                                                         \
            const CELL value = cells[draws[m]];                                                     \
            cells[draws[m]] = cells[last - m];                                                      \
            out[last - m] = (OUT)value;                                                             \
        }                                                                                           \
    }

FI_SWAP16(fi_swap16_16, uint16_t, uint16_t)
FI_SWAP16(fi_swap16_32, uint32_t, uint32_t)
FI_SWAP16(fi_swap16_16_out, uint16_t, int64_t)
FI_SWAP16(fi_swap16_32_out, uint32_t, int64_t)

#include "order/fi_shuffle_body.h"

const fi_shuffle_loops fi_shuffle_generic = FI_SHUFFLE_LOOPS;

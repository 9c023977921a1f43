/* Common parts of the loops of AVX2 and AVX-512. Each defines
 *
 *   fi_words, fi_halves   a register as 64-bit and as 32-bit integers
 *   FI_NUMBERS            its lanes of 64 bits, numbered
 *   FI_VECTORS            registers that the virtual order has in flight
 *   FI_LOW_PRODUCTS       products of the low halves of 64-bit lanes
 *   FI_BLENDED            the low halves of one register with the high halves of another
 *   FI_UPPER_HALVES       the high halves of two registers, those of the first in low halves
 *   FI_SMALLER            of unsigned 32-bit lanes
 *   FI_ANY_BELOW          whether an unsigned 32-bit lane is below a bound
 */
enum { FI_WIDTH = sizeof(fi_words) / sizeof(uint64_t) };

FI_TARGET static inline void fi_draw16(fi_vector *vector, fi_unit *unit, uint32_t bound,
                                       uint32_t count, uint32_t *draws)
{
    const fi_words numbers = FI_NUMBERS;
    fi_words words[FI_PARTS];
    bool is_near = false; /* one of the draws may have to be rejected */

#pragma GCC unroll 2
    for (uint32_t p = 0; p < FI_PARTS; p++) {
        /* The low halves alone count, so what is borrowed from the high ones is lost. */
        const fi_words even = (uint64_t)bound - 2 * p * FI_WIDTH - 2 * numbers, odd = even - 1;
        FI_XOSHIRO(words[p], vector->s, p);
        const fi_words low = FI_LOW_PRODUCTS(words[p], even);
        const fi_words high = FI_LOW_PRODUCTS(words[p] >> 32, odd);
        const fi_words whole = FI_UPPER_HALVES(low, high);
        memcpy(draws + 2 * p * FI_WIDTH, &whole, sizeof whole);
        is_near |= FI_ANY_BELOW(FI_BLENDED(low, high << 32), bound);
    }
    if (__builtin_expect(is_near, 0)) {
        uint64_t stored[FI_LANES];
        memcpy(stored, words, sizeof stored);
        fi_shuffle_redraw(unit, stored, bound, count, draws);
    }
}

/* 16 steps of Fisher and Yates's shuffle, for AVX2 and above. What goes out is put together in a
 * register and stored at once: of the two stores that a step takes otherwise, and that many
 * processors make only one of in a cycle, this saves nearly one. */

/* Lane LANE of `values` takes the cell that is drawn for cell last - M, which moves there. */
#define FI_TAKE(INSERT, LANE, M)                                                                   \
    values = INSERT(values, (int)cells[draws[M]], LANE);                                           \
    cells[draws[M]] = cells[last - (M)];

FI_TARGET static inline __m128i fi_take8(uint16_t *cells, uint32_t last, const uint32_t *draws)
{
    __m128i values = _mm_setzero_si128();

    FI_TAKE(_mm_insert_epi16, 7, 0)
    FI_TAKE(_mm_insert_epi16, 6, 1)
    FI_TAKE(_mm_insert_epi16, 5, 2)
    FI_TAKE(_mm_insert_epi16, 4, 3)
    FI_TAKE(_mm_insert_epi16, 3, 4)
    FI_TAKE(_mm_insert_epi16, 2, 5)
    FI_TAKE(_mm_insert_epi16, 1, 6)
    FI_TAKE(_mm_insert_epi16, 0, 7)
    return values;
}

FI_TARGET static inline __m128i fi_take4(uint32_t *cells, uint32_t last, const uint32_t *draws)
{
    __m128i values = _mm_setzero_si128();

    FI_TAKE(_mm_insert_epi32, 3, 0)
    FI_TAKE(_mm_insert_epi32, 2, 1)
    FI_TAKE(_mm_insert_epi32, 1, 2)
    FI_TAKE(_mm_insert_epi32, 0, 3)
    return values;
}

#define FI_SWAP16(NAME, CELL, TAKE, TAKEN)                                                         \
    FI_TARGET static inline void NAME(CELL *cells, CELL *out, uint32_t last,                       \
                                      const uint32_t *draws)                                       \
    {                                                                                              \
        for (uint32_t m = 0; m < 16; m += (TAKEN)) {                                               \
            const __m128i values = TAKE(cells, last - m, draws + m);                               \
            _mm_storeu_si128((__m128i *)(out + last - m - (TAKEN) + 1), values);                   \
        }                                                                                          \
    }

FI_SWAP16(fi_swap16_16, uint16_t, fi_take8, 8)
FI_SWAP16(fi_swap16_32, uint32_t, fi_take4, 4)

FI_TARGET static inline void fi_swap16_16_out(uint16_t *cells, int64_t *out, uint32_t last,
                                              const uint32_t *draws)
{
    for (uint32_t m = 0; m < 16; m += 8) {
        const __m128i values = fi_take8(cells, last - m, draws + m);
        const __m256i low = _mm256_cvtepu16_epi64(values);
        const __m256i high = _mm256_cvtepu16_epi64(_mm_srli_si128(values, 8));
        _mm256_storeu_si256((__m256i *)(out + last - m - 3), high);
        _mm256_storeu_si256((__m256i *)(out + last - m - 7), low);
    }
}

FI_TARGET static inline void fi_swap16_32_out(uint32_t *cells, int64_t *out, uint32_t last,
                                              const uint32_t *draws)
{
    for (uint32_t m = 0; m < 16; m += 4) {
        const __m128i values = fi_take4(cells, last - m, draws + m);
        _mm256_storeu_si256((__m256i *)(out + last - m - 3), _mm256_cvtepu32_epi64(values));
    }
}

/* A step of the virtual order, FI_VECTORS registers at a time, since each multiplication of a
 * half-round waits for the one before. A 32-bit lane's index is in the same lane of 64 bits of
 * `first` if the lane is a low half, else of `second`. */
FI_TARGET static bool virtual_step(const fi_virtual *order, uint64_t start, int64_t *out)
{
    const uint32_t mask = ((uint32_t)1 << order->left_bits) - 1;
    const fi_words numbers = FI_NUMBERS, zero = {0};
    /* Vectors, since shifts by a count in a vector take one operation less. */
    const fi_words bits = zero + order->left_bits;
    const fi_halves shift = (fi_halves)zero + (32 - order->left_bits);
    const fi_words n = zero + order->n, size = zero + order->right_size;
    fi_words below = ~zero; /* has the sign bit where all indices are less than n */

    for (uint64_t block = 0; block < FI_VIRTUAL_STEP; block += FI_VECTORS * 2 * FI_WIDTH) {
        fi_halves left[FI_VECTORS], right[FI_VECTORS];
#pragma GCC unroll 8
        for (uint32_t v = 0; v < FI_VECTORS; v++) {
            const fi_words first = numbers + (start + block + v * 2 * FI_WIDTH);
            const fi_words second = first + FI_WIDTH;
            left[v] = (fi_halves)FI_BLENDED(first, second << 32) & mask;
            right[v] = (fi_halves)FI_BLENDED(first >> bits, second >> bits << 32);
        }
        for (uint32_t k = 0; k < order->rounds; k += 2) {
#pragma GCC unroll 8
            for (uint32_t v = 0; v < FI_VECTORS; v++) {
                fi_halves hash = right[v];
                FI_VIRTUAL_HASH(hash, order->keys[k]);
                left[v] ^= hash >> shift;
            }
#pragma GCC unroll 8
            for (uint32_t v = 0; v < FI_VECTORS; v++) {
                fi_halves hash = left[v];
                FI_VIRTUAL_HASH(hash, order->keys[k + 1]);
                right[v] += (fi_halves)FI_UPPER_HALVES(FI_LOW_PRODUCTS(hash, size),
                                                       FI_LOW_PRODUCTS((fi_words)hash >> 32, size));
                right[v] = FI_SMALLER(right[v], right[v] - order->right_size);
            }
        }
#pragma GCC unroll 8
        for (uint32_t v = 0; v < FI_VECTORS; v++) {
            const fi_words first = ((fi_words)right[v] & UINT32_MAX) << bits |
                                   ((fi_words)left[v] & UINT32_MAX);
            const fi_words second = (fi_words)right[v] >> 32 << bits | (fi_words)left[v] >> 32;
            below &= (first - n) & (second - n);
            memcpy(out + block + v * 2 * FI_WIDTH, &first, sizeof first);
            memcpy(out + block + (v * 2 + 1) * FI_WIDTH, &second, sizeof second);
        }
    }
    return FI_ANY_BELOW(FI_BLENDED(~zero, below), (uint32_t)1 << 31);
}

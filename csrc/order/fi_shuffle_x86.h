/* 16 steps of Fisher and Yates's shuffle, for AVX2 and above. What goes out is put together in a
 * register and stored at once: of the two stores that a step takes otherwise, and that many
 * processors make only one of in a cycle, this saves nearly one. */

/* Lane LANE of `values` takes the cell that is drawn for cell last - M, which moves there. */
#define FI_TAKE16(LANE, M)                                                                          \
    values = _mm_insert_epi16(values, cells[draws[M]], LANE);                                       \
    cells[draws[M]] = cells[last - (M)];
#define FI_TAKE32(LANE, M)                                                                          \
    values = _mm_insert_epi32(values, (int)cells[draws[M]], LANE);                                  \
    cells[draws[M]] = cells[last - (M)];

FI_TARGET static inline __m128i fi_take8(uint16_t *cells, uint32_t last, const uint32_t *draws)
{
    __m128i values = _mm_setzero_si128();

    FI_TAKE16(7, 0)
    FI_TAKE16(6, 1)
    FI_TAKE16(5, 2)
    FI_TAKE16(4, 3)
    FI_TAKE16(3, 4)
    FI_TAKE16(2, 5)
    FI_TAKE16(1, 6)
    FI_TAKE16(0, 7)
    return values;
}

FI_TARGET static inline __m128i fi_take4(uint32_t *cells, uint32_t last, const uint32_t *draws)
{
    __m128i values = _mm_setzero_si128();

    FI_TAKE32(3, 0)
    FI_TAKE32(2, 1)
    FI_TAKE32(1, 2)
    FI_TAKE32(0, 3)
    return values;
}

#undef FI_TAKE16
#undef FI_TAKE32

FI_TARGET static inline void fi_swap16_16(uint16_t *cells, uint16_t *out, uint32_t last,
                                          const uint32_t *draws)
{
    for (uint32_t m = 0; m < 16; m += 8) {
        const __m128i values = fi_take8(cells, last - m, draws + m);
        _mm_storeu_si128((__m128i *)(out + last - m - 7), values);
    }
}

FI_TARGET static inline void fi_swap16_32(uint32_t *cells, uint32_t *out, uint32_t last,
                                          const uint32_t *draws)
{
    for (uint32_t m = 0; m < 16; m += 4) {
        const __m128i values = fi_take4(cells, last - m, draws + m);
        _mm_storeu_si128((__m128i *)(out + last - m - 3), values);
    }
}

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

/* The loops of fi_resize for AVX2: two rows in the two lanes of a vector. */
#include "batch/fi_resize_loops.h"

#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#define FI_TARGET __attribute__((target("avx2")))
#define FI_INLINE FI_TARGET static inline __attribute__((always_inline))

typedef struct {
    __m256i upper, lower; /* rows 0 and 1, rows 2 and 3 */
} four_rows;

FI_INLINE __m256i pair_of_weights(const int16_t *weights)
{
    int32_t both;

    memcpy(&both, weights, sizeof both);
    return _mm256_set1_epi32(both);
}

FI_INLINE __m256i two_rows(const uint8_t *first, const uint8_t *second)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first)),
        _mm_loadu_si128((const __m128i *)second), 1);
}

FI_INLINE __m256i both_lanes(__m128i lane)
{
    return _mm256_broadcastsi128_si256(lane);
}

/* A pixel of each row: red, green, blue and nothing, of 32 bits each. */
FI_INLINE four_rows pixel(const fi_resize_axis *axis, const uint8_t *const *rows, uint64_t x,
                          uint32_t pairs)
{
    /* red, red, green, green, blue, blue of two pixels, widened to 16 bits */
    const __m256i even = both_lanes(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i odd = both_lanes(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    const uint64_t first = 3 * (uint64_t)axis->firsts[x];
    const int16_t *weights = axis->weights + x * axis->taps;
    const __m256i half = _mm256_set1_epi32(1 << (axis->shift - 1));
    four_rows sum = {half, half};

    for (uint32_t p = 0; p < pairs; p += 2) {
        const uint64_t place = first + 6 * (uint64_t)p;
        const __m256i upper = two_rows(rows[0] + place, rows[1] + place);
        const __m256i lower = two_rows(rows[2] + place, rows[3] + place);
        __m256i weight = pair_of_weights(weights + 2 * p);
        sum.upper = _mm256_add_epi32(
            sum.upper, _mm256_madd_epi16(_mm256_shuffle_epi8(upper, even), weight));
        sum.lower = _mm256_add_epi32(
            sum.lower, _mm256_madd_epi16(_mm256_shuffle_epi8(lower, even), weight));
        if (p + 1 == pairs)
            break;
        weight = pair_of_weights(weights + 2 * p + 2);
        sum.upper = _mm256_add_epi32(
            sum.upper, _mm256_madd_epi16(_mm256_shuffle_epi8(upper, odd), weight));
        sum.lower = _mm256_add_epi32(
            sum.lower, _mm256_madd_epi16(_mm256_shuffle_epi8(lower, odd), weight));
    }
    return sum;
}

/* Four sums of a row in each lane to 12 bytes, in the order that `order` gives. */
FI_INLINE __m256i bytes_of(__m256i a, __m256i b, __m256i c, __m256i d, __m128i shift, __m256i order)
{
    a = _mm256_srl_epi32(a, shift);
    b = _mm256_srl_epi32(b, shift);
    c = _mm256_srl_epi32(c, shift);
    d = _mm256_srl_epi32(d, shift);
    return _mm256_shuffle_epi8(
        _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d)), order);
}

/* Eight pixels of a row. */
FI_INLINE void put(uint8_t *out, uint64_t x, uint64_t plane, __m128i left, __m128i right)
{
    if (plane == 0) {
        _mm_storeu_si128((__m128i *)(out + 3 * x), left);
        _mm_storeu_si128((__m128i *)(out + 3 * x + 12), right);
    } else {
        const __m128i red_green = _mm_unpacklo_epi32(left, right);
        _mm_storel_epi64((__m128i *)(out + x), red_green);
        _mm_storeh_pd((double *)(out + plane + x), _mm_castsi128_pd(red_green));
        _mm_storel_epi64((__m128i *)(out + 2 * plane + x), _mm_unpackhi_epi32(left, right));
    }
}

FI_INLINE void put_both(uint8_t *out, uint64_t row_bytes, uint64_t x, uint64_t plane, __m256i left,
                        __m256i right)
{
    put(out, x, plane, _mm256_castsi256_si128(left), _mm256_castsi256_si128(right));
    put(out + row_bytes, x, plane, _mm256_extracti128_si256(left, 1),
        _mm256_extracti128_si256(right, 1));
}

FI_INLINE void across_by(const fi_resize_axis *axis, const uint8_t *const *rows, uint8_t *out,
                         uint64_t row_bytes, uint64_t plane, uint32_t pairs)
{
    const __m256i interleaved =
        both_lanes(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    const __m256i apart =
        both_lanes(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1));
    const __m256i order = plane == 0 ? interleaved : apart;
    const __m128i shift = _mm_cvtsi32_si128((int)axis->shift);

    for (uint64_t x = 0; x < axis->n; x += FI_RESIZE_STEP) {
        __m256i upper[2], lower[2];
        for (int h = 0; h < 2; h++) {
            const four_rows a = pixel(axis, rows, x + 4 * h, pairs);
            const four_rows b = pixel(axis, rows, x + 4 * h + 1, pairs);
            const four_rows c = pixel(axis, rows, x + 4 * h + 2, pairs);
            const four_rows d = pixel(axis, rows, x + 4 * h + 3, pairs);
            upper[h] = bytes_of(a.upper, b.upper, c.upper, d.upper, shift, order);
            lower[h] = bytes_of(a.lower, b.lower, c.lower, d.lower, shift, order);
        }
        put_both(out, row_bytes, x, plane, upper[0], upper[1]);
        put_both(out + 2 * row_bytes, row_bytes, x, plane, lower[0], lower[1]);
    }
}

FI_TARGET static void across(const fi_resize_axis *axis, const uint8_t *const *rows, uint8_t *out,
                             uint64_t row_bytes, uint64_t plane)
{
    switch (axis->taps) {
    case 2: across_by(axis, rows, out, row_bytes, plane, 1); break;
    case 4: across_by(axis, rows, out, row_bytes, plane, 2); break;
    case 6: across_by(axis, rows, out, row_bytes, plane, 3); break;
    case 8: across_by(axis, rows, out, row_bytes, plane, 4); break;
    default: across_by(axis, rows, out, row_bytes, plane, axis->taps / 2);
    }
}

FI_INLINE __m256i down_32(const uint8_t *const *rows, const int16_t *weights, uint32_t pairs,
                          __m128i shift, __m256i half, uint64_t place)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i a = half, b = half, c = half, d = half;

    for (uint32_t p = 0; p < pairs; p++) {
        const __m256i weight = pair_of_weights(weights + 2 * p);
        const __m256i upper = _mm256_loadu_si256((const __m256i *)(rows[2 * p] + place));
        const __m256i lower = _mm256_loadu_si256((const __m256i *)(rows[2 * p + 1] + place));
        const __m256i low = _mm256_unpacklo_epi8(upper, lower);
        const __m256i high = _mm256_unpackhi_epi8(upper, lower);
        a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weight));
        b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weight));
        c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weight));
        d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weight));
    }
    a = _mm256_packs_epi32(_mm256_srl_epi32(a, shift), _mm256_srl_epi32(b, shift));
    c = _mm256_packs_epi32(_mm256_srl_epi32(c, shift), _mm256_srl_epi32(d, shift));
    return _mm256_packus_epi16(a, c);
}

FI_TARGET static void down(const uint8_t *const *rows, uint64_t from, const int16_t *weights, uint32_t pairs,
                           unsigned shift, uint64_t n, uint8_t *out)
{
    const __m128i bits = _mm_cvtsi32_si128((int)shift);
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    uint64_t place = 0;

    for (; place + 32 <= n; place += 32) {
        _mm256_storeu_si256((__m256i *)(out + place),
                            down_32(rows, weights, pairs, bits, half, from + place));
    }
    if (place == n)
        return;
    if (n >= 32) { /* the last 32 once more, of which some are done */
        _mm256_storeu_si256((__m256i *)(out + n - 32),
                            down_32(rows, weights, pairs, bits, half, from + n - 32));
    } else {
        uint8_t bytes[32];
        _mm256_storeu_si256((__m256i *)bytes, down_32(rows, weights, pairs, bits, half, from));
        memcpy(out, bytes, n);
    }
}

const fi_resize_loops fi_resize_avx2 = {across, down};

#endif

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

/* Two pixels of a row in each lane, of 16 bits a value. */
FI_INLINE __m256i two_pixels(__m256i a, __m256i b, __m128i shift)
{
    return _mm256_packs_epi32(_mm256_srl_epi32(a, shift), _mm256_srl_epi32(b, shift));
}

FI_INLINE void put_lanes(int16_t *out, uint64_t stride, __m256i values)
{
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(values));
    _mm_storeu_si128((__m128i *)(out + stride), _mm256_extracti128_si256(values, 1));
}

/* Eight pixels of a row in each lane, two in each vector. */
FI_INLINE void put(int16_t *out, uint64_t stride, uint64_t x, uint64_t plane, const __m256i *pixels)
{
    if (plane == 0) {
        const __m256i together = both_lanes(
            _mm_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1));
        for (int k = 0; k < 4; k++) { /* each overwrites the 2 values that the last has beyond its own */
            put_lanes(out + 3 * x + 6 * k, stride, _mm256_shuffle_epi8(pixels[k], together));
        }
    } else {
        const __m256i even = _mm256_unpacklo_epi16(pixels[0], pixels[1]); /* red of 0 and 2, ... */
        const __m256i odd = _mm256_unpackhi_epi16(pixels[0], pixels[1]);
        const __m256i later_even = _mm256_unpacklo_epi16(pixels[2], pixels[3]);
        const __m256i later_odd = _mm256_unpackhi_epi16(pixels[2], pixels[3]);
        const __m256i red_green = _mm256_unpacklo_epi16(even, odd); /* red of 0 to 3, green */
        const __m256i later_red_green = _mm256_unpacklo_epi16(later_even, later_odd);
        put_lanes(out + x, stride, _mm256_unpacklo_epi64(red_green, later_red_green));
        put_lanes(out + plane + x, stride, _mm256_unpackhi_epi64(red_green, later_red_green));
        put_lanes(out + 2 * plane + x, stride,
                  _mm256_unpacklo_epi64(_mm256_unpackhi_epi16(even, odd),
                                        _mm256_unpackhi_epi16(later_even, later_odd)));
    }
}

FI_INLINE void across_by(const fi_resize_axis *axis, const uint8_t *const *rows, int16_t *out,
                         uint64_t stride, uint64_t plane, uint32_t pairs)
{
    const __m128i shift = _mm_cvtsi32_si128((int)axis->shift);

    for (uint64_t x = 0; x < axis->n; x += FI_RESIZE_STEP) {
        __m256i upper[4], lower[4];
        for (uint64_t k = 0; k < 4; k++) {
            const four_rows left = pixel(axis, rows, x + 2 * k, pairs);
            const four_rows right = pixel(axis, rows, x + 2 * k + 1, pairs);
            upper[k] = two_pixels(left.upper, right.upper, shift);
            lower[k] = two_pixels(left.lower, right.lower, shift);
        }
        put(out, stride, x, plane, upper);
        put(out + 2 * stride, stride, x, plane, lower);
    }
}

FI_TARGET static void across(const fi_resize_axis *axis, const uint8_t *const *rows, int16_t *out,
                             uint64_t stride, uint64_t plane)
{
    switch (axis->taps) {
    case 2: across_by(axis, rows, out, stride, plane, 1); break;
    case 4: across_by(axis, rows, out, stride, plane, 2); break;
    case 6: across_by(axis, rows, out, stride, plane, 3); break;
    case 8: across_by(axis, rows, out, stride, plane, 4); break;
    default: across_by(axis, rows, out, stride, plane, axis->taps / 2);
    }
}

FI_INLINE __m256i values_at(const int16_t *values)
{
    return _mm256_loadu_si256((const __m256i *)values);
}

/* FI_RESIZE_VECTOR values of the result. */
FI_INLINE __m256i weighted(const int16_t *const *rows, uint64_t place, const int16_t *weights,
                           uint32_t pairs, __m128i shift, __m256i half)
{
    __m256i a = half, b = half, c = half, d = half;

    for (uint32_t p = 0; p < pairs; p++) {
        const __m256i weight = pair_of_weights(weights + 2 * p);
        const int16_t *const upper = rows[2 * p] + place, *const lower = rows[2 * p + 1] + place;
        const __m256i first = values_at(upper), second = values_at(lower);
        const __m256i third = values_at(upper + 16), fourth = values_at(lower + 16);
        a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi16(first, second), weight));
        b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi16(first, second), weight));
        c = _mm256_add_epi32(c, _mm256_madd_epi16(_mm256_unpacklo_epi16(third, fourth), weight));
        d = _mm256_add_epi32(d, _mm256_madd_epi16(_mm256_unpackhi_epi16(third, fourth), weight));
    }
    a = _mm256_packs_epi32(_mm256_srl_epi32(a, shift), _mm256_srl_epi32(b, shift));
    c = _mm256_packs_epi32(_mm256_srl_epi32(c, shift), _mm256_srl_epi32(d, shift));
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, c), _MM_SHUFFLE(3, 1, 2, 0));
}

FI_TARGET static void down(const int16_t *const *rows, uint64_t from, const int16_t *weights,
                           uint32_t pairs, unsigned shift, uint64_t n, uint8_t *out)
{
    const __m128i bits = _mm_cvtsi32_si128((int)shift);
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    uint64_t v = 0;

    for (; v + FI_RESIZE_VECTOR <= n; v += FI_RESIZE_VECTOR) {
        _mm256_storeu_si256((__m256i *)(out + v),
                            weighted(rows, from + v, weights, pairs, bits, half));
    }
    if (v == n)
        return;
    if (n >= FI_RESIZE_VECTOR) { /* the last ones once more, of which some are there */
        v = n - FI_RESIZE_VECTOR;
        _mm256_storeu_si256((__m256i *)(out + v),
                            weighted(rows, from + v, weights, pairs, bits, half));
    } else {
        uint8_t values[FI_RESIZE_VECTOR];
        _mm256_storeu_si256((__m256i *)values, weighted(rows, from, weights, pairs, bits, half));
        memcpy(out, values, n);
    }
}

const fi_resize_loops fi_resize_avx2 = {across, down};

#endif

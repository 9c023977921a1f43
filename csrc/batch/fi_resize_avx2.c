/* The loops of fi_resize for AVX2: two rows of pixels in the two lanes of a vector. Vectors of AVX-512, or its sums of
 * products, gain nothing: what takes the time is to bring the pixels into place. */
#include "batch/fi_resize_loops.h"

#ifdef __x86_64__

#include <immintrin.h>
#include <string.h>

#define FI_TARGET __attribute__((target("avx2")))
#define FI_INLINE FI_TARGET static inline __attribute__((always_inline))

/* Sums of 32 bits, each with the products of two values and a pair of weights. */
FI_INLINE __m256i with_products(__m256i sums, __m256i values, const int16_t *weights)
{
    int32_t both;

    memcpy(&both, weights, sizeof both);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(values, _mm256_set1_epi32(both)));
}

FI_INLINE __m256i pixels_at(const uint8_t *const *rows, uint64_t place)
{
    const __m128i upper = _mm_loadu_si128((const __m128i *)(rows[0] + place));
    const __m128i lower = _mm_loadu_si128((const __m128i *)(rows[1] + place));

    return _mm256_inserti128_si256(_mm256_castsi128_si256(upper), lower, 1);
}

/* Adds a pixel of four rows, each red, green, blue and nothing: from `fours` times four taps, and two more if `odd`. */
FI_INLINE void add_pixel(__m256i *sums, const uint8_t *const *rows, uint64_t place, const int16_t *weights,
                         uint32_t fours, bool odd)
{
    /* Widen a pair of taps to red, red, green, green, blue, blue of 16 bits. */
    const __m256i first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i second = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));

    for (const int16_t *const end = weights + 4 * (uint64_t)fours; weights != end; weights += 4, place += 12) {
        for (int k = 0; k < 2; k++) {
            const __m256i pixels = pixels_at(rows + 2 * k, place);
            sums[k] = with_products(sums[k], _mm256_shuffle_epi8(pixels, first), weights);
            sums[k] = with_products(sums[k], _mm256_shuffle_epi8(pixels, second), weights + 2);
        }
    }
    for (int k = 0; odd && k < 2; k++)
        sums[k] = with_products(sums[k], _mm256_shuffle_epi8(pixels_at(rows + 2 * k, place), first), weights);
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
    const __m256i close = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1));

    if (plane == 0) {
        for (int k = 0; k < 4; k++) /* each over the 2 values that the last one has beyond its own */
            put_lanes(out + 3 * x + 6 * k, stride, _mm256_shuffle_epi8(pixels[k], close));
        return;
    }
    const __m256i even = _mm256_unpacklo_epi16(pixels[0], pixels[1]), odd = _mm256_unpackhi_epi16(pixels[0], pixels[1]);
    const __m256i next_even = _mm256_unpacklo_epi16(pixels[2], pixels[3]);
    const __m256i next_odd = _mm256_unpackhi_epi16(pixels[2], pixels[3]);
    const __m256i red_green = _mm256_unpacklo_epi16(even, odd), next = _mm256_unpacklo_epi16(next_even, next_odd);
    const __m256i blue = _mm256_unpackhi_epi16(even, odd), next_blue = _mm256_unpackhi_epi16(next_even, next_odd);
    put_lanes(out + x, stride, _mm256_unpacklo_epi64(red_green, next));
    put_lanes(out + plane + x, stride, _mm256_unpackhi_epi64(red_green, next));
    put_lanes(out + 2 * plane + x, stride, _mm256_unpacklo_epi64(blue, next_blue));
}

FI_INLINE void across_by(const fi_resize_axis *axis, const uint8_t *const *sources, int16_t *out, uint64_t stride,
                         uint64_t plane, uint32_t fours, bool odd)
{
    const uint8_t *const rows[] = {sources[0], sources[1], sources[2], sources[3]};
    const __m256i half = _mm256_set1_epi32(1 << (axis->shift - 1));
    const __m128i shift = _mm_cvtsi32_si128((int)axis->shift);
    const uint64_t taps = 4 * (uint64_t)fours + 2 * odd;
    const int16_t *weights = axis->weights;

    for (uint64_t x = 0; x < axis->n; x += FI_RESIZE_STEP) {
        const uint64_t begin = axis->firsts[x], last = axis->firsts[x + FI_RESIZE_STEP - 1]; /* or mirrored */
        const uint64_t end = 3 * fi_max_u64(begin, last);
        __m256i pixels[2][4];
        for (uint64_t place = 3 * fi_min_u64(begin, last); place <= end; place += FI_CACHE_LINE) {
            for (int k = 0; k < FI_RESIZE_ROWS; k++) /* processors foresee a row, but not its start */
                __builtin_prefetch(sources[FI_RESIZE_ROWS + k] + place);
        }
        for (int k = 0; k < 4; k++, weights += 2 * taps) {
            const uint32_t *const firsts = axis->firsts + x + 2 * k;
            __m256i left[] = {half, half}, right[] = {half, half};
            add_pixel(left, rows, 3 * (uint64_t)firsts[0], weights, fours, odd);
            add_pixel(right, rows, 3 * (uint64_t)firsts[1], weights + taps, fours, odd);
            for (int pair = 0; pair < 2; pair++)
                pixels[pair][k] = two_pixels(left[pair], right[pair], shift);
        }
        for (int pair = 0; pair < 2; pair++)
            put(out + 2 * pair * stride, stride, x, plane, pixels[pair]);
    }
}

FI_TARGET static void across(const fi_resize_axis *axis, const uint8_t *const *rows, int16_t *out, uint64_t stride,
                             uint64_t plane)
{
    switch (axis->taps) { /* most crops have few, of which no loop is made */
    case 2: across_by(axis, rows, out, stride, plane, 0, true); break;
    case 4: across_by(axis, rows, out, stride, plane, 1, false); break;
    case 6: across_by(axis, rows, out, stride, plane, 1, true); break;
    case 8: across_by(axis, rows, out, stride, plane, 2, false); break;
    default: across_by(axis, rows, out, stride, plane, axis->taps / 4, axis->taps % 4 != 0);
    }
}

/* FI_RESIZE_VECTOR values of the result. */
FI_INLINE __m256i weighted(const int16_t *const *rows, uint64_t place, const int16_t *weights, uint32_t pairs,
                           unsigned shift)
{
    const __m128i bits = _mm_cvtsi32_si128((int)shift);
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    __m256i low[] = {half, half}, high[] = {half, half};

    for (uint32_t p = 0; p < pairs; p++) {
        const int16_t *const upper = rows[2 * p] + place, *const lower = rows[2 * p + 1] + place;
        for (int k = 0; k < 2; k++) {
            const __m256i first = _mm256_loadu_si256((const __m256i *)(upper + 16 * k));
            const __m256i second = _mm256_loadu_si256((const __m256i *)(lower + 16 * k));
            low[k] = with_products(low[k], _mm256_unpacklo_epi16(first, second), weights + 2 * p);
            high[k] = with_products(high[k], _mm256_unpackhi_epi16(first, second), weights + 2 * p);
        }
    }
    const __m256i values = _mm256_packus_epi16(two_pixels(low[0], high[0], bits), two_pixels(low[1], high[1], bits));
    return _mm256_permute4x64_epi64(values, _MM_SHUFFLE(3, 1, 2, 0));
}

FI_TARGET static void down(const int16_t *const *rows, uint64_t from, const int16_t *weights, uint32_t pairs,
                           unsigned shift, uint64_t n, uint8_t *out)
{
    for (uint64_t v = 0; v < n; v += FI_RESIZE_VECTOR) { /* the last ones may be done already */
        const uint64_t place = n < FI_RESIZE_VECTOR ? 0 : fi_min_u64(v, n - FI_RESIZE_VECTOR);
        const __m256i values = weighted(rows, from + place, weights, pairs, shift);
        if (n < FI_RESIZE_VECTOR)
            memcpy(out, &values, n);
        else
            _mm256_storeu_si256((__m256i *)(out + place), values);
    }
}

const fi_resize_loops fi_resize_avx2 = {across, down};

#endif

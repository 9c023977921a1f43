/* Steps of the virtual order for AVX2 and AVX-512. Several vectors are in flight, since each
 * multiplication of a half-round waits for the one before. */
#include "order/fi_virtual_step.h"

#ifdef __x86_64__

#include <immintrin.h>

#define MULTIPLIER_1 ((int)FI_VIRTUAL_MULTIPLIER_1)
#define MULTIPLIER_2 ((int)FI_VIRTUAL_MULTIPLIER_2)
#define MULTIPLIER_3 ((int)FI_VIRTUAL_MULTIPLIER_3)

/* -- AVX2: 8 indices in a vector, 4 vectors at a time -------------------------------------------- */

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i hashed8(__m256i half, __m256i key)
{
    half = _mm256_mullo_epi32(half, _mm256_set1_epi32(MULTIPLIER_1));
    half = _mm256_xor_si256(half, _mm256_srli_epi32(half, FI_VIRTUAL_SHIFT_1));
    half = _mm256_mullo_epi32(_mm256_xor_si256(half, key), _mm256_set1_epi32(MULTIPLIER_2));
    half = _mm256_xor_si256(half, _mm256_srli_epi32(half, FI_VIRTUAL_SHIFT_2));
    return _mm256_mullo_epi32(half, _mm256_set1_epi32(MULTIPLIER_3));
}

/* Upper halves of the products of 32 bits. */
AVX2 static inline __m256i scaled8(__m256i hash, __m256i size)
{
    const __m256i even = _mm256_mul_epu32(hash, size);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(hash, 32), size);

    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/* Lower and upper halves of two vectors of 64 bits, in the order 0 1 4 5 2 3 6 7, both alike. */
AVX2 static inline __m256i halves8(__m256i first, __m256i second)
{
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(first),
                                                 _mm256_castsi256_ps(second), 0x88));
}

AVX2 bool fi_virtual_step_avx2(const fi_virtual *order, uint64_t start, int64_t *out)
{
    enum { VECTORS = 4, LANES = 8 };
    const __m256i size = _mm256_set1_epi32((int)order->right_size);
    const __m256i mask = _mm256_set1_epi32((int)(((uint32_t)1 << order->left_bits) - 1));
    const __m128i bits = _mm_cvtsi32_si128((int)order->left_bits);
    const __m256i shift = _mm256_set1_epi32((int)(32 - order->left_bits));
    const __m256i last = _mm256_set1_epi64x((long long)order->n - 1);
    const __m256i count = _mm256_setr_epi64x(0, 1, 2, 3), four = _mm256_set1_epi64x(4);
    __m256i beyond = _mm256_setzero_si256();

    for (int block = 0; block < FI_VIRTUAL_STEP; block += VECTORS * LANES) {
        __m256i left[VECTORS], right[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const uint64_t from = start + (uint64_t)(block + v * LANES);
            const __m256i low = _mm256_add_epi64(_mm256_set1_epi64x((long long)from), count);
            const __m256i high = _mm256_add_epi64(low, four);
            left[v] = _mm256_and_si256(halves8(low, high), mask);
            right[v] = halves8(_mm256_srl_epi64(low, bits), _mm256_srl_epi64(high, bits));
        }
        for (uint32_t k = 0; k < order->rounds; k += 2) {
            const __m256i key0 = _mm256_set1_epi32((int)order->keys[k]);
            const __m256i key1 = _mm256_set1_epi32((int)order->keys[k + 1]);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                left[v] = _mm256_xor_si256(left[v],
                                           _mm256_srlv_epi32(hashed8(right[v], key0), shift));
            }
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                right[v] = _mm256_add_epi32(right[v], scaled8(hashed8(left[v], key1), size));
                right[v] = _mm256_min_epu32(right[v], _mm256_sub_epi32(right[v], size));
            }
        }
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const __m256i zero = _mm256_setzero_si256();
            const __m256i low = _mm256_or_si256(
                _mm256_sll_epi64(_mm256_unpacklo_epi32(right[v], zero), bits),
                _mm256_unpacklo_epi32(left[v], zero));
            const __m256i high = _mm256_or_si256(
                _mm256_sll_epi64(_mm256_unpackhi_epi32(right[v], zero), bits),
                _mm256_unpackhi_epi32(left[v], zero));
            beyond = _mm256_or_si256(beyond, _mm256_or_si256(_mm256_cmpgt_epi64(low, last),
                                                             _mm256_cmpgt_epi64(high, last)));
            _mm256_storeu_si256((__m256i *)(out + block + v * LANES), low);
            _mm256_storeu_si256((__m256i *)(out + block + v * LANES + 4), high);
        }
    }
    return _mm256_movemask_epi8(beyond) != 0;
}

/* -- AVX-512: 16 indices in a vector, 8 vectors at a time ---------------------------------------- */

#ifdef __clang__ /* which knows no such word, and would ignore the attribute as a whole */
#define AVX512 __attribute__((target("avx512f")))
#else
#define AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#endif

AVX512 static inline __m512i hashed16(__m512i half, __m512i key)
{
    enum { XOR_OF_THREE = 0x96 };

    half = _mm512_mullo_epi32(half, _mm512_set1_epi32(MULTIPLIER_1));
    half = _mm512_ternarylogic_epi32(half, _mm512_srli_epi32(half, FI_VIRTUAL_SHIFT_1), key,
                                     XOR_OF_THREE);
    half = _mm512_mullo_epi32(half, _mm512_set1_epi32(MULTIPLIER_2));
    half = _mm512_xor_si512(half, _mm512_srli_epi32(half, FI_VIRTUAL_SHIFT_2));
    return _mm512_mullo_epi32(half, _mm512_set1_epi32(MULTIPLIER_3));
}

AVX512 static inline __m512i scaled16(__m512i hash, __m512i size)
{
    const __m512i even = _mm512_mul_epu32(hash, size);
    const __m512i odd = _mm512_mul_epu32(
        _mm512_castps_si512(_mm512_movehdup_ps(_mm512_castsi512_ps(hash))), size);

    return _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_CDAB);
}

AVX512 bool fi_virtual_step_avx512(const fi_virtual *order, uint64_t start, int64_t *out)
{
    enum { VECTORS = 8, LANES = 16 };
    const __m512i size = _mm512_set1_epi32((int)order->right_size);
    const __m512i mask = _mm512_set1_epi32((int)(((uint32_t)1 << order->left_bits) - 1));
    const __m512i bits = _mm512_set1_epi64((long long)order->left_bits);
    const __m512i shift = _mm512_set1_epi32((int)(32 - order->left_bits));
    const __m512i n = _mm512_set1_epi64((long long)order->n);
    const __m512i count = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i left[VECTORS], right[VECTORS];
    __mmask8 beyond = 0;

#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const uint64_t from = start + (uint64_t)(v * LANES);
        const __m512i low = _mm512_add_epi64(_mm512_set1_epi64((long long)from), count);
        const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(8));
        left[v] = _mm512_and_si512(_mm512_permutex2var_epi32(low, even, high), mask);
        right[v] = _mm512_permutex2var_epi32(_mm512_srlv_epi64(low, bits), even,
                                             _mm512_srlv_epi64(high, bits));
    }
    for (uint32_t k = 0; k < order->rounds; k += 2) {
        const __m512i key0 = _mm512_set1_epi32((int)order->keys[k]);
        const __m512i key1 = _mm512_set1_epi32((int)order->keys[k + 1]);
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            left[v] = _mm512_xor_si512(left[v], _mm512_srlv_epi32(hashed16(right[v], key0), shift));
        }
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            right[v] = _mm512_add_epi32(right[v], scaled16(hashed16(left[v], key1), size));
            right[v] = _mm512_min_epu32(right[v], _mm512_sub_epi32(right[v], size));
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const __m512i low = _mm512_or_si512(
            _mm512_sllv_epi64(_mm512_cvtepu32_epi64(_mm512_castsi512_si256(right[v])), bits),
            _mm512_cvtepu32_epi64(_mm512_castsi512_si256(left[v])));
        const __m512i high = _mm512_or_si512(
            _mm512_sllv_epi64(_mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(right[v], 1)), bits),
            _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(left[v], 1)));
        beyond |= _mm512_cmpge_epu64_mask(low, n) | _mm512_cmpge_epu64_mask(high, n);
        _mm512_storeu_si512(out + v * LANES, low);
        _mm512_storeu_si512(out + v * LANES + 8, high);
    }
    return beyond != 0;
}

#else
typedef int fi_virtual_x86_unused; /* a translation unit may not be empty */
#endif

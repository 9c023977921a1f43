/* The loops for AVX2. */
#include "order/fi_loops.h"

#ifdef __x86_64__

#include <immintrin.h>

#define FI_TARGET __attribute__((target("avx2,bmi2,popcnt")))
typedef uint64_t fi_words __attribute__((vector_size(32)));
typedef uint32_t fi_halves __attribute__((vector_size(32)));

#define FI_NUMBERS {0, 1, 2, 3}
#define FI_VECTORS 4
#define FI_LOW_PRODUCTS(a, b) ((fi_words)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define FI_BLENDED(low, high)                                                                      \
    ((fi_words)_mm256_blend_epi32((__m256i)(low), (__m256i)(high), 0xaa))
#define FI_UPPER_HALVES(even, odd) FI_BLENDED((even) >> 32, odd)
#define FI_SMALLER(a, b) ((fi_halves)_mm256_min_epu32((__m256i)(a), (__m256i)(b)))
/* There is no unsigned comparison; x >= bound where the larger of both is x. */
#define FI_ANY_BELOW(x, bound)                                                                     \
    (_mm256_movemask_epi8(_mm256_cmpeq_epi32(                                                      \
         _mm256_max_epu32((__m256i)(x), _mm256_set1_epi32((int)(bound))), (__m256i)(x))) != -1)

#include "order/fi_loops_body.h"

const fi_loops fi_loops_avx2 = FI_LOOPS(virtual_step);

#endif

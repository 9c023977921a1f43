/* The loops for AVX-512 F and BW. */
#include "order/fi_loops.h"

#ifdef __x86_64__

#include <immintrin.h>

#ifdef __clang__ /* which knows no preferred width, and would ignore the attribute as a whole */
#define FI_TARGET __attribute__((target("avx512f,avx512bw,bmi2,popcnt")))
#else
#define FI_TARGET __attribute__((target("avx512f,avx512bw,bmi2,popcnt,prefer-vector-width=512")))
#endif
typedef uint64_t fi_words __attribute__((vector_size(64)));
typedef uint32_t fi_halves __attribute__((vector_size(64)));

#define FI_NUMBERS {0, 1, 2, 3, 4, 5, 6, 7}
#define FI_VECTORS 8
#define FI_LOW_PRODUCTS(a, b) ((fi_words)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define FI_BLENDED(low, high)                                                                      \
    ((fi_words)_mm512_mask_blend_epi32(0xaaaa, (__m512i)(low), (__m512i)(high)))
#define FI_UPPER_HALVES(even, odd)                                                                 \
    ((fi_words)_mm512_mask_shuffle_epi32((__m512i)(odd), 0x5555, (__m512i)(even), _MM_PERM_CDAB))
#define FI_SMALLER(a, b) ((fi_halves)_mm512_min_epu32((__m512i)(a), (__m512i)(b)))
#define FI_ANY_BELOW(x, bound)                                                                     \
    (_mm512_cmplt_epu32_mask((__m512i)(x), _mm512_set1_epi32((int)(bound))) != 0)

#include "order/fi_loops_body.h"

const fi_loops fi_loops_avx512 = FI_LOOPS(virtual_step);

#endif

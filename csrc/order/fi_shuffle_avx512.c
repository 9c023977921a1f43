/* The loops of the fast shuffle for AVX-512 F and BW: all eight lanes in one register. */
#include "order/fi_shuffle_loops.h"

#ifdef __x86_64__

#include <immintrin.h>

#define FI_TARGET __attribute__((target("avx512f,avx512bw,bmi2,popcnt")))

typedef struct {
    __m512i s0, s1, s2, s3;
} fi_vector;

FI_TARGET static inline fi_vector fi_vector_load(const fi_unit *unit)
{
    return (fi_vector){_mm512_load_si512(unit->lanes[0]), _mm512_load_si512(unit->lanes[1]),
                       _mm512_load_si512(unit->lanes[2]), _mm512_load_si512(unit->lanes[3])};
}

FI_TARGET static inline __m512i next_words(fi_vector *v)
{
    const __m512i sum = _mm512_rol_epi64(_mm512_add_epi64(v->s0, v->s3), 23);
    const __m512i words = _mm512_add_epi64(sum, v->s0), t = _mm512_slli_epi64(v->s1, 17);

    v->s2 = _mm512_xor_si512(v->s2, v->s0);
    v->s3 = _mm512_xor_si512(v->s3, v->s1);
    v->s1 = _mm512_xor_si512(v->s1, v->s2);
    v->s0 = _mm512_xor_si512(v->s0, v->s3);
    v->s2 = _mm512_xor_si512(v->s2, t);
    v->s3 = _mm512_rol_epi64(v->s3, 45);
    return words;
}

FI_TARGET static inline void fi_draw16(fi_vector *vector, fi_unit *unit, uint32_t bound,
                                       uint32_t count, uint32_t *draws)
{
    const __m512i words = next_words(vector);
    const __m512i first = _mm512_set1_epi64(bound);
    /* _mm512_mul_epu32 takes the low halves alone, so what is borrowed from the high ones is lost. */
    const __m512i even = _mm512_sub_epi64(first, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14));
    const __m512i odd = _mm512_sub_epi64(first, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15));
    const __m512i low = _mm512_mul_epu32(words, even);
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(words, 32), odd);
    const __m512i fraction = _mm512_mask_blend_epi32(0xaaaa, low, _mm512_slli_epi64(high, 32));
    const __m512i whole = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(low, 32), high);

    _mm512_store_si512(draws, whole);
    if (__builtin_expect(_mm512_cmplt_epu32_mask(fraction, _mm512_set1_epi32((int)bound)), 0)) {
        _Alignas(FI_CACHE_LINE) uint64_t stored[FI_LANES];
        _mm512_store_si512(stored, words);
        fi_shuffle_redraw(unit, stored, bound, count, draws);
    }
}

FI_TARGET static inline void fi_words8(fi_vector *vector, uint64_t *words)
{
    _mm512_store_si512(words, next_words(vector));
}

#include "order/fi_shuffle_x86.h"
#include "order/fi_shuffle_body.h"

const fi_shuffle_loops fi_shuffle_avx512 = FI_SHUFFLE_LOOPS;

#else
typedef int fi_shuffle_avx512_unused; /* a translation unit may not be empty */
#endif

/* The loops of the fast shuffle for AVX2: four lanes in each of two registers. */
#include "order/fi_shuffle_loops.h"

#ifdef __x86_64__

#include <immintrin.h>

#define FI_TARGET __attribute__((target("avx2,bmi2,popcnt")))

/* s[0] holds lanes 0 to 3, s[1] lanes 4 to 7. */
typedef struct {
    __m256i s0[2], s1[2], s2[2], s3[2];
} fi_vector;

FI_TARGET static inline __m256i lanes_of(const uint64_t *four)
{
    return _mm256_load_si256((const __m256i *)four);
}

FI_TARGET static inline fi_vector fi_vector_load(const fi_unit *unit)
{
    return (fi_vector){{lanes_of(unit->lanes[0]), lanes_of(unit->lanes[0] + 4)},
                       {lanes_of(unit->lanes[1]), lanes_of(unit->lanes[1] + 4)},
                       {lanes_of(unit->lanes[2]), lanes_of(unit->lanes[2] + 4)},
                       {lanes_of(unit->lanes[3]), lanes_of(unit->lanes[3] + 4)}};
}

FI_TARGET static inline __m256i rotated(__m256i x, int k)
{
    return _mm256_or_si256(_mm256_slli_epi64(x, k), _mm256_srli_epi64(x, 64 - k));
}

FI_TARGET static inline __m256i next_words(fi_vector *v, int half)
{
    __m256i s0 = v->s0[half], s1 = v->s1[half], s2 = v->s2[half], s3 = v->s3[half];
    const __m256i words = _mm256_add_epi64(rotated(_mm256_add_epi64(s0, s3), 23), s0);
    const __m256i t = _mm256_slli_epi64(s1, 17);

    s2 = _mm256_xor_si256(s2, s0);
    s3 = _mm256_xor_si256(s3, s1);
    s1 = _mm256_xor_si256(s1, s2);
    s0 = _mm256_xor_si256(s0, s3);
    v->s0[half] = s0;
    v->s1[half] = s1;
    v->s2[half] = _mm256_xor_si256(s2, t);
    v->s3[half] = rotated(s3, 45);
    return words;
}

/* Draws from one half of the lanes; true where one of them may have to be rejected. `even` and `odd`
 * hold the bounds of the words' low and high halves; the upper half of each 64 bits is ignored. */
FI_TARGET static inline bool draw8(__m256i words, __m256i even, __m256i odd, __m256i bound,
                                   uint32_t *draws)
{
    const __m256i low = _mm256_mul_epu32(words, even);
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(words, 32), odd);
    const __m256i fraction = _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa);
    const __m256i whole = _mm256_blend_epi32(_mm256_srli_epi64(low, 32), high, 0xaa);
    /* There is no unsigned comparison; fraction >= bound where the larger of both is fraction. */
    const __m256i kept = _mm256_cmpeq_epi32(_mm256_max_epu32(fraction, bound), fraction);

    _mm256_store_si256((__m256i *)draws, whole);
    return _mm256_movemask_epi8(kept) != -1;
}

FI_TARGET static inline void fi_draw16(fi_vector *vector, fi_unit *unit, uint32_t bound,
                                       uint32_t count, uint32_t *draws)
{
    const __m256i words[2] = {next_words(vector, 0), next_words(vector, 1)};
    const __m256i first = _mm256_set1_epi64x(bound), bounds = _mm256_set1_epi32((int)bound);
    const __m256i even = _mm256_sub_epi64(first, _mm256_setr_epi64x(0, 2, 4, 6));
    const __m256i odd = _mm256_sub_epi64(first, _mm256_setr_epi64x(1, 3, 5, 7));
    const __m256i eight = _mm256_set1_epi64x(8);
    const bool near_first = draw8(words[0], even, odd, bounds, draws);
    const bool near_last = draw8(words[1], _mm256_sub_epi64(even, eight),
                                 _mm256_sub_epi64(odd, eight), bounds, draws + 8);

    if (__builtin_expect(near_first || near_last, 0)) {
        _Alignas(FI_CACHE_LINE) uint64_t stored[FI_LANES];
        _mm256_store_si256((__m256i *)stored, words[0]);
        _mm256_store_si256((__m256i *)(stored + 4), words[1]);
        fi_shuffle_redraw(unit, stored, bound, count, draws);
    }
}

FI_TARGET static inline void fi_words8(fi_vector *vector, uint64_t *words)
{
    _mm256_store_si256((__m256i *)words, next_words(vector, 0));
    _mm256_store_si256((__m256i *)(words + 4), next_words(vector, 1));
}

#include "order/fi_shuffle_x86.h"
#include "order/fi_shuffle_body.h"

const fi_shuffle_loops fi_shuffle_avx2 = FI_SHUFFLE_LOOPS;

#else
typedef int fi_shuffle_avx2_unused; /* a translation unit may not be empty */
#endif

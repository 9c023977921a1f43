#include "order/fi_shuffle.h"

#include "base/fi_mix.h"
#include "order/fi_loops.h"

/* None of these may change: they decide what order a seed gives. */
enum {
    CELLS16_MAX = 1 << 16,
    CELLS32_MAX = 1 << 20,
    BUCKET_SIZE = 49152, /* at most this many on average: a bucket of 16-bit cells fits into the L2 cache */
    BLOCK_BITS = 16
};

void fi_unit_init(fi_unit *unit, const fi_seed *key, unsigned kind, uint32_t number)
{
    fi_seed own = fi_seed_mixed(key, (uint64_t)kind << 32 | number);

    /* A lane takes two words of each splitmix64 sequence. No two of a sequence are equal, so no lane
     * is all zero, which xoshiro256++ never leaves. */
    for (int l = 0; l < FI_LANES; l++) {
        for (int w = 0; w < 4; w++)
            unit->lanes[w][l] = fi_splitmix64(&own.words[w % 2]);
    }
    for (int w = 0; w < 4; w++)
        unit->spare[w][0] = fi_splitmix64(&own.words[w % 2]);
}

void fi_shuffle_redraw(fi_unit *unit, const uint64_t *words, uint32_t bound, uint32_t count,
                       uint32_t *draws)
{
    for (uint32_t k = 0; k < count && k < 2 * FI_LANES; k++) {
        const uint32_t own = bound - k, least = -own % own;
        uint64_t product = (words[k / 2] >> 32 * (k % 2) & UINT32_MAX) * own;

        while ((uint32_t)product < least) {
            uint64_t word;
            FI_XOSHIRO(word, unit->spare, 0);
            product = (word >> 32) * own;
        }
        draws[k] = (uint32_t)(product >> 32);
    }
}

const fi_loops *fi_loops_of(int isa)
{
#ifdef __x86_64__
    if (isa != FI_ISA_GENERIC && fi_has_isa(isa))
        return isa == FI_ISA_AVX512 ? &fi_loops_avx512 : &fi_loops_avx2;
#endif
    return isa == FI_ISA_GENERIC ? &fi_loops_generic : NULL;
}

fi_shuffle_plan fi_shuffle_plan_of(uint64_t n)
{
    fi_shuffle_plan plan = {.method = FI_SHUFFLE_CELLS16};

    if (n > CELLS32_MAX) {
        plan.method = FI_SHUFFLE_SCATTER;
        plan.block_bits = BLOCK_BITS;
        while (plan.bucket_bits < FI_BUCKET_BITS_MAX && n >> plan.bucket_bits > BUCKET_SIZE)
            plan.bucket_bits++;
    } else if (n > CELLS16_MAX) {
        plan.method = FI_SHUFFLE_CELLS32;
    }
    return plan;
}

unsigned fi_shuffle_threads(uint64_t n)
{
    /* Starting a thread takes some 30 us, four blocks a millisecond. */
    return n > CELLS32_MAX ? (unsigned)fi_min_u64(n >> (BLOCK_BITS + 2), 1024) : 1;
}

static bool plan_fits(const fi_shuffle_plan *plan, uint64_t n)
{
    switch (plan->method) {
    case FI_SHUFFLE_CELLS16:
        return n <= CELLS16_MAX;
    case FI_SHUFFLE_CELLS32:
        return n <= FI_SHUFFLE_MAX;
    case FI_SHUFFLE_SCATTER:
        return n <= FI_SHUFFLE_MAX && plan->bucket_bits <= FI_BUCKET_BITS_MAX &&
               plan->block_bits < 32;
    default:
        return false;
    }
}

int fi_shuffle_by(const fi_shuffle_plan *plan, int isa, int64_t *order, uint64_t n,
                  const fi_seed *seed, uint64_t stream, unsigned threads)
{
    const fi_loops *const loops = fi_loops_of(isa);
    fi_seed key = fi_seed_mixed(seed, n);
    fi_unit unit;

    if (loops == NULL || !plan_fits(plan, n) || threads == 0)
        return FI_E_RANGE;
    key = fi_seed_mixed(&key, stream);
    if (plan->method == FI_SHUFFLE_SCATTER)
        return fi_shuffle_scatter(plan, loops, order, (uint32_t)n, &key, threads);
    fi_unit_init(&unit, &key, FI_UNIT_ORDER, 0);
    if (plan->method == FI_SHUFFLE_CELLS16)
        loops->order16(&unit, order, (uint32_t)n);
    else
        loops->order32(&unit, order, (uint32_t)n);
    return FI_OK;
}

int fi_shuffle(int64_t *order, uint64_t n, const fi_seed *seed, uint64_t stream, unsigned threads)
{
    const fi_shuffle_plan plan = fi_shuffle_plan_of(n);

    return fi_shuffle_by(&plan, fi_isa(), order, n, seed, stream, threads);
}

#include "order/fi_shuffle.h"

/* The constants and steps of numpy.random.SeedSequence, which NumPy promises to keep. */
enum { POOL = 4 };
static const uint32_t INIT_A = 0x43b0d7e5, MULTIPLIER_A = 0x931e8875;
static const uint32_t INIT_B = 0x8b51f9dd, MULTIPLIER_B = 0x58f38ded;

static uint32_t hashed(uint32_t value, uint32_t *factor, uint32_t multiplier)
{
    value ^= *factor;
    *factor *= multiplier;
    value *= *factor;
    return value ^ value >> 16;
}

static uint32_t joined(uint32_t x, uint32_t y)
{
    const uint32_t value = 0xca01f9dd * x - 0x4973f715 * y;

    return value ^ value >> 16;
}

void fi_seed_from_entropy(fi_seed *seed, const uint32_t *entropy, size_t words)
{
    uint32_t pool[POOL], factor = INIT_A;

    for (size_t i = 0; i < POOL; i++)
        pool[i] = hashed(i < words ? entropy[i] : 0, &factor, MULTIPLIER_A);
    for (size_t from = 0; from < POOL; from++) {
        for (size_t to = 0; to < POOL; to++) {
            if (to != from)
                pool[to] = joined(pool[to], hashed(pool[from], &factor, MULTIPLIER_A));
        }
    }
    for (size_t from = POOL; from < words; from++) {
        for (size_t to = 0; to < POOL; to++)
            pool[to] = joined(pool[to], hashed(entropy[from], &factor, MULTIPLIER_A));
    }
    factor = INIT_B;
    for (size_t i = 0; i < POOL; i++)
        pool[i] = hashed(pool[i], &factor, MULTIPLIER_B);
    for (size_t i = 0; i < 2; i++)
        seed->words[i] = pool[2 * i] | (uint64_t)pool[2 * i + 1] << 32;
}

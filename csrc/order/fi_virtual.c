#include "order/fi_virtual.h"

#include <string.h>

#include "base/fi_mix.h"
#include "order/fi_loops.h"

enum { FEW = 8 }; /* up to this many are sooner computed one by one than in a whole step */

int fi_virtual_init(fi_virtual *order, uint64_t n, const fi_seed *seed, uint64_t stream,
                    uint32_t rounds)
{
    fi_seed key;
    unsigned bits = 0;

    if (n < FI_VIRTUAL_MIN || n > FI_VIRTUAL_MAX || rounds > FI_VIRTUAL_ROUNDS || rounds % 2 != 0)
        return FI_E_RANGE;
    while (bits < 62 && ((n - 1) >> bits) != 0)
        bits++;
    order->n = n;
    order->left_bits = bits / 2;
    order->right_size = (uint32_t)(((n - 1) >> order->left_bits) + 1);
    order->rounds = rounds;
    key = fi_seed_mixed(seed, n);
    key = fi_seed_mixed(&key, stream);
    key = fi_seed_mixed(&key, (uint64_t)FI_PURPOSE_VIRTUAL << 32);
    for (int k = 0; k < FI_VIRTUAL_ROUNDS; k += 2) {
        /* Each of the two words gives a key of either half. */
        order->keys[k] = (uint32_t)(fi_splitmix64(&key.words[0]) >> 32);
        order->keys[k + 1] = (uint32_t)(fi_splitmix64(&key.words[1]) >> 32);
    }
    return FI_OK;
}

static inline uint32_t hashed(uint32_t half, uint32_t key)
{
    FI_VIRTUAL_HASH(half, key);
    return half;
}

/* The right half, moved by the share of its size that the hash is of 2^32. */
static inline uint32_t moved(uint32_t right, uint32_t hash, uint32_t size)
{
    right += (uint32_t)((uint64_t)hash * size >> 32);
    return right < size ? right : right - size;
}

static inline uint64_t image(const fi_virtual *order, uint64_t i)
{
    const uint32_t size = order->right_size, shift = 32 - order->left_bits;
    uint32_t left = (uint32_t)i & (((uint32_t)1 << order->left_bits) - 1);
    uint32_t right = (uint32_t)(i >> order->left_bits);

    for (uint32_t k = 0; k < order->rounds; k += 2) {
        left ^= hashed(right, order->keys[k]) >> shift;
        right = moved(right, hashed(left, order->keys[k + 1]), size);
    }
    return (uint64_t)right << order->left_bits | left;
}

/* As image(), one half-round of many indices after the other, which compilers make vectors of. */
bool fi_virtual_step_generic(const fi_virtual *order, uint64_t start, int64_t *out)
{
    enum { LANES = 32 };
    const uint32_t size = order->right_size, bits = order->left_bits, shift = 32 - bits;
    bool beyond = false;

    for (uint64_t block = 0; block < FI_VIRTUAL_STEP; block += LANES) {
        uint32_t left[LANES], right[LANES];
        for (uint64_t k = 0; k < LANES; k++) {
            left[k] = (uint32_t)(start + block + k) & (((uint32_t)1 << bits) - 1);
            right[k] = (uint32_t)((start + block + k) >> bits);
        }
        for (uint32_t round = 0; round < order->rounds; round += 2) {
            for (int k = 0; k < LANES; k++)
                left[k] ^= hashed(right[k], order->keys[round]) >> shift;
            for (int k = 0; k < LANES; k++)
                right[k] = moved(right[k], hashed(left[k], order->keys[round + 1]), size);
        }
        for (uint64_t k = 0; k < LANES; k++) {
            const uint64_t index = (uint64_t)right[k] << bits | left[k];
            out[block + k] = (int64_t)index;
            beyond |= index >= order->n;
        }
    }
    return beyond;
}

/* The images of 0 .. n-1 that are n or more belong to cycles that also pass below n: walking on
 * ends there, and different indices end at different places. */
static void walk(const fi_virtual *order, int64_t *out, size_t count)
{
    for (size_t k = 0; k < count; k++) {
        while ((uint64_t)out[k] >= order->n)
            out[k] = (int64_t)image(order, (uint64_t)out[k]);
    }
}

int fi_virtual_fill(const fi_virtual *order, int isa, uint64_t start, size_t count, int64_t *out)
{
    const fi_loops *const loops = fi_loops_of(isa);

    if (loops == NULL)
        return FI_E_RANGE;
    for (; count >= FI_VIRTUAL_STEP; count -= FI_VIRTUAL_STEP) {
        if (loops->virtual_step(order, start, out))
            walk(order, out, FI_VIRTUAL_STEP);
        start += FI_VIRTUAL_STEP;
        out += FI_VIRTUAL_STEP;
    }
    if (count <= FEW) {
        for (size_t k = 0; k < count; k++)
            out[k] = (int64_t)image(order, start + k);
        walk(order, out, count);
    } else {
        int64_t rest[FI_VIRTUAL_STEP];
        loops->virtual_step(order, start, rest); /* from n on it computes what is never read */
        walk(order, rest, count);
        memcpy(out, rest, count * sizeof rest[0]);
    }
    return FI_OK;
}

void fi_example_words(const fi_seed *seed, uint64_t epoch, uint64_t index, uint64_t *words)
{
    fi_seed key = fi_seed_mixed(seed, epoch);

    key = fi_seed_mixed(&key, index);
    key = fi_seed_mixed(&key, (uint64_t)FI_PURPOSE_EXAMPLE << 32);
    for (int i = 0; i < 4; i++)
        words[i] = fi_splitmix64(&key.words[i % 2]);
}

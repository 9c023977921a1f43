#include "base/fi_checksum.h"

#include <string.h>

#include "base/fi_mix.h"

static inline uint64_t word_at(const unsigned char *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* Multiplication by an odd number and the shifted xor are bijections of the state, and so is adding
 * a word: two inputs that differ in one word never meet again. */
static inline uint64_t add(uint64_t state, uint64_t word)
{
    state = (state ^ word) * 0x9fb21c651e98df25u;
    return state ^ state >> 32;
}

uint64_t fi_checksum(const void *bytes, size_t count, uint64_t seed)
{
    const unsigned char *from = bytes;
    size_t left = count;
    uint64_t sum = fi_mixed(seed + count * FI_GOLDEN);
    if (left >= 64) {
        /* Four chains at once: a multiplication takes longer than the processor waits to begin the
         * next one. */
        uint64_t lanes[4] = {sum, ~sum, sum ^ FI_GOLDEN, ~sum ^ FI_GOLDEN};
        for (; left >= 32; left -= 32, from += 32)
            for (int lane = 0; lane < 4; lane++)
                lanes[lane] = add(lanes[lane], word_at(from + 8 * lane));
        sum = lanes[0];
        for (int lane = 1; lane < 4; lane++)
            sum = add(sum, lanes[lane]);
    }
    for (; left >= 8; left -= 8, from += 8)
        sum = add(sum, word_at(from));
    if (left > 0) {
        uint64_t rest = 0;
        memcpy(&rest, from, left);
        sum = add(sum, rest);
    }
    sum = fi_mixed(sum);
    return sum ? sum : 1;
}

uint64_t fi_place_seed(uint64_t q, uint32_t row, uint32_t kind)
{
    return fi_mixed(fi_mixed((q & UINT32_MAX) << 32 | row) + kind);
}

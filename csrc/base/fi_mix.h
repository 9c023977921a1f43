/* Mixing of seeds: how a key for one purpose is made from 128 bits of seed. Results are part of
 * what a seed gives, so nothing here may change. */
#ifndef FI_MIX_H
#define FI_MIX_H

#include "base/fi_base.h"

typedef struct {
    uint64_t words[2];
} fi_seed;

/* Purposes of keys; the shuffle's own units of work have the numbers below. */
enum { FI_PURPOSE_VIRTUAL = 16, FI_PURPOSE_REPLACED, FI_PURPOSE_RACE, FI_PURPOSE_EXAMPLE };

#define FI_GOLDEN 0x9e3779b97f4a7c15u

/* The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014; Stafford's variant 13): a bijection. */
static inline uint64_t fi_mixed(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The next word of the splitmix64 sequence that *state is in. */
static inline uint64_t fi_splitmix64(uint64_t *state)
{
    return fi_mixed(*state += FI_GOLDEN);
}

/* A key of its own for each number. The two words never meet: for one number this is a bijection of
 * 128 bits. */
static inline fi_seed fi_seed_mixed(const fi_seed *seed, uint64_t number)
{
    return (fi_seed){{fi_mixed(seed->words[0] ^ fi_mixed(number + FI_GOLDEN)),
                      fi_mixed(seed->words[1] ^ fi_mixed(number - FI_GOLDEN))}};
}

#endif

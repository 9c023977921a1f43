/* The fast shuffle: a uniformly random order of n indices, made from 128 bits of seed.
 *
 * An order depends on n, the seed and the stream number alone: never on the number of threads, the
 * instruction set, or the machine's byte order. It never changes between releases either, since
 * users give a seed to get the same order again.
 *
 * How an order is made is chosen by n:
 *
 * - up to 65,536: Fisher and Yates's shuffle (Durstenfeld, CACM 7(7), 1964) of 16-bit cells;
 * - up to 4,194,304: the same of 32-bit cells, with the draws made and their places fetched into
 *   the cache ahead of the swaps;
 * - above: the deal. Each position draws one of K piles, K a power of two. Pile b holds the values
 *   first_b .. first_b + size_b - 1, where size_b is the number of positions that drew b and
 *   first_b the sum of the sizes before; it is shuffled as above, and its positions take its
 *   values from the top. Each byte is moved once, and piles fit into the cache. This is the
 *   inverse of the scatter shuffle of Rao (1961) and Sandelius (1962), hence just as uniform.
 *
 * The generator is eight lanes of xoshiro256++ (Blackman and Vigna, ACM TOMS 47(4), 2021). Bounded
 * draws multiply 32 random bits by the bound, and reject so that they are exactly uniform (Lemire,
 * ACM TOMACS 29(1), 2019); what replaces a rejected draw comes from a lane of its own.
 */
#ifndef FI_SHUFFLE_H
#define FI_SHUFFLE_H

#include "fi_base.h"

enum {
    FI_SHUFFLE_CELLS16,
    FI_SHUFFLE_CELLS32,
    FI_SHUFFLE_DEAL
};

/* Instruction sets that the loops are compiled for. */
enum {
    FI_ISA_GENERIC,
    FI_ISA_AVX2,
    FI_ISA_AVX512,
    FI_ISA_COUNT
};

#define FI_SHUFFLE_MAX UINT32_MAX
#define FI_LABEL_BITS_MAX 12

typedef struct {
    uint64_t words[2];
} fi_seed;

/* How an order is made. The fields after `method` are the deal's. */
typedef struct {
    int method;
    unsigned label_bits; /* K = 2^label_bits piles, at most FI_LABEL_BITS_MAX */
    unsigned block_bits; /* labels are drawn in blocks of 2^block_bits positions, at least 2^5 */
    bool cells32;        /* 32-bit cells also where 16 bits would do: the same order */
} fi_shuffle_plan;

fi_shuffle_plan fi_shuffle_plan_of(uint64_t n);

/* Best instruction set of this processor. */
int fi_shuffle_isa(void);

/* Number of threads that are of use for n. */
unsigned fi_shuffle_threads(uint64_t n);

/* order[0 .. n-1]: the order of (n, seed, stream). Made by at most `threads` threads, this one
 * included, at least 1. FI_E_RANGE for n above FI_SHUFFLE_MAX, FI_E_MEMORY where there is none
 * for the piles; a thread that cannot be started is done without. */
int fi_shuffle(int64_t *order, uint64_t n, const fi_seed *seed, uint64_t stream, unsigned threads);

/* The same by another plan or instruction set than the best one, for tests and benchmarks.
 * FI_E_RANGE for an instruction set that this processor lacks, or a plan that does not fit n. */
int fi_shuffle_by(const fi_shuffle_plan *plan, int isa, int64_t *order, uint64_t n,
                  const fi_seed *seed, uint64_t stream, unsigned threads);

/* What numpy.random.SeedSequence(entropy).generate_state(2, uint64) gives, where the entropy is
 * given as 32-bit words, lowest first (O'Neill, "Developing a seed_seq alternative", 2015). */
void fi_seed_from_entropy(fi_seed *seed, const uint32_t *entropy, size_t words);

#endif

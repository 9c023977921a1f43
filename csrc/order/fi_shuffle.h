/* The fast shuffle: a uniformly random order of n indices, made from 128 bits of seed.
 *
 * An order depends on n, the seed and the stream number alone: never on the number of threads, the
 * instruction set, or the machine's byte order. It never changes between releases either, since
 * users give a seed to get the same order again.
 *
 * How an order is made is chosen by n:
 *
 * - up to 65,536: Fisher and Yates's shuffle (Durstenfeld, CACM 7(7), 1964) of 16-bit cells;
 * - up to 1,048,576: the same of 32-bit cells, with the draws made and their places fetched into
 *   the cache ahead of the swaps;
 * - above: the scatter. Positions lie in blocks, values in K buckets, K a power of two. How many values
 *   each block gets of each bucket is drawn first; the sums over the blocks are the sizes of the
 *   buckets. Then each bucket is shuffled, each block takes its numbers of values from the top of the
 *   buckets, and is shuffled too. Nothing but buckets and blocks is read in random order, and these
 *   fit into the cache; each can be made by another thread.
 *
 * Why the scatter is uniform. If every position drew a bucket at random, and the positions took the
 * values of their buckets in turn, then the inverse of the order would be made by the scatter shuffle
 * of Rao (1961) and Sandelius (1962): each value goes to a random place list, the lists are shuffled
 * and joined. That is uniform, and so is its inverse. It stays uniform when the positions of each
 * block are then shuffled among themselves; but after that it does not matter any more which
 * position of the block drew which bucket, only how many did. The number of those that draw the left
 * half of the buckets is the number of ones among as many random bits, and so on down the halves.
 *
 * The generator is eight lanes of xoshiro256++ (Blackman and Vigna, ACM TOMS 47(4), 2021). Bounded
 * draws multiply 32 random bits by the bound, and reject so that they are exactly uniform (Lemire,
 * ACM TOMACS 29(1), 2019); what replaces a rejected draw comes from a lane of its own.
 */
#ifndef FI_SHUFFLE_H
#define FI_SHUFFLE_H

#include "base/fi_base.h"
#include "base/fi_isa.h"
#include "base/fi_mix.h"

enum {
    FI_SHUFFLE_CELLS16,
    FI_SHUFFLE_CELLS32,
    FI_SHUFFLE_SCATTER
};

#define FI_SHUFFLE_MAX UINT32_MAX
#define FI_BUCKET_BITS_MAX 12

/* Recipe of an order. The fields after `method` are the scatter's. */
typedef struct {
    int method;
    unsigned bucket_bits; /* K = 2^bucket_bits buckets, at most FI_BUCKET_BITS_MAX */
    unsigned block_bits; /* blocks of 2^block_bits positions, below 32 */
    bool cells32;        /* 32-bit cells also where 16 bits would do: the same order */
} fi_shuffle_plan;

fi_shuffle_plan fi_shuffle_plan_of(uint64_t n);

/* Number of threads that are of use for n. */
unsigned fi_shuffle_threads(uint64_t n);

/* order[0 .. n-1]: the order of (n, seed, stream). Made by at most `threads` threads, this one
 * included, at least 1. FI_E_RANGE for n above FI_SHUFFLE_MAX, FI_E_MEMORY where there is none
 * for the buckets; a thread that cannot be started is done without. */
int fi_shuffle(int64_t *order, uint64_t n, const fi_seed *seed, uint64_t stream, unsigned threads);

/* The same by another plan or instruction set than the best one, for tests.
 * FI_E_RANGE for an instruction set that this processor lacks, or a plan that does not fit n. */
int fi_shuffle_by(const fi_shuffle_plan *plan, int isa, int64_t *order, uint64_t n,
                  const fi_seed *seed, uint64_t stream, unsigned threads);

/* The result of numpy.random.SeedSequence(entropy).generate_state(2, uint64), where the entropy is
 * given as 32-bit words, lowest first (O'Neill, "Developing a seed_seq alternative", 2015). */
void fi_seed_from_entropy(fi_seed *seed, const uint32_t *entropy, size_t words);

#endif

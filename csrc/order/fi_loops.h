/* Common parts of the files of the orders: the generator, and the table of the loops
 * that each instruction set compiles for itself (fi_loops_body.h). */
#ifndef FI_LOOPS_H
#define FI_LOOPS_H

#include "order/fi_shuffle.h"
#include "order/fi_virtual.h"

enum { FI_LANES = 8 };

/* Generator of one unit of work. */
typedef struct {
    _Alignas(FI_CACHE_LINE) uint64_t lanes[4][FI_LANES];
    uint64_t spare[4][1]; /* lane that replaces rejected draws */
} fi_unit;

#define FI_ROTATED(x, k) ((x) << (k) | (x) >> (64 - (k)))

/* A step of xoshiro256++ in lane l of the state s[4][]; a lane is a 64-bit integer, or a vector of
 * them. `word` is what it yields. */
#define FI_XOSHIRO(word, s, l)                                                                     \
    do {                                                                                           \
        const __typeof__(s[1][l]) t = s[1][l] << 17;                                               \
        (word) = FI_ROTATED(s[0][l] + s[3][l], 23) + s[0][l];                                      \
        s[2][l] ^= s[0][l];                                                                        \
        s[3][l] ^= s[1][l];                                                                        \
        s[1][l] ^= s[2][l];                                                                        \
        s[0][l] ^= s[3][l];                                                                        \
        s[2][l] ^= t;                                                                              \
        s[3][l] = FI_ROTATED(s[3][l], 45);                                                         \
    } while (0)

/* The share of each bucket that a block of positions gets: its cells from begins to ends, to which
 * the bucket's first value is added. */
typedef struct {
    uint32_t buckets;
    const uint32_t *firsts, *begins, *ends;
} fi_share;

typedef struct {
    /* order: a random order of 0 .. n-1. The cells are the lower part of order itself: cells[0 .. i]
     * are used until order[i] is written, and end before it. */
    void (*order16)(fi_unit *unit, int64_t *order, uint32_t n);
    void (*order32)(fi_unit *unit, int64_t *order, uint32_t n);
    /* cells: a random order of 0 .. n-1; 16-bit cells for n up to 65,536 */
    void (*shuffle16)(fi_unit *unit, uint16_t *cells, uint32_t n);
    void (*shuffle32)(fi_unit *unit, uint32_t *cells, uint32_t n);
    /* counts[b]: how many of n positions get bucket b, of 2^bucket_bits that are equally likely */
    void (*split)(fi_unit *unit, unsigned bucket_bits, uint32_t n, uint32_t *counts);
    /* order: what the share takes from the buckets, in random order */
    void (*scatter16)(fi_unit *unit, const fi_share *share, const uint16_t *buckets, int64_t *order);
    void (*scatter32)(fi_unit *unit, const fi_share *share, const uint32_t *buckets, int64_t *order);
    /* out[k]: the image of start + k, for k < FI_VIRTUAL_STEP, not walked; whether one is n or more */
    bool (*virtual_step)(const fi_virtual *order, uint64_t start, int64_t *out);
} fi_loops;

extern const fi_loops fi_loops_generic;
#ifdef __x86_64__
extern const fi_loops fi_loops_avx2, fi_loops_avx512;
#endif

/* NULL for an instruction set that this processor lacks. */
const fi_loops *fi_loops_of(int isa);

enum { FI_VIRTUAL_STEP = 128 }; /* indices computed at once */

/* The hash of a half-round, of an integer or a vector of them. Its upper bits are used: each
 * multiplication carries what is below upwards, the shifts carry it down again. */
#define FI_VIRTUAL_HASH(half, key)                                                                 \
    do {                                                                                           \
        (half) *= 0x9e3779b1u;                                                                     \
        (half) ^= (half) >> 16 ^ (key);                                                            \
        (half) *= 0x85ebca6bu;                                                                     \
        (half) ^= (half) >> 15;                                                                    \
        (half) *= 0xc2b2ae35u;                                                                     \
    } while (0)

bool fi_virtual_step_generic(const fi_virtual *order, uint64_t start, int64_t *out);

/* Exact test of 16 draws of which at least one may have to be rejected: draw k, of k < count, is
 * made from half k of the words and uniform below bound - k. */
void fi_shuffle_redraw(fi_unit *unit, const uint64_t *words, uint32_t bound, uint32_t count,
                       uint32_t *draws);

/* The scatter of fi_shuffle_by; `key` is the seed with n and stream mixed in. */
int fi_shuffle_scatter(const fi_shuffle_plan *plan, const fi_loops *loops, int64_t *order,
                    uint32_t n, const fi_seed *key, unsigned threads);

enum {
    FI_UNIT_ORDER, /* a whole order */
    FI_UNIT_SPLIT, /* of a block's positions into buckets */
    FI_UNIT_BUCKET,
    FI_UNIT_BLOCK
};

/* The generator of unit `number` of a kind. */
void fi_unit_init(fi_unit *unit, const fi_seed *key, unsigned kind, uint32_t number);

#endif

#include "order/fi_weighted.h"

#include <math.h>
#include <string.h>

#include "order/fi_loops.h"

/* Products and sums are rounded one by one, or orders would differ between machines. gcc does so when
 * told -std=c11; the vector code below is compiled without fused operations. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

enum {
    TURNS = 8,                /* of the generator in a block */
    BLOCK = FI_LANES * TURNS, /* items whose random words are made at once */
    PART_BITS = 11,         /* of a key's 32 bits: parts of keys that the caches hold */
    DIGIT_BITS = 7,         /* three digits are the rest */
    FEW = 32,               /* keys that are sooner sorted by insertion */
    SAMPLE = 1024           /* weights that an estimate looks at */
};

static fi_unit words_begin(const fi_seed *seed, uint64_t stream, unsigned purpose)
{
    const fi_seed key = fi_seed_mixed(seed, stream);
    fi_unit unit;

    fi_unit_init(&unit, &key, purpose, 0);
    return unit;
}

static inline __attribute__((always_inline)) void words_next(fi_unit *unit, uint64_t *words)
{
    fi_unit v = *unit;

    for (int turn = 0; turn < TURNS; turn++) {
        for (int l = 0; l < FI_LANES; l++)
            FI_XOSHIRO(words[turn * FI_LANES + l], v.lanes, l);
    }
    *unit = v;
}

/* -- with replacement ---------------------------------------------------------------------------- */

/* 2^64 times a share of 0 .. 1. */
static uint64_t threshold_of(double share)
{
    if (share >= 1)
        return UINT64_MAX;
    return share <= 0 ? 0 : (uint64_t)(share * 18446744073709551616.0);
}

void fi_alias_build(fi_alias *table, const double *weights, uint32_t n, double *shares,
                    uint32_t *stack)
{
    uint32_t small = 0, large = n; /* stack[0 .. small-1] and stack[large .. n-1] */
    double largest = 0, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        largest = weights[i] > largest ? weights[i] : largest;
    for (uint32_t i = 0; i < n; i++) {
        sum += weights[i] / largest; /* the sum of the weights themselves might overflow */
    }
    for (uint32_t i = 0; i < n; i++) {
        shares[i] = weights[i] / largest / sum * n;
        stack[shares[i] < 1 ? small++ : --large] = i;
    }
    while (small > 0 && large < n) {
        const uint32_t less = stack[--small], more = stack[large];
        table[less] = (fi_alias){threshold_of(shares[less]), more};
        shares[more] = (shares[more] + shares[less]) - 1;
        if (shares[more] < 1) {
            large++;
            stack[small++] = more;
        }
    }
    /* The items that are left have a share of 1, up to rounding. */
    while (large < n) {
        table[stack[large]] = (fi_alias){UINT64_MAX, stack[large]};
        large++;
    }
    while (small > 0) {
        small--;
        table[stack[small]] = (fi_alias){UINT64_MAX, stack[small]};
    }
}

/* The table's cells of one block are fetched into the cache while the block before is drawn. */
void fi_alias_draw(const fi_alias *table, uint32_t n, const fi_seed *seed, uint64_t stream,
                   int64_t *out, size_t count)
{
    uint64_t fractions[2][BLOCK];
    uint32_t items[2][BLOCK];
    uint64_t words[BLOCK];
    fi_unit unit = words_begin(seed, stream, FI_PURPOSE_REPLACED);

    for (size_t from = 0, turn = 0; turn * BLOCK < count + BLOCK; turn++) {
        const size_t now = turn % 2, before = 1 - now;
        words_next(&unit, words);
        for (int k = 0; k < BLOCK; k++) {
            const unsigned __int128 product = (unsigned __int128)words[k] * n;
            items[now][k] = (uint32_t)(product >> 64);
            fractions[now][k] = (uint64_t)product;
            __builtin_prefetch(table + items[now][k]);
        }
        if (turn == 0)
            continue;
        const size_t size = (size_t)fi_min_u64(BLOCK, count - from);
        for (size_t k = 0; k < size; k++) {
            const uint32_t item = items[before][k];
            const fi_alias cell = table[item];
            out[from + k] = fractions[before][k] < cell.threshold ? item : cell.alias;
        }
        from += size;
    }
}

/* -- without replacement ------------------------------------------------------------------------- */

static inline uint64_t bits_of(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double double_of(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* -log(x) for 2^-53 <= x <= 1, within 4 units in the last place.
 * x = 2^e m with m within the square roots of 1/2 and 2, and log(m) = 2 artanh(s), s = (m - 1) / (m + 1),
 * by its series: s^2 <= 0.0295, so that the terms after the tenth are below half a unit. */
static inline __attribute__((always_inline)) double minus_log(double x)
{
    const uint64_t root_half = 0x3fe6a09e667f3bcd, bias = 1024, magic = 0x4330000000000000;
    const uint64_t bits = bits_of(x), e = (bits - root_half + (bias << 52)) >> 52;
    const double exponent = double_of(magic | e) - (4503599627370496.0 + 1024.0);
    const double f = double_of(bits - ((e - bias) << 52)) - 1.0, s = f / (2.0 + f), z = s * s;
    double series = 1.0 / 21;

    series = series * z + 1.0 / 19;
    series = series * z + 1.0 / 17;
    series = series * z + 1.0 / 15;
    series = series * z + 1.0 / 13;
    series = series * z + 1.0 / 11;
    series = series * z + 1.0 / 9;
    series = series * z + 1.0 / 7;
    series = series * z + 1.0 / 5;
    series = series * z + 1.0 / 3;
    /* log(2) in two parts: the first has zeros at its end, so that its product is exact. */
    return 0.0 - (exponent * 0x1.62e42fefap-1 +
                  (2.0 * s + (2.0 * s * z * series + exponent * 0x1.cf79abc9e3b3ap-40)));
}

double fi_race_horizon(const double *weights, uint32_t n, uint32_t k)
{
    const uint32_t step = n / SAMPLE + 1;
    const double share = (k + 6 * sqrt((double)k) + 16) / n;
    double time = 0, arrived = 0, slope = 0, error = 0;

    if (share >= 0.5)
        return INFINITY;
    /* By a time t, item i has arrived with probability 1 - exp(-w_i t). Their mean is concave in t, so
     * that Newton's method comes from below, and stops when it is close. */
    while (arrived < 0.99 * share) {
        double sum = 0, squares = 0, rate = 0, seen = 0;
        for (uint64_t i = 0; i < n; i += step) {
            const double gone = -expm1(-weights[i] * time);
            sum += gone;
            squares += gone * gone;
            rate += weights[i] * (1 - gone);
            seen++;
        }
        arrived = sum / seen;
        slope = rate / seen;
        error = step == 1 ? 0 : sqrt(fmax(0, squares / seen - arrived * arrived) / seen);
        time += (share - arrived) / slope;
    }
    return time + 4 * error / slope; /* rather a few too many than all over again */
}

/* Arrivals of one block: first who may arrive in time, by -log(1 - v) >= v, then who does. */
static inline __attribute__((always_inline)) uint32_t
arrivals_of(const uint64_t *words, const double *weights, uint32_t count, double horizon,
            double bound, uint32_t first, double *times, uint32_t *items)
{
    uint64_t any = 0;
    uint32_t arrived = 0;

    if (count == BLOCK) {
        for (int k = 0; k < BLOCK; k++) {
            /* The upper 52 bits as a fraction: not above v. */
            const double least = double_of(words[k] >> 12 | 0x3ff0000000000000) - 1.0;
            any |= bits_of(least - weights[k] * bound);
        }
        if (any >> 63 == 0)
            return 0;
    }
    for (uint32_t k = 0; k < count; k++) {
        const double v = (double)(int64_t)(words[k] >> 11) * 0x1p-53;
        if (v <= weights[k] * bound) {
            const double time = minus_log(1.0 - v) / weights[k];
            times[arrived] = time;
            items[arrived] = first + k;
            arrived += time < horizon;
        }
    }
    return arrived;
}

/* Arrivals of all items, in loops that compilers make vectors of. */
static inline __attribute__((always_inline)) void
all_arrivals_of(const uint64_t *words, const double *weights, uint32_t count, uint32_t first,
                double *times, uint32_t *items)
{
    double own[BLOCK];

    for (int k = 0; k < BLOCK; k++) {
        /* 53 bits in two parts, each of which fits into the fraction of a double. */
        const uint64_t v = words[k] >> 11;
        const double high = double_of(v >> 27 | 0x4330000000000000) - 0x1p52;
        const double low = double_of((v & 0x7ffffff) | 0x4330000000000000) - 0x1p52;
        own[k] = minus_log(1.0 - (high * 0x1p-26 + low * 0x1p-53));
    }
    for (uint32_t k = 0; k < count; k++) {
        times[k] = own[k] / weights[k];
        items[k] = first + k;
    }
}

static inline __attribute__((always_inline)) int race(const double *weights, uint32_t n,
                                                      fi_unit *unit, double horizon,
                                                      fi_arrivals *arrivals)
{
    /* A little more, for the rounding of the logarithm. */
    const double bound = horizon * (1 + 1e-9);
    uint64_t words[BLOCK];
    uint32_t arrived = 0;

    for (uint64_t first = 0; first < n; first += BLOCK) {
        const uint32_t count = (uint32_t)fi_min_u64(BLOCK, n - first);
        double *const times = arrivals->times + arrived;
        uint32_t *const items = arrivals->items + arrived;
        if (count > arrivals->room - arrived)
            return FI_E_FULL;
        words_next(unit, words);
        if (isinf(horizon)) {
            all_arrivals_of(words, weights + first, count, (uint32_t)first, times, items);
            arrived += count;
        } else {
            arrived += arrivals_of(words, weights + first, count, horizon, bound, (uint32_t)first,
                                   times, items);
        }
    }
    arrivals->count = arrived;
    return FI_OK;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static int race_avx2(const double *weights, uint32_t n,
                                                     fi_unit *unit, double horizon,
                                                     fi_arrivals *arrivals)
{
    return race(weights, n, unit, horizon, arrivals);
}
#endif

int fi_race_run(int isa, const double *weights, uint32_t n, const fi_seed *seed, uint64_t stream,
                double horizon, fi_arrivals *arrivals)
{
    fi_unit unit = words_begin(seed, stream, FI_PURPOSE_RACE);

    if (!fi_has_isa(isa))
        return FI_E_RANGE;
#ifdef __x86_64__
    if (isa >= FI_ISA_AVX2)
        return race_avx2(weights, n, &unit, horizon, arrivals);
#endif
    return race(weights, n, &unit, horizon, arrivals);
}

/* Stable, by the lower DIGIT_BITS * 3 bits of the keys' upper halves: from `keys` into `sorted`. */
static void sort_part(uint64_t *keys, uint64_t *sorted, uint32_t n)
{
    enum { DIGITS = 1 << DIGIT_BITS };

    if (n <= FEW) {
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t key = keys[i];
            uint32_t place = i;
            for (; place > 0 && sorted[place - 1] > key; place--)
                sorted[place] = sorted[place - 1];
            sorted[place] = key;
        }
        return;
    }
    for (int pass = 0; pass < 3; pass++) {
        const int shift = 32 + pass * DIGIT_BITS;
        uint32_t starts[DIGITS] = {0}, start = 0;
        uint64_t *const from = pass % 2 == 0 ? keys : sorted, *const to = pass % 2 == 0 ? sorted : keys;

        for (uint32_t i = 0; i < n; i++)
            starts[from[i] >> shift & (DIGITS - 1)]++;
        for (int digit = 0; digit < DIGITS; digit++) {
            const uint32_t count = starts[digit];
            starts[digit] = start;
            start += count;
        }
        for (uint32_t i = 0; i < n; i++)
            to[starts[from[i] >> shift & (DIGITS - 1)]++] = from[i];
    }
}

/* By the upper halves of the keys; the lower ones count up. First into parts, each of which is then
 * sorted in the caches. */
static void sort_keys(uint64_t *keys, uint64_t *scratch, uint32_t n)
{
    enum { PARTS = 1 << PART_BITS, SHIFT = 64 - PART_BITS };
    uint32_t ends[PARTS] = {0}, start = 0;

    for (uint32_t i = 0; i < n; i++)
        ends[keys[i] >> SHIFT]++;
    for (int part = 0; part < PARTS; part++) {
        const uint32_t count = ends[part];
        ends[part] = start;
        start += count;
    }
    for (uint32_t i = 0; i < n; i++)
        scratch[ends[keys[i] >> SHIFT]++] = keys[i];
    start = 0;
    for (int part = 0; part < PARTS; part++) {
        sort_part(scratch + start, keys + start, ends[part] - start);
        start = ends[part];
    }
}

void fi_race_rank(const fi_arrivals *arrivals, uint32_t k, uint64_t *keys, int64_t *out)
{
    const double *const times = arrivals->times;
    const uint32_t n = arrivals->count;
    uint64_t low = UINT64_MAX, high = 0;
    unsigned shift = 0;

    /* Times are not negative, so their bits sort like them; 32 bits from the first on that differ. */
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t bits = bits_of(times[i]);
        low = fi_min_u64(low, bits);
        high = fi_max_u64(high, bits);
    }
    while (n > 0 && (high - low) >> shift > UINT32_MAX)
        shift++;
    for (uint32_t i = 0; i < n; i++)
        keys[i] = (bits_of(times[i]) - low) >> shift << 32 | i;
    sort_keys(keys, keys + n, n);
    /* Keys that those 32 bits left equal, which are few, by insertion: they are in the order of items,
     * in which equal times stay. */
    for (uint32_t i = 1; i < n; i++) {
        const uint64_t key = keys[i];
        uint32_t place = i;
        while (place > 0 && keys[place - 1] >> 32 == key >> 32 &&
               times[(uint32_t)keys[place - 1]] > times[(uint32_t)key]) {
            keys[place] = keys[place - 1];
            place--;
        }
        keys[place] = key;
    }
    if (n > 0 && arrivals->items[n - 1] == n - 1) { /* all items: no places to look up */
        for (uint32_t i = 0; i < k; i++)
            out[i] = (uint32_t)keys[i];
        return;
    }
    for (uint32_t i = 0; i < k; i++)
        out[i] = arrivals->items[(uint32_t)keys[i]];
}

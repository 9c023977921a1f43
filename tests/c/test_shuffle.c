/* fi_shuffle against the plainest possible version of itself, under every instruction set, plan and
 * number of threads; its seed against NumPy's figures. Aborts at the first broken promise. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "order/fi_shuffle.h"
#include "base/fi_mix.h"
#include "order/fi_loops.h"

static const fi_seed SEED = {{0x0123456789abcdefu, 0xfedcba9876543210u}};

/* ---- one lane after the other ------------------------------------------------------------ */

typedef struct {
    fi_unit unit;
    uint64_t words[FI_LANES];
    unsigned used; /* halves of the words */
} naive;

static uint64_t rotated(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static uint64_t step(uint64_t *s0, uint64_t *s1, uint64_t *s2, uint64_t *s3)
{
    const uint64_t word = rotated(*s0 + *s3, 23) + *s0, t = *s1 << 17;

    *s2 ^= *s0;
    *s3 ^= *s1;
    *s1 ^= *s2;
    *s0 ^= *s3;
    *s2 ^= t;
    *s3 = rotated(*s3, 45);
    return word;
}

static uint32_t next_half(naive *state)
{
    const unsigned half = state->used++ % (2 * FI_LANES);

    for (int l = 0; half == 0 && l < FI_LANES; l++) {
        state->words[l] = step(&state->unit.lanes[0][l], &state->unit.lanes[1][l],
                               &state->unit.lanes[2][l], &state->unit.lanes[3][l]);
    }
    return (uint32_t)(state->words[half / 2] >> 32 * (half % 2));
}

static uint32_t naive_draw(naive *state, uint32_t bound)
{
    uint64_t *const spare = state->unit.spare[0];
    uint64_t product = (uint64_t)next_half(state) * bound;

    while ((uint32_t)product < ((uint64_t)1 << 32) % bound) {
        product = (step(&spare[0], &spare[1], &spare[2], &spare[3]) >> 32) * bound;
    }
    return (uint32_t)(product >> 32);
}

static void naive_shuffle(const fi_seed *key, unsigned kind, uint32_t number, int64_t *order,
                          uint32_t n)
{
    naive state = {.used = 0};

    fi_unit_init(&state.unit, key, kind, number);
    for (uint32_t i = n; i-- > 1;) {
        const uint32_t j = naive_draw(&state, i + 1);
        const int64_t value = order[i];
        order[i] = order[j];
        order[j] = value;
    }
}

/* Splits n positions among buckets first .. first + size - 1, breadth first as the halves go. */
static void naive_split(const fi_seed *key, uint32_t block, unsigned bucket_bits, uint32_t n,
                        uint32_t *counts)
{
    naive state = {.used = 0};

    fi_unit_init(&state.unit, key, FI_UNIT_SPLIT, block);
    counts[0] = n;
    for (uint32_t size = (uint32_t)1 << bucket_bits; size > 1; size /= 2) {
        for (uint32_t first = 0; first < (uint32_t)1 << bucket_bits; first += size) {
            uint32_t left = 0;
            for (uint32_t bit = 0; bit < counts[first]; bit += 64) {
                const uint64_t low = next_half(&state);
                const uint64_t word = low | (uint64_t)next_half(&state) << 32;
                for (uint32_t k = 0; k < 64 && bit + k < counts[first]; k++) {
                    left += word >> (63 - k) & 1; /* the upper bits, if not all */
                }
            }
            counts[first + size / 2] = counts[first] - left;
            counts[first] = left;
        }
    }
}

static void naive_scatter(const fi_seed *key, const fi_shuffle_plan *plan, int64_t *order, uint32_t n)
{
    const uint32_t buckets = (uint32_t)1 << plan->bucket_bits;
    const uint64_t size = (uint64_t)1 << plan->block_bits;
    const uint32_t blocks = (uint32_t)((n + size - 1) / size);
    uint32_t *counts = malloc(((size_t)blocks * buckets + 1) * sizeof *counts);
    int64_t *values = malloc(((size_t)n + 1) * sizeof *values), **top = malloc(buckets * sizeof *top);
    uint32_t first = 0;

    CHECK(counts != NULL && values != NULL && top != NULL);
    for (uint32_t c = 0; c < blocks; c++) {
        const uint64_t rest = n - c * size;
        naive_split(key, c, plan->bucket_bits, (uint32_t)(rest < size ? rest : size),
                    counts + (size_t)c * buckets);
    }
    for (uint32_t b = 0; b < buckets; b++) {
        uint32_t sum = 0;
        for (uint32_t c = 0; c < blocks; c++) {
            sum += counts[(size_t)c * buckets + b];
        }
        for (uint32_t i = 0; i < sum; i++) {
            values[first + i] = first + i;
        }
        top[b] = values + first;
        naive_shuffle(key, FI_UNIT_BUCKET, b, top[b], sum);
        first += sum;
    }
    CHECK_EQ(first, n);
    for (uint32_t c = 0; c < blocks; c++) {
        int64_t *const block = order + c * size;
        uint32_t taken = 0;
        for (uint32_t b = 0; b < buckets; b++) {
            for (uint32_t i = 0; i < counts[(size_t)c * buckets + b]; i++) {
                block[taken++] = *top[b]++;
            }
        }
        naive_shuffle(key, FI_UNIT_BLOCK, c, block, taken);
    }
    free(counts);
    free(values);
    free(top);
}

/* ---- what is promised --------------------------------------------------------------------- */

static fi_seed key_of(uint64_t n, uint64_t stream)
{
    const fi_seed key = fi_seed_mixed(&SEED, n);

    return fi_seed_mixed(&key, stream);
}

static void naive_order(const fi_shuffle_plan *plan, int64_t *order, uint32_t n, uint64_t stream)
{
    const fi_seed key = key_of(n, stream);

    if (plan->method == FI_SHUFFLE_SCATTER) {
        naive_scatter(&key, plan, order, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        order[i] = i;
    }
    naive_shuffle(&key, FI_UNIT_ORDER, 0, order, n);
}

static void check_plan(const fi_shuffle_plan *plan, uint32_t n, uint64_t stream, unsigned threads)
{
    int64_t *expected = malloc(((size_t)n + 2) * sizeof *expected);
    int64_t *order = malloc(((size_t)n + 2) * sizeof *order);

    CHECK(expected != NULL && order != NULL);
    expected[0] = expected[n + 1] = order[0] = order[n + 1] = -1; /* guards */
    naive_order(plan, expected + 1, n, stream);
    for (int isa = 0; isa <= fi_isa(); isa++) {
        memset(order + 1, 0x55, n * sizeof *order);
        CHECK_EQ(fi_shuffle_by(plan, isa, order + 1, n, &SEED, stream, threads), FI_OK);
        CHECK(memcmp(order, expected, ((size_t)n + 2) * sizeof *order) == 0);
    }
    free(expected);
    free(order);
}

static void test_cells(void)
{
    const fi_shuffle_plan cells16 = {.method = FI_SHUFFLE_CELLS16};
    const fi_shuffle_plan cells32 = {.method = FI_SHUFFLE_CELLS32};

    for (uint32_t n = 0; n < 600; n++) {
        check_plan(&cells16, n, n, 1);
        check_plan(&cells32, n, n, 1);
    }
    for (uint32_t n = 65534; n <= 65536; n++) {
        check_plan(&cells16, n, 0, 1);
    }
    check_plan(&cells32, 65537, 0, 1);
    check_plan(&cells32, 300000, 0, 1); /* some draws are rejected at this size */
}

static void test_scatters(void)
{
    static const uint32_t sizes[] = {0, 1, 2, 31, 32, 33, 100, 1000, 4097};
    static const unsigned shapes[][2] = {{0, 0}, {0, 5}, {1, 6}, {3, 5}, {6, 9}, {12, 16}};

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            for (int wide = 0; wide < 2; wide++) {
                const fi_shuffle_plan plan = {FI_SHUFFLE_SCATTER, shapes[k][0], shapes[k][1], wide};
                check_plan(&plan, sizes[s], 7, 1);
                check_plan(&plan, sizes[s], 7, 3);
            }
        }
    }
    /* Buckets of some 70,000, for which 16 bits do not suffice, though the plan does not say so. */
    check_plan(&(fi_shuffle_plan){FI_SHUFFLE_SCATTER, 1, 16, false}, 140000, 0, 2);
}

/* Orders of the plan that fi_shuffle itself makes, with more threads than parts too. */
static void test_own_plans(void)
{
    static const uint32_t sizes[] = {10, 65536, 65537, 1048576, 1048577};

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const fi_shuffle_plan plan = fi_shuffle_plan_of(sizes[s]);
        int64_t *order = malloc(sizes[s] * sizeof *order);
        int64_t *expected = malloc(sizes[s] * sizeof *expected);
        CHECK(order != NULL && expected != NULL);
        naive_order(&plan, expected, sizes[s], 3);
        for (unsigned threads = 1; threads < 200; threads *= 5) {
            memset(order, 0, sizes[s] * sizeof *order);
            CHECK_EQ(fi_shuffle(order, sizes[s], &SEED, 3, threads), FI_OK);
            CHECK(memcmp(order, expected, sizes[s] * sizeof *order) == 0);
        }
        free(order);
        free(expected);
    }
}

static void test_refusals(void)
{
    const fi_shuffle_plan cells16 = {.method = FI_SHUFFLE_CELLS16};
    const fi_shuffle_plan scatter = {FI_SHUFFLE_SCATTER, FI_BUCKET_BITS_MAX + 1, 10, false};
    int64_t order[4];

    CHECK_EQ(fi_shuffle(order, (uint64_t)UINT32_MAX + 1, &SEED, 0, 1), FI_E_RANGE);
    CHECK_EQ(fi_shuffle(order, 4, &SEED, 0, 0), FI_E_RANGE);
    CHECK_EQ(fi_shuffle_by(&cells16, FI_ISA_COUNT, order, 4, &SEED, 0, 1), FI_E_RANGE);
    CHECK_EQ(fi_shuffle_by(&cells16, 0, order, 65537, &SEED, 0, 1), FI_E_RANGE);
    CHECK_EQ(fi_shuffle_by(&scatter, 0, order, 4, &SEED, 0, 1), FI_E_RANGE);
}

/* A bound at which every other word is rejected, against a draw at a time. */
static void test_rejection(void)
{
    const uint32_t bound = ((uint32_t)1 << 31) + 20;
    unsigned rejected = 0;

    for (uint32_t round = 0; round < 200; round++) {
        naive one = {.used = 0};
        fi_unit unit;
        uint64_t words[FI_LANES], before;
        uint32_t draws[2 * FI_LANES];

        fi_unit_init(&one.unit, &SEED, FI_UNIT_ORDER, round);
        unit = one.unit;
        next_half(&one);
        memcpy(words, one.words, sizeof words);
        one.unit = unit;
        one.used = 0;
        before = unit.spare[0][0];
        fi_shuffle_redraw(&unit, words, bound, 2 * FI_LANES - round % 3, draws);
        for (uint32_t k = 0; k < 2 * FI_LANES - round % 3; k++) {
            CHECK_EQ(draws[k], naive_draw(&one, bound - k));
            CHECK(draws[k] < bound - k);
        }
        CHECK(memcmp(unit.spare, one.unit.spare, sizeof unit.spare) == 0);
        rejected += unit.spare[0][0] != before;
    }
    CHECK(rejected == 200);
}

/* numpy.random.SeedSequence(entropy).generate_state(2, numpy.uint64) */
static void test_seeds(void)
{
    static const struct {
        uint32_t entropy[6];
        size_t words;
        uint64_t first, second;
    } known[] = {
        {{0}, 1, 0xdb2cd7e7b0f478beu, 0xabf4641a2c71ba49u},
        {{1}, 1, 0x672d8ee56d6791ffu, 0x8ae19ca14eb1072cu},
        {{20261}, 1, 0x37fc4a77f72d7c95u, 0x2fbc3d3add1b962eu},
        {{1, 2, 3, 4}, 4, 0xd4a801ecfd6dff8bu, 0x0fc9d61518a0c9dcu},
        {{1, 2, 3, 4, 5, 6}, 6, 0xebcd001d1d1bca21u, 0xcfea83a4b202608bu},
    };

    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        fi_seed seed;
        fi_seed_from_entropy(&seed, known[k].entropy, known[k].words);
        CHECK(seed.words[0] == known[k].first && seed.words[1] == known[k].second);
    }
}

/* ---- equally likely ----------------------------------------------------------------------- */

/* The orders are always the same ones, so these tests pass or fail for good. */
static const fi_shuffle_plan METHODS[] = {
    {.method = FI_SHUFFLE_CELLS16},    {.method = FI_SHUFFLE_CELLS32},
    {FI_SHUFFLE_SCATTER, 1, 1, false}, {FI_SHUFFLE_SCATTER, 2, 0, false},
    {FI_SHUFFLE_SCATTER, 0, 2, false}, {FI_SHUFFLE_SCATTER, 3, 4, false},
    {FI_SHUFFLE_SCATTER, 1, 4, false}, /* of pairs alone */
};

/* Counts of n outcomes, of which `cells` are equally likely and others never come: chi-squared lies
 * within four standard deviations of its mean, the degrees of freedom. */
static void check_even(const uint32_t *counts, size_t n, size_t cells, double freedom)
{
    double expected = 0, squares;
    size_t seen = 0;

    for (size_t i = 0; i < n; i++) {
        seen += counts[i] != 0;
        expected += (double)counts[i] / (double)cells;
    }
    CHECK(seen <= cells);
    squares = (double)(cells - seen) * expected * expected;
    for (size_t i = 0; i < n; i++) {
        squares += counts[i] == 0 ? 0 : (counts[i] - expected) * (counts[i] - expected);
    }
    CHECK(fabs(squares / expected - freedom) < 4 * sqrt(2 * freedom));
}

enum outcome { WHOLE_ORDER, VALUES_BY_POSITION, FIRST_PAIR };

static void check_outcomes(const fi_shuffle_plan *plan, enum outcome kind, uint32_t n,
                           uint64_t orders, size_t outcomes, size_t cells, double freedom)
{
    uint32_t *const counts = calloc(outcomes, sizeof *counts);
    int64_t order[100];

    CHECK(counts != NULL);
    for (uint64_t k = 0; k < orders; k++) {
        uint64_t whole = 0;
        CHECK_EQ(fi_shuffle_by(plan, fi_isa(), order, n, &SEED, k, 1), FI_OK);
        for (uint32_t i = 0; i < n; i++) {
            whole = whole * n + (uint64_t)order[i];
            counts[i * n + (uint64_t)order[i]] += kind == VALUES_BY_POSITION;
        }
        if (kind == WHOLE_ORDER) {
            counts[whole]++;
        } else if (kind == FIRST_PAIR) {
            counts[order[0] * n + order[1]]++;
        }
    }
    check_even(counts, outcomes, cells, freedom);
    free(counts);
}

static void test_outcomes(void)
{
    for (size_t m = 0; m < 6; m++) {
        check_outcomes(&METHODS[m], WHOLE_ORDER, 5, 60 * 120, 3125, 120, 119);
        check_outcomes(&METHODS[m], WHOLE_ORDER, 6, 20 * 720, 46656, 720, 719);
        check_outcomes(&METHODS[m], VALUES_BY_POSITION, 100, 1500, 10000, 10000, 99 * 99);
    }
    check_outcomes(&METHODS[0], FIRST_PAIR, 40, 12000, 1600, 1560, 1559);
    check_outcomes(&METHODS[1], FIRST_PAIR, 40, 12000, 1600, 1560, 1559);
    check_outcomes(&METHODS[6], FIRST_PAIR, 40, 12000, 1600, 1560, 1559);
}

int main(void)
{
    test_cells();
    test_scatters();
    test_own_plans();
    test_refusals();
    test_rejection();
    test_seeds();
    test_outcomes();
    return 0;
}

/* fi_weighted: the table of aliases holds the weights, the race is run by the rules. Aborts at the first
 * broken promise. Whether draws look random is tested from Python. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "../../csrc/order/fi_weighted.c"

static const fi_seed seed = {{3, 4}};

static double *some_weights(uint32_t n)
{
    double *weights = malloc(n * sizeof *weights);

    CHECK(weights != NULL);
    for (uint32_t i = 0; i < n; i++) {
        weights[i] = 1.0 / (1 + i * 7 % 31) / (1 + i * 5 % 17);
    }
    return weights;
}

/* The shares of the cells for each item add up to its weight. */
static void check_table(uint32_t n)
{
    double *weights = some_weights(n), *shares = malloc(n * sizeof *shares), sum = 0;
    double *given = calloc(n, sizeof *given);
    uint32_t *stack = malloc(n * sizeof *stack);
    fi_alias *table = malloc(n * sizeof *table);
    int64_t drawn[200];

    CHECK(shares != NULL && given != NULL && stack != NULL && table != NULL);
    fi_alias_build(table, weights, n, shares, stack);
    for (uint32_t i = 0; i < n; i++) {
        const double kept = (double)table[i].threshold * 0x1p-64;
        CHECK(table[i].alias < n);
        given[i] += kept;
        given[table[i].alias] += 1 - kept;
        sum += weights[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        CHECK(fabs(given[i] / n - weights[i] / sum) < 1e-12);
    }
    memset(drawn, -1, sizeof drawn);
    fi_alias_draw(table, n, &seed, 0, drawn, 199);
    for (int k = 0; k < 199; k++) {
        CHECK(drawn[k] >= 0 && drawn[k] < n);
    }
    CHECK_EQ(drawn[199], -1);
    free(weights);
    free(shares);
    free(given);
    free(stack);
    free(table);
}

static void test_logarithm(void)
{
    CHECK(minus_log(1) == 0 && !signbit(minus_log(1)));
    for (uint64_t k = 1; k < (uint64_t)1 << 53; k += k / 1000 + 1) {
        const double x = (double)k * 0x1p-53, expected = -log(x), y = 1 - x;
        CHECK(fabs(minus_log(x) - expected) <= 8e-16 * expected);
        CHECK(fabs(minus_log(y) + log(y)) <= 8e-16 * -log(y));
    }
}

static const double *compared; /* times of the items that compare() is given */

static int compare(const void *a, const void *b)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

    if (compared[left] != compared[right]) {
        return compared[left] < compared[right] ? -1 : 1;
    }
    return left < right ? -1 : left > right;
}

static fi_arrivals arrivals_for(uint32_t n)
{
    fi_arrivals arrivals = {.times = malloc(n * sizeof(double)),
                            .items = malloc(n * sizeof(uint32_t)), .room = n};

    CHECK(arrivals.times != NULL && arrivals.items != NULL);
    return arrivals;
}

static void arrivals_free(fi_arrivals *arrivals)
{
    free(arrivals->times);
    free(arrivals->items);
}

/* The first k of those who arrived, against a sort by the C library. */
static void check_rank(const fi_arrivals *arrivals, const double *times)
{
    const uint32_t n = arrivals->count;
    uint64_t *keys = malloc(2 * (size_t)n * sizeof *keys);
    int64_t *ranked = malloc((n + 1) * sizeof *ranked);
    uint32_t *sorted = malloc((n + 1) * sizeof *sorted);

    CHECK(keys != NULL && ranked != NULL && sorted != NULL);
    memcpy(sorted, arrivals->items, n * sizeof *sorted);
    compared = times;
    qsort(sorted, n, sizeof *sorted, compare);
    for (uint32_t k = 0; k <= n; k += k < 3 ? 1 : n / 3) {
        ranked[k] = -1;
        fi_race_rank(arrivals, k, keys, ranked);
        for (uint32_t i = 0; i < k; i++) {
            CHECK_EQ(ranked[i], sorted[i]);
        }
        CHECK_EQ(ranked[k], -1);
    }
    free(keys);
    free(ranked);
    free(sorted);
}

static void check_race(uint32_t n)
{
    double *weights = some_weights(n);
    fi_arrivals everybody = arrivals_for(n), some = arrivals_for(n);

    CHECK_EQ(fi_race_run(fi_isa(), weights, n, &seed, 9, INFINITY, &everybody), FI_OK);
    CHECK_EQ(everybody.count, n);
    for (int isa = FI_ISA_GENERIC; isa <= FI_ISA_AVX2; isa++) {
        for (double horizon = 0.01; horizon < 1000; horizon *= 10) {
            uint32_t expected = 0;
            const int rc = fi_race_run(isa, weights, n, &seed, 9, horizon, &some);
            if (rc == FI_E_RANGE) {
                printf("instruction set %d is not there\n", isa);
                break;
            }
            CHECK_EQ(rc, FI_OK);
            for (uint32_t i = 0; i < n; i++) {
                if (everybody.times[i] < horizon) {
                    CHECK(expected < some.count && some.times[expected] == everybody.times[i]);
                    CHECK_EQ(some.items[expected], i);
                    expected++;
                }
            }
            CHECK_EQ(some.count, expected);
            if (expected > 0) {
                check_rank(&some, everybody.times);
            }
        }
    }
    if (n > 64) {
        some.room = n - 1;
        CHECK_EQ(fi_race_run(fi_isa(), weights, n, &seed, 9, INFINITY, &some), FI_E_FULL);
    }
    if (n > 3) {
        everybody.times[3] = everybody.times[1]; /* a tie goes to the lower item */
    }
    check_rank(&everybody, everybody.times);
    free(weights);
    arrivals_free(&everybody);
    arrivals_free(&some);
}

static void test_horizon(void)
{
    double *weights = some_weights(100000);
    fi_arrivals arrivals = arrivals_for(100000);

    CHECK(isinf(fi_race_horizon(weights, 100000, 60000)));
    for (uint32_t k = 1; k < 40000; k *= 3) {
        const double horizon = fi_race_horizon(weights, 100000, k);
        CHECK_EQ(fi_race_run(fi_isa(), weights, 100000, &seed, k, horizon, &arrivals), FI_OK);
        CHECK(arrivals.count >= k && arrivals.count < 2 * k + 100);
    }
    free(weights);
    arrivals_free(&arrivals);
}

int main(void)
{
    static const uint32_t sizes[] = {1, 2, 3, 63, 64, 65, 127, 128, 129, 1000, 20000};

    test_logarithm();
    test_horizon();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_table(sizes[i]);
        check_race(sizes[i]);
    }
    return 0;
}

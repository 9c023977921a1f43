/* fi_weighted: the table of aliases holds the weights, the race is run by the rules. Aborts at the first
 * broken promise. Whether draws look random is tested from Python. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "fi_weighted.h"

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

/* What the cells give to each item adds up to its weight. */
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
    CHECK(fi_minus_log(1) == 0 && !signbit(fi_minus_log(1)));
    for (uint64_t k = 1; k < (uint64_t)1 << 53; k += k / 1000 + 1) {
        const double x = (double)k * 0x1p-53, expected = -log(x), y = 1 - x;
        CHECK(fabs(fi_minus_log(x) - expected) <= 8e-16 * expected);
        CHECK(fabs(fi_minus_log(y) + log(y)) <= 8e-16 * -log(y));
    }
}

static int compare(const void *a, const void *b)
{
    const fi_arrival *const left = a, *const right = b;

    if (left->time != right->time) {
        return left->time < right->time ? -1 : 1;
    }
    return left->item < right->item ? -1 : left->item > right->item;
}

static void check_race(uint32_t n)
{
    double *weights = some_weights(n);
    fi_arrival *everybody = malloc(n * sizeof *everybody), *some = malloc(n * sizeof *some);
    uint64_t *keys = malloc(2 * (size_t)n * sizeof *keys);
    int64_t *ranked = malloc((n + 1) * sizeof *ranked);
    uint32_t arrived;

    CHECK(everybody != NULL && some != NULL && keys != NULL && ranked != NULL);
    CHECK_EQ(fi_race_run(weights, n, &seed, 9, INFINITY, everybody, n, &arrived), FI_OK);
    CHECK_EQ(arrived, n);
    for (int isa = FI_ISA_GENERIC; isa <= FI_ISA_AVX2; isa++) {
        for (double horizon = 0.01; horizon < 1000; horizon *= 10) {
            uint32_t expected = 0;
            const int rc = fi_race_run_by(isa, weights, n, &seed, 9, horizon, some, n, &arrived);
            if (rc == FI_E_RANGE) {
                printf("instruction set %d is not there\n", isa);
                break;
            }
            CHECK_EQ(rc, FI_OK);
            for (uint32_t i = 0; i < n; i++) {
                if (everybody[i].time < horizon) {
                    CHECK(expected < arrived && some[expected].time == everybody[i].time);
                    CHECK_EQ(some[expected].item, i);
                    expected++;
                }
            }
            CHECK_EQ(arrived, expected);
        }
    }
    if (n > 64) {
        CHECK_EQ(fi_race_run(weights, n, &seed, 9, INFINITY, some, n - 1, &arrived), FI_E_FULL);
    }
    if (n > 3) {
        everybody[3].time = everybody[1].time; /* a tie goes to the lower item */
    }
    for (uint32_t k = 0; k <= n; k += k < 3 ? 1 : n / 3) {
        ranked[k] = -1;
        fi_race_rank(everybody, n, k, keys, ranked);
        memcpy(some, everybody, n * sizeof *some);
        qsort(some, n, sizeof *some, compare);
        for (uint32_t i = 0; i < k; i++) {
            CHECK_EQ(ranked[i], some[i].item);
        }
        CHECK_EQ(ranked[k], -1);
    }
    free(weights);
    free(everybody);
    free(some);
    free(keys);
    free(ranked);
}

static void test_horizon(void)
{
    double *weights = some_weights(100000);
    fi_arrival *arrivals = malloc(100000 * sizeof *arrivals);

    CHECK(arrivals != NULL);
    CHECK(isinf(fi_race_horizon(weights, 100000, 60000)));
    for (uint32_t k = 1; k < 40000; k *= 3) {
        const double horizon = fi_race_horizon(weights, 100000, k);
        uint32_t arrived;
        CHECK_EQ(fi_race_run(weights, 100000, &seed, k, horizon, arrivals, 100000, &arrived), FI_OK);
        CHECK(arrived >= k && arrived < 2 * k + 100);
    }
    free(weights);
    free(arrivals);
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

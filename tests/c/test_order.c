/* fi_order against the plainest possible version of itself. Aborts at the first broken promise.
 * Equality with NumPy is tested from Python. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "../../csrc/order/fi_order.c"

/* splitmix64, and how many words of each width were taken */
typedef struct {
    uint64_t x;
    size_t taken32, taken64;
} counted;

static uint64_t next_word(counted *state)
{
    uint64_t z = (state->x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t next64(void *state)
{
    ((counted *)state)->taken64++;
    return next_word(state);
}

static uint32_t next32(void *state)
{
    ((counted *)state)->taken32++;
    return (uint32_t)(next_word(state) >> 32);
}

static double next_double(void *state)
{
    return (double)(next64(state) >> 11) / 9007199254740992.0;
}

static fi_bitgen generator_of(counted *state)
{
    return (fi_bitgen){state, next64, next32, next_double, next64};
}

/* One bounded draw, as RandomState makes it. */
static uint64_t naive_draw(const fi_bitgen *generator, uint64_t bound)
{
    uint64_t mask = 0, value;

    if (bound == 0) {
        return 0;
    }
    while (mask < bound) {
        mask = mask << 1 | 1;
    }
    do {
        value = bound <= UINT32_MAX ? generator->next32(generator->state)
                                    : generator->next64(generator->state);
        value &= mask;
    } while (value > bound);
    return value;
}

static void naive_permutation(const fi_bitgen *generator, int64_t *order, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        order[i] = (int64_t)i;
    }
    for (size_t i = n; i-- > 1;) {
        const size_t j = (size_t)naive_draw(generator, i);
        const int64_t value = order[i];
        order[i] = order[j];
        order[j] = value;
    }
}

static void check_same_state(const counted *a, const counted *b)
{
    CHECK(a->x == b->x && a->taken32 == b->taken32 && a->taken64 == b->taken64);
}

static void check_permutation(size_t n, uint64_t seed)
{
    counted ours = {seed, 0, 0}, theirs = {seed, 0, 0};
    const fi_bitgen our_generator = generator_of(&ours), their_generator = generator_of(&theirs);
    int64_t *order = malloc((n + 2) * sizeof *order);
    int64_t *expected = malloc((n + 2) * sizeof *expected);

    CHECK(order != NULL && expected != NULL);
    order[0] = order[n + 1] = expected[0] = expected[n + 1] = -1; /* guards */
    fi_order_permutation(&our_generator, order + 1, n);
    naive_permutation(&their_generator, expected + 1, n);
    CHECK(memcmp(order, expected, (n + 2) * sizeof *order) == 0);
    check_same_state(&ours, &theirs);
    free(order);
    free(expected);
}

static void test_permutations(void)
{
    for (size_t n = 0; n < 1200; n++) {
        check_permutation(n, n);
    }
    for (size_t power = 11; power < 18; power++) {
        for (size_t n = ((size_t)1 << power) - 2; n < ((size_t)1 << power) + 3; n++) {
            check_permutation(n, n);
        }
    }
}

/* Bounds around a power of two, where the mask changes, and around 2^32, where the width does. */
static void test_draws_around(uint64_t highest, size_t count)
{
    counted ours = {highest, 0, 0}, theirs = {highest, 0, 0};
    const fi_bitgen our_generator = generator_of(&ours), their_generator = generator_of(&theirs);
    uint64_t *draws = malloc(count * sizeof *draws);

    CHECK(draws != NULL);
    draw(&our_generator, draws, highest, count);
    for (size_t k = 0; k < count; k++) {
        CHECK(draws[k] == naive_draw(&their_generator, highest - k));
    }
    check_same_state(&ours, &theirs);
    free(draws);
}

static void test_draws(void)
{
    for (unsigned power = 8; power < 63; power++) {
        const uint64_t bound = (uint64_t)1 << power;
        for (uint64_t highest = bound - 2; highest < bound + 70; highest += 7) {
            test_draws_around(highest, 200);
        }
    }
    test_draws_around(UINT64_MAX, 100);
    test_draws_around(0, 1);
    test_draws_around(2, 3);
}

int main(void)
{
    test_permutations();
    test_draws();
    return 0;
}

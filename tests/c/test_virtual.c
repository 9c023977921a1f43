/* fi_virtual: bijections, the same by every instruction set. Aborts at the first broken promise. */
#include <string.h>

#include "check.h"
#include "order/fi_virtual.h"

static const fi_seed seed = {{0x0123456789abcdefu, 0xfedcba9876543210u}};

static fi_virtual order_of(uint64_t n, uint64_t stream)
{
    fi_virtual order;

    CHECK_EQ(fi_virtual_init(&order, n, &seed, stream, FI_VIRTUAL_ROUNDS), FI_OK);
    return order;
}

/* Every index once, and nothing written beside the part. */
static void check_bijection(uint64_t n, int isa)
{
    const fi_virtual order = order_of(n, n);
    int64_t *out = malloc((n + 2) * sizeof *out);
    unsigned char *seen = calloc(n, 1);

    CHECK(out != NULL && seen != NULL);
    out[0] = out[n + 1] = -1;
    CHECK_EQ(fi_virtual_fill(&order, isa, 0, n, out + 1), FI_OK);
    for (uint64_t i = 1; i <= n; i++) {
        CHECK(out[i] >= 0 && (uint64_t)out[i] < n && !seen[out[i]]);
        seen[out[i]] = 1;
    }
    CHECK(out[0] == -1 && out[n + 1] == -1);
    free(out);
    free(seen);
}

/* Parts of any length at any place equal one another's indices, computed one at a time. */
static void check_parts(uint64_t n, uint64_t start, int isa)
{
    enum { MOST = 300 };
    const fi_virtual order = order_of(n, 5);
    int64_t single[MOST], out[MOST];
    const size_t most = n - start < MOST ? (size_t)(n - start) : MOST;

    for (size_t k = 0; k < most; k++) {
        CHECK_EQ(fi_virtual_fill(&order, FI_ISA_GENERIC, start + k, 1, single + k), FI_OK);
    }
    for (size_t count = 0; count <= most; count += count < 20 ? 1 : 37) {
        memset(out, -1, sizeof out);
        CHECK_EQ(fi_virtual_fill(&order, isa, start, count, out), FI_OK);
        CHECK(memcmp(out, single, count * sizeof out[0]) == 0);
        CHECK(count == MOST || out[count] == -1);
        memset(out, -1, sizeof out);
        fi_virtual_fill(&order, fi_isa(), start, count, out);
        CHECK(memcmp(out, single, count * sizeof out[0]) == 0);
    }
}

static bool isa_is_there(int isa)
{
    const fi_virtual order = order_of(100, 0);
    int64_t out;

    return fi_virtual_fill(&order, isa, 0, 1, &out) == FI_OK;
}

static void test_refusals(void)
{
    fi_virtual order;
    int64_t out;

    CHECK_EQ(fi_virtual_init(&order, FI_VIRTUAL_MIN - 1, &seed, 0, 12), FI_E_RANGE);
    CHECK_EQ(fi_virtual_init(&order, FI_VIRTUAL_MAX + 1, &seed, 0, 12), FI_E_RANGE);
    CHECK_EQ(fi_virtual_init(&order, 100, &seed, 0, 11), FI_E_RANGE);
    CHECK_EQ(fi_virtual_init(&order, 100, &seed, 0, 14), FI_E_RANGE);
    CHECK_EQ(fi_virtual_init(&order, 100, &seed, 0, 12), FI_OK);
    CHECK_EQ(fi_virtual_fill(&order, FI_ISA_COUNT, 0, 1, &out), FI_E_RANGE);
    CHECK_EQ(fi_virtual_fill(&order, -1, 0, 1, &out), FI_E_RANGE);
}

static void test_example_words(void)
{
    uint64_t words[4], others[4];

    fi_example_words(&seed, 1, 2, words);
    fi_example_words(&seed, 1, 2, others);
    CHECK(memcmp(words, others, sizeof words) == 0);
    fi_example_words(&seed, 2, 1, others);
    CHECK(memcmp(words, others, sizeof words) != 0);
}

int main(void)
{
    test_refusals();
    test_example_words();
    for (int isa = 0; isa < FI_ISA_COUNT; isa++) {
        if (!isa_is_there(isa)) {
            printf("instruction set %d is not there\n", isa);
            continue;
        }
        for (uint64_t n = FI_VIRTUAL_MIN; n < 400; n++) {
            check_bijection(n, isa);
        }
        check_bijection(65537, isa);
        check_bijection(100000, isa);
        for (unsigned power = 3; power <= 62; power++) {
            const uint64_t n = (uint64_t)1 << power;
            check_parts(n, 0, isa);
            check_parts(n, n - n / 3, isa);
            check_parts(n - 1, n / 2, isa);
        }
    }
    return 0;
}

/* fi_call_cost: what it learns from calls whose cost is known, and the claims that follow. */
#include "check.h"
#include "ring/fi_call_cost.h"

enum { US = 1000, MS = 1000 * US };

/* Calls of a dataset of which each costs `call_ns`, and each of its rows `row_ns`. */
typedef struct {
    fi_call_cost cost;
    int64_t call_ns, row_ns;
    uint32_t workers;
} calls;

/* Claims and fetches the rows of one batch, alone; returns how many calls it took. */
static uint32_t fetch_batch(calls *c, uint32_t n)
{
    uint32_t count = 0, rows;
    for (uint32_t left = n; left > 0; left -= rows, count++) {
        uint32_t share = left / (2 * c->workers);
        rows = fi_call_cost_claim(&c->cost, n, left, share > 1 ? share : 1, n);
        CHECK(rows >= 1 && rows <= left);
        fi_call_cost_add(&c->cost, rows, c->call_ns + rows * c->row_ns);
    }
    return count;
}

/* The same for several batches: how many calls they took together. */
static uint32_t fetch(calls *c, uint32_t n, int batches)
{
    uint32_t count = 0;
    while (batches-- > 0)
        count += fetch_batch(c, n);
    return count;
}

static void test_rows_that_cost_alone_are_shared(void)
{
    calls c = {.row_ns = 10 * MS, .workers = 2};
    for (int batch = 0; batch < 200; batch++) /* 16, 12, 9, 6, 5, 4, 3, 2 and seven of 1 */
        CHECK_EQ(fetch_batch(&c, 64), 15);
    CHECK(c.cost.call_ns < US);
}

static void test_a_fixed_cost_brings_whole_batches(void)
{
    static const struct {
        int64_t call_ns, row_ns;
        uint32_t n, workers;
    } kinds[] = {
        {2 * MS, 0, 64, 2},         {2 * MS, 10 * US, 64, 2},  {120 * US, 14 * US, 64, 2},
        {2 * MS, 0, 1024, 4},       {2 * MS, 0, 16, 8},        {2 * MS, 20 * US, 8, 2},
        {300 * MS, 1 * MS, 256, 16}, {2 * MS, 0, 2, 2},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        calls c = {.call_ns = kinds[i].call_ns,
                   .row_ns = kinds[i].row_ns,
                   .workers = kinds[i].workers};
        CHECK(fetch_batch(&c, kinds[i].n) <= 8); /* learns that much from the first ones */
        uint32_t count = fetch(&c, kinds[i].n, 400);
        CHECK(count >= 400 && count <= 408); /* now and then another number of rows */
    }
}

static void test_a_small_fixed_cost_brings_larger_parts(void)
{
    calls c = {.call_ns = 10 * US, .row_ns = 10 * US, .workers = 2};
    fetch_batch(&c, 256);
    uint32_t left = 256, rows;
    for (; left > 0; left -= rows) {
        rows = fi_call_cost_claim(&c.cost, 256, left, left / 4 > 0 ? left / 4 : 1, 256);
        CHECK(rows >= 27); /* 28 cost 1/32 more a row than 256 do: 1/28 + 1 against 1/256 + 1 */
    }
    CHECK_EQ(left, 0);
}

static void test_workers_without_a_batch_get_their_part(void)
{
    calls c = {.call_ns = 8 * US, .row_ns = US, .workers = 2};
    fetch_batch(&c, 64);
    CHECK_EQ(fi_call_cost_claim(&c.cost, 64, 64, 16, 64), 64);
    CHECK_EQ(fi_call_cost_claim(&c.cost, 64, 64, 16, 32), 32);
    calls query = {.call_ns = 2 * MS, .workers = 2}; /* two calls end no sooner than one */
    fetch_batch(&query, 64);
    CHECK_EQ(fi_call_cost_claim(&query.cost, 64, 64, 16, 32), 64);
}

static void test_outliers_and_slow_starts(void)
{
    calls c = {.call_ns = 2 * MS, .workers = 2};
    fi_call_cost_add(&c.cost, 16, INT64_C(300) * MS); /* it has opened a connection */
    fetch(&c, 64, 4);
    for (int batch = 0; batch < 40; batch++) {
        uint32_t count = fetch_batch(&c, 64);
        CHECK(count <= 2);
        if (batch % 8 == 0)
            fi_call_cost_add(&c.cost, 64, INT64_C(2000) * MS);
    }
    calls images = {.row_ns = 10 * MS, .workers = 2};
    fetch(&images, 64, 4);
    fi_call_cost_add(&images.cost, 1, INT64_C(2000) * MS);
    fetch(&images, 64, 20);
    CHECK(fetch_batch(&images, 64) >= 6);
}

static void test_costs_that_change(void)
{
    calls c = {.call_ns = 2 * MS, .row_ns = 10 * US, .workers = 2};
    fetch(&c, 64, 200);
    c.call_ns = 0; /* say the second epoch comes from a cache */
    fetch(&c, 64, 600);
    CHECK(fetch_batch(&c, 64) >= 10);
    c.call_ns = 2 * MS;
    fetch(&c, 64, 40);
    CHECK(fetch_batch(&c, 64) <= 2);
}

static void test_any_numbers(void)
{
    static const uint32_t sizes[] = {1, 2, 3, 64, 1000, 1u << 30};
    static const int64_t times[] = {INT64_MIN, -1, 0, 1, 2 * MS, INT64_MAX};
    uint64_t x = 1;
    fi_call_cost cost = {0};
    for (int i = 0; i < 200000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint32_t n = sizes[(x >> 33) % 6];
        uint32_t left = 1 + (uint32_t)((x >> 40) % n), share = 1 + (uint32_t)((x >> 20) % left);
        uint32_t even = 1 + (uint32_t)((x >> 50) % n);
        uint32_t rows = fi_call_cost_claim(&cost, n, left, share, even);
        CHECK(rows >= 1 && rows <= left);
        fi_call_cost_add(&cost, rows, times[(x >> 60) % 6]);
        CHECK(cost.call_ns >= 0 && cost.row_ns >= 0);
        if ((x >> 44) % 300 == 0)
            cost = (fi_call_cost){0};
    }
}

int main(void)
{
    test_rows_that_cost_alone_are_shared();
    test_a_fixed_cost_brings_whole_batches();
    test_a_small_fixed_cost_brings_larger_parts();
    test_workers_without_a_batch_get_their_part();
    test_outliers_and_slow_starts();
    test_costs_that_change();
    test_any_numbers();
    return 0;
}

/* fi_buckets: every row once, within the limits, whatever the windows. Aborts at the first broken promise. */
#include <string.h>

#include "check.h"
#include "order/fi_buckets.h"

static uint64_t below(uint64_t *random, uint64_t bound)
{
    return fi_splitmix64(random) % bound;
}

static uint64_t length_of_row(const fi_buckets *buckets, uint64_t row)
{
    return buckets->wide ? ((const uint64_t *)buckets->lengths)[row] : ((const uint32_t *)buckets->lengths)[row];
}

static void check_batches(const fi_buckets *buckets, const uint32_t *rows, const int64_t *cuts, uint64_t n)
{
    uint8_t *seen = calloc(n, 1);

    CHECK(seen != NULL && cuts[0] == 0);
    CHECK_EQ(cuts[buckets->batches], buckets->written);
    for (uint64_t k = 0; k < buckets->batches; k++) {
        const uint64_t count = (uint64_t)(cuts[k + 1] - cuts[k]);
        uint64_t longest = 0;
        CHECK(count > 0 && count <= buckets->most_rows);
        for (int64_t place = cuts[k]; place < cuts[k + 1]; place++) {
            const uint64_t length = length_of_row(buckets, rows[place]);
            longest = length > longest ? length : longest;
            CHECK(rows[place] < n && !seen[rows[place]]++);
        }
        CHECK(longest == 0 || count <= buckets->most_tokens / longest);
    }
    free(seen);
}

/* All memory is as large as is promised to do, so that the sanitizer sees what goes beyond. */
static void check_plan(uint64_t *random, uint64_t n)
{
    const uint64_t longest = 1 + below(random, 40), windows = 1 + below(random, 5);
    const bool wide = below(random, 2);
    void *lengths = malloc(n * (wide ? sizeof(uint64_t) : sizeof(uint32_t)));
    int64_t *order = malloc(n * sizeof *order);
    fi_buckets buckets = {.lengths = lengths, .wide = wide, .num_ranks = 1 + (uint32_t)below(random, 5)};

    buckets.most_rows = below(random, 3) ? 1 + below(random, 12) : UINT64_MAX;
    buckets.most_tokens = below(random, 3) ? longest * (1 + below(random, 6)) : UINT64_MAX;
    buckets.room = n + buckets.num_ranks;
    buckets.keys = malloc(buckets.room * sizeof *buckets.keys);
    buckets.spare = malloc(buckets.room * sizeof *buckets.spare);
    buckets.marks = calloc(n / 8 + 1, 1);
    buckets.out = (uint32_t *)order;
    CHECK(lengths && order && buckets.keys && buckets.spare && buckets.marks);
    for (uint64_t k = 0; k < n; k++) {
        const uint64_t length = below(random, longest + 1);
        if (wide) {
            ((uint64_t *)lengths)[k] = length;
        } else {
            ((uint32_t *)lengths)[k] = (uint32_t)length;
        }
        order[k] = (int64_t)((k * 7919 + 3) % n); /* n is no multiple of 7919 */
    }
    for (uint64_t k = 0, first = 0; k < windows; k++) {
        const uint64_t last = n * (k + 1) / windows;
        fi_buckets_window(&buckets, order + first, last - first, false);
        first = last;
    }
    fi_buckets_finish(&buckets);
    CHECK_EQ(buckets.written, n);
    const uint64_t steps = buckets.batches / buckets.num_ranks;
    uint32_t *starts = malloc((steps + 1) * sizeof *starts), *rows = malloc(n * sizeof *rows);
    int64_t *cuts = malloc((buckets.batches + 1) * sizeof *cuts);
    const fi_seed seed = {{fi_splitmix64(random), 1}};
    CHECK(starts && rows && cuts);
    for (uint64_t k = 0; k < steps; k++) {
        cuts[buckets.batches + 1 - steps + k] = (int64_t)(steps - 1 - k);
    }
    fi_buckets_arrange(&buckets, &seed, starts, rows, cuts);
    check_batches(&buckets, rows, cuts, n);
    free(starts), free(rows), free(cuts);
    free(lengths), free(order), free(buckets.keys), free(buckets.spare), free(buckets.marks);
}

int main(void)
{
    uint64_t random = 11;

    for (int round = 0; round < 3000; round++) {
        check_plan(&random, 1 + below(&random, 300));
    }
    check_plan(&random, 7000);
    return 0;
}

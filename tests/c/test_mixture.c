/* fi_mixture: counts are what is due, rounded; a mixture goes on from any slot. Aborts at the first
 * broken promise. */
#include <string.h>

#include "check.h"
#include "base/fi_mix.h"
#include "order/fi_mixture.h"

enum { SOURCES = 300, SLOTS = 3000 };

static fi_mixture_source sources[SOURCES];
static uint64_t heaps[2][SOURCES];

static fi_mixture mixture_of(uint32_t count, uint64_t last)
{
    return (fi_mixture){.last = last, .count = count, .sources = sources, .ready = heaps[0], .waiting = heaps[1]};
}

static void set_weights(fi_mixture *mixture, uint64_t *random, uint64_t most)
{
    memset(sources, 0, sizeof sources);
    mixture->total = 0;
    for (uint32_t i = 0; i < mixture->count; i++) {
        const uint64_t word = fi_splitmix64(random);
        sources[i].weight = i > 0 && word % 5 == 0 ? 0 : 1 + (word >> 8) % (most >> word % 8);
        mixture->total += sources[i].weight;
    }
}

static void check_counts(uint32_t count, uint64_t most, uint64_t last, uint64_t *random)
{
    fi_mixture mixture = mixture_of(count, last);
    uint64_t open = 0, counts[SOURCES] = {0};
    static uint16_t drawn[SLOTS], again[SLOTS];

    set_weights(&mixture, random, most);
    fi_mixture_start(&mixture);
    fi_mixture_run(&mixture, last, drawn);
    for (uint64_t slot = 1; slot <= last; slot++) {
        const uint16_t source = drawn[slot - 1];
        open += source == FI_MIXTURE_OPEN;
        if (source != FI_MIXTURE_OPEN) {
            CHECK(source < count && sources[source].weight > 0);
            counts[source]++;
        }
        for (uint32_t i = 0; i < count; i++) {
            const __int128 due = (__int128)slot * sources[i].weight, had = (__int128)counts[i] * mixture.total;
            CHECK(had < due + mixture.total);
            CHECK(open > 0 || due < had + mixture.total);
        }
    }
    CHECK(open < count);
    for (uint32_t i = 0; i < count; i++) { /* all draws are there that have to be */
        CHECK_EQ(counts[i], (uint64_t)((__int128)last * sources[i].weight / mixture.total));
        CHECK_EQ(sources[i].drawn, counts[i]);
    }
    /* From any slot. */
    mixture.slot = fi_splitmix64(random) % last;
    for (uint32_t i = 0; i < count; i++) {
        sources[i].drawn = 0;
    }
    for (uint64_t k = 0; k < mixture.slot; k++) {
        if (drawn[k] != FI_MIXTURE_OPEN) {
            sources[drawn[k]].drawn++;
        }
    }
    const uint64_t from = mixture.slot;
    fi_mixture_start(&mixture);
    fi_mixture_run(&mixture, last - from, again);
    CHECK(memcmp(again, drawn + from, (last - from) * sizeof *again) == 0);
}

/* Lags as large as they can be, and a far end: nothing overflows, no slot is left without a source. */
static void check_extremes(uint64_t weight)
{
    fi_mixture mixture = mixture_of(3, FI_MIXTURE_SLOTS_MAX);
    uint16_t drawn[200];

    memset(sources, 0, sizeof sources);
    mixture.total = FI_MIXTURE_TOTAL_MAX;
    sources[0] = (fi_mixture_source){.weight = weight, .lag = 2 * (int64_t)mixture.total - 1};
    sources[1] = (fi_mixture_source){.weight = mixture.total - weight, .lag = 1 - 2 * (int64_t)mixture.total};
    fi_mixture_start(&mixture);
    fi_mixture_run(&mixture, 200, drawn);
    CHECK_EQ(sources[0].drawn + sources[1].drawn, 200);
    mixture.slot = FI_MIXTURE_SLOTS_MAX - 200;
    sources[0].lag = sources[1].lag = 0;
    sources[0].drawn = (uint64_t)((__int128)mixture.slot * weight / mixture.total);
    sources[1].drawn = mixture.slot - sources[0].drawn;
    fi_mixture_start(&mixture);
    fi_mixture_run(&mixture, 200, drawn);
    CHECK(sources[0].drawn + sources[1].drawn >= FI_MIXTURE_SLOTS_MAX - 1);
}

int main(void)
{
    uint64_t random = 5;

    for (int round = 0; round < 300; round++) {
        const uint32_t count = 1 + (uint32_t)(fi_splitmix64(&random) % 8);
        check_counts(count, 1000, 1 + fi_splitmix64(&random) % 500, &random);
        check_counts(count, FI_MIXTURE_TOTAL_MAX / 8, 1 + fi_splitmix64(&random) % 500, &random);
    }
    check_counts(SOURCES, 1000, SLOTS, &random);
    check_extremes(1);
    check_extremes(FI_MIXTURE_TOTAL_MAX / 2);
    return 0;
}

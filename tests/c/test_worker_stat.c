/* Reports of a worker about itself. */
#include <string.h>

#include "check.h"
#include "ring/fi_worker_stat.h"

static void test_counters(void)
{
    fi_worker_stat stat = {0};
    fi_report report;
    fi_worker_stat_fetch_begins(&stat, 7);
    fi_worker_stat_begins(&stat, 500);
    fi_worker_stat_count(&stat, 3, 100, 1);
    fi_worker_stat_count(&stat, 1, 10, 0);
    fi_worker_stat_sampled(&stat, 40, 5);
    fi_worker_stat_read(&stat, &report);
    CHECK(report.since > 0 && report.index == 7);
    CHECK_EQ(report.range_since, 500);
    CHECK(report.rows == 4 && report.bytes == 110 && report.spills == 1);
    CHECK(report.fetch_ns == 40 && report.write_ns == 5);
    fi_worker_stat_fetch_ends(&stat);
    fi_worker_stat_busy(&stat, 60);
    fi_worker_stat_read(&stat, &report);
    CHECK(report.since == 0 && report.range_since == 0);
    CHECK(report.busy_ns == 60 && report.claims == 1 && report.finish_ns == 0);
    fi_worker_stat_begins(&stat, 700);
    fi_worker_stat_finished(&stat, 25);
    fi_worker_stat_read(&stat, &report);
    CHECK(report.busy_ns == 85 && report.claims == 1 && report.finish_ns == 25);
    CHECK_EQ(report.range_since, 0);
}

/* Its successor has nothing in hand, and goes on counting. */
static void test_clear(void)
{
    fi_worker_stat stat = {0};
    fi_report report;
    fi_worker_stat_fetch_begins(&stat, 1);
    fi_worker_stat_begins(&stat, 1);
    fi_worker_stat_count(&stat, 2, 0, 0);
    fi_worker_stat_loaded(&stat, 4, 9);
    fi_worker_stat_clear(&stat);
    fi_worker_stat_read(&stat, &report);
    CHECK(report.since == 0 && report.range_since == 0 && report.start_error_bytes == 0);
    CHECK(report.rows == 2 && report.ready == 4);
}

static void test_handshake(void)
{
    fi_worker_stat stat = {0};
    fi_worker_stat_allow_start(&stat, 5);
    CHECK(fi_worker_stat_wait_for_start(&stat, 5, 77));
    CHECK(!fi_worker_stat_wait_for_start(&stat, 4, 78)); /* another start has the number meanwhile */
    CHECK_EQ(atomic_load(&stat.pid), 78);
}

static void test_cpu_meter(void)
{
    fi_worker_stat stat = {0};
    fi_cpu_meter meter;
    int64_t cpu, until, delay;
    fi_cpu_meter_start(&meter);
    fi_cpu_meter_look(&meter, &stat, meter.due - 1);
    CHECK_EQ(atomic_load(&stat.cpu_ns), 0);
    fi_cpu_times(&cpu, &delay);
    CHECK(cpu > 0 && delay >= 0);
    until = cpu + 2000000;
    while (cpu < until)
        fi_cpu_times(&cpu, NULL);
    int64_t due = meter.due;
    fi_cpu_meter_look(&meter, &stat, due);
    CHECK(atomic_load(&stat.cpu_ns) >= 2000000);
    CHECK(meter.due > due);
    uint64_t seen = atomic_load(&stat.cpu_ns);
    fi_cpu_meter_look(&meter, &stat, due);
    CHECK(atomic_load(&stat.cpu_ns) == seen); /* not again so soon */
}

int main(void)
{
    test_counters();
    test_clear();
    test_handshake();
    test_cpu_meter();
    return 0;
}

/* What a worker tells of itself. */
#include <string.h>

#include "check.h"
#include "ring/fi_cell.h"

static void test_counters(void)
{
    fi_cell cell = {0};
    fi_report report;
    fi_cell_fetch_begins(&cell, 7);
    fi_cell_begins(&cell, 500);
    fi_cell_count(&cell, 3, 100, 1);
    fi_cell_count(&cell, 1, 10, 0);
    fi_cell_sampled(&cell, 40, 5);
    fi_cell_read(&cell, &report);
    CHECK(report.since > 0 && report.index == 7);
    CHECK_EQ(report.range_since, 500);
    CHECK(report.rows == 4 && report.bytes == 110 && report.spills == 1);
    CHECK(report.fetch_ns == 40 && report.write_ns == 5);
    fi_cell_fetch_ends(&cell);
    fi_cell_busy(&cell, 60);
    fi_cell_read(&cell, &report);
    CHECK(report.since == 0 && report.range_since == 0);
    CHECK(report.busy_ns == 60 && report.claims == 1 && report.finish_ns == 0);
    fi_cell_begins(&cell, 700);
    fi_cell_finished(&cell, 25);
    fi_cell_read(&cell, &report);
    CHECK(report.busy_ns == 85 && report.claims == 1 && report.finish_ns == 25);
    CHECK_EQ(report.range_since, 0);
}

/* Its successor has nothing in hand, and goes on counting. */
static void test_clear(void)
{
    fi_cell cell = {0};
    fi_report report;
    fi_cell_fetch_begins(&cell, 1);
    fi_cell_begins(&cell, 1);
    fi_cell_count(&cell, 2, 0, 0);
    fi_cell_loaded(&cell, 4, 9);
    fi_cell_clear(&cell);
    fi_cell_read(&cell, &report);
    CHECK(report.since == 0 && report.range_since == 0 && report.note_bytes == 0);
    CHECK(report.rows == 2 && report.ready == 4);
}

static void test_handshake(void)
{
    fi_cell cell = {0};
    fi_cell_let_in(&cell, 5);
    CHECK(fi_cell_enter(&cell, 5, 77));
    CHECK(!fi_cell_enter(&cell, 4, 78)); /* another start has the number meanwhile */
    CHECK_EQ(atomic_load(&cell.pid), 78);
}

static void test_cpu_meter(void)
{
    fi_cell cell = {0};
    fi_cpu_meter meter;
    int64_t cpu, until, delay;
    fi_cpu_meter_start(&meter);
    fi_cpu_meter_look(&meter, &cell, meter.due - 1);
    CHECK_EQ(atomic_load(&cell.cpu_ns), 0);
    fi_cpu_times(&cpu, &delay);
    CHECK(cpu > 0 && delay >= 0);
    until = cpu + 2000000;
    while (cpu < until)
        fi_cpu_times(&cpu, &delay);
    int64_t due = meter.due;
    fi_cpu_meter_look(&meter, &cell, due);
    CHECK(atomic_load(&cell.cpu_ns) >= 2000000);
    CHECK(meter.due > due);
    uint64_t seen = atomic_load(&cell.cpu_ns);
    fi_cpu_meter_look(&meter, &cell, due);
    CHECK(atomic_load(&cell.cpu_ns) == seen); /* not again so soon */
}

int main(void)
{
    test_counters();
    test_clear();
    test_handshake();
    test_cpu_meter();
    return 0;
}

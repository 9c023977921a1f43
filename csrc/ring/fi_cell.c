#define _POSIX_C_SOURCE 200809L
#include "ring/fi_cell.h"

#include <time.h>

bool fi_cell_enter(fi_cell *cell, uint32_t start, uint32_t pid)
{
    /* The parent opens the gate microseconds after it started this process, which needs longer
     * to get here; a bell for a wait that nobody sees is not worth its words. */
    const struct timespec moment = {.tv_nsec = 500000};
    atomic_store_explicit(&cell->pid, pid, memory_order_relaxed);
    for (;;) {
        uint32_t go = atomic_load_explicit(&cell->go, memory_order_acquire);
        if (go == start)
            return true;
        if ((int32_t)(go - start) > 0)
            return false;
        nanosleep(&moment, NULL);
    }
}

void fi_cell_loaded(fi_cell *cell, uint32_t start, uint32_t note_bytes)
{
    atomic_store_explicit(&cell->note_bytes, note_bytes, memory_order_relaxed);
    atomic_store_explicit(&cell->ready, start, memory_order_release);
}

void fi_cell_clear(fi_cell *cell)
{
    atomic_store_explicit(&cell->since, 0, memory_order_relaxed);
    atomic_store_explicit(&cell->range_since, 0, memory_order_relaxed);
    atomic_store_explicit(&cell->note_bytes, 0, memory_order_relaxed);
}

void fi_cell_read(const fi_cell *cell, fi_report *report)
{
#define COPY(field) report->field = atomic_load_explicit(&cell->field, memory_order_relaxed)
    report->ready = atomic_load_explicit(&cell->ready, memory_order_acquire); /* then the note */
    COPY(since);
    COPY(index);
    COPY(range_since);
    COPY(rows);
    COPY(bytes);
    COPY(spills);
    COPY(claims);
    COPY(busy_ns);
    COPY(sleep_ns);
    COPY(fetch_ns);
    COPY(write_ns);
    COPY(finish_ns);
    COPY(cpu_ns);
    COPY(delay_ns);
    COPY(pid);
    COPY(note_bytes);
#undef COPY
}

#define LOOK_NS 20000000 /* a look takes some 10 us */

void fi_cpu_meter_start(fi_cpu_meter *meter)
{
    meter->due = fi_now_ns() + LOOK_NS;
    fi_cpu_times(&meter->cpu_ns, &meter->delay_ns);
}

void fi_cpu_meter_look(fi_cpu_meter *meter, fi_cell *cell, int64_t now_ns)
{
    int64_t cpu_ns, delay_ns;
    if (now_ns < meter->due)
        return;
    fi_cpu_times(&cpu_ns, &delay_ns);
    FI_CELL_ADD(cell, cpu_ns, (uint64_t)(cpu_ns - meter->cpu_ns));
    FI_CELL_ADD(cell, delay_ns, (uint64_t)(delay_ns - meter->delay_ns));
    *meter = (fi_cpu_meter){.due = now_ns + LOOK_NS, .cpu_ns = cpu_ns, .delay_ns = delay_ns};
}

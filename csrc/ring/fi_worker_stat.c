#define _POSIX_C_SOURCE 200809L
#include "ring/fi_worker_stat.h"

#include <time.h>

bool fi_worker_stat_wait_for_start(fi_worker_stat *stat, uint32_t start, uint32_t pid)
{
    /* The parent allows the start microseconds after it started this process, which needs longer to
     * get here: a wait that hardly ever happens needs no doorbell. */
    const struct timespec moment = {.tv_nsec = 500000};
    fi_store_relaxed(&stat->pid, pid);
    for (;;) {
        uint32_t go = fi_load_acquire(&stat->go);
        if (go == start)
            return true;
        if ((int32_t)(go - start) > 0)
            return false;
        nanosleep(&moment, NULL);
    }
}

void fi_worker_stat_loaded(fi_worker_stat *stat, uint32_t start, uint32_t start_error_bytes)
{
    fi_store_relaxed(&stat->start_error_bytes, start_error_bytes);
    fi_store_release(&stat->ready, start);
}

void fi_worker_stat_clear(fi_worker_stat *stat)
{
    fi_store_relaxed(&stat->since, 0);
    fi_store_relaxed(&stat->range_since, 0);
    fi_store_relaxed(&stat->start_error_bytes, 0);
}

void fi_worker_stat_read(const fi_worker_stat *stat, fi_report *report)
{
#define COPY(field) report->field = fi_load_relaxed(&stat->field)
    report->ready = fi_load_acquire(&stat->ready); /* then the start error */
    COPY(since);
    COPY(index);
    COPY(range_since);
    COPY(rows);
    COPY(bytes);
    COPY(spills);
    COPY(claims);
    COPY(busy_ns);
    COPY(fetch_ns);
    COPY(write_ns);
    COPY(finish_ns);
    COPY(cpu_ns);
    COPY(delay_ns);
    COPY(pid);
    COPY(start_error_bytes);
#undef COPY
}

#define LOOK_NS 20000000 /* a look takes some 10 us */

void fi_cpu_meter_start(fi_cpu_meter *meter)
{
    meter->due = fi_now_ns() + LOOK_NS;
    fi_cpu_times(&meter->cpu_ns, &meter->delay_ns);
}

void fi_cpu_meter_look(fi_cpu_meter *meter, fi_worker_stat *stat, int64_t now_ns)
{
    int64_t cpu_ns, delay_ns;
    if (now_ns < meter->due)
        return;
    fi_cpu_times(&cpu_ns, &delay_ns);
    FI_STAT_ADD(stat, cpu_ns, (uint64_t)(cpu_ns - meter->cpu_ns));
    FI_STAT_ADD(stat, delay_ns, (uint64_t)(delay_ns - meter->delay_ns));
    *meter = (fi_cpu_meter){.due = now_ns + LOOK_NS, .cpu_ns = cpu_ns, .delay_ns = delay_ns};
}

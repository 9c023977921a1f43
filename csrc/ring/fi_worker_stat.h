/* Report of a worker about itself: the start handshake, the row that it fetches, counters.
 *
 * Each worker writes its own fi_worker_stat; the parent writes `go` alone. They serve statistics and
 * messages: no batch depends on what they hold, so relaxed order is enough everywhere but in
 * the handshake.
 */
#ifndef FI_WORKER_STAT_H
#define FI_WORKER_STAT_H

#include "os/fi_platform.h"

/* In place of the index: what a worker does that fetches no row. */
enum { FI_STAT_LOADING = -1, FI_STAT_FINISHING = -2, FI_STAT_STARTING = -3 };

typedef struct fi_worker_stat {
    _Alignas(FI_CACHE_LINE) _Atomic int64_t since; /* coarse clock when the present fetch began; 0 none */
    _Atomic int64_t index;                         /* its dataset index; below 0: FI_STAT_LOADING and so on */
    _Atomic uint64_t rows;                         /* rows completed */
    _Atomic uint64_t bytes;                        /* bytes written into slots */
    _Atomic uint64_t spills;                       /* rows that fitted no column */
    _Atomic uint64_t claims;                       /* ranges taken */
    _Atomic uint64_t busy_ns;                      /* time spent on ranges and finishes */
    _Alignas(FI_CACHE_LINE) _Atomic uint32_t go; /* start number that the parent allows to begin */
    _Atomic uint32_t ready;                      /* start number whose dataset is loaded */
    _Atomic uint32_t pid;
    _Atomic uint32_t start_error_bytes; /* length of the error that kept the worker from starting */
    /* Estimates of what the rows cost: those that were timed, each times the rows it stands for. */
    _Atomic uint64_t fetch_ns;  /* in the dataset */
    _Atomic uint64_t write_ns;  /* into the slot */
    _Atomic uint64_t finish_ns; /* padding and converters: exact, a part of busy_ns */
    _Atomic uint64_t cpu_ns;    /* of all threads of the worker since it began to work */
    _Atomic uint64_t delay_ns;  /* time that the worker could have run, had a CPU been free */
    _Atomic int64_t range_since; /* start of the present range or finish; 0 none */
} fi_worker_stat;

_Static_assert(sizeof(fi_worker_stat) == 2 * FI_CACHE_LINE, "the byte map says so");

/* The parent's copy. */
typedef struct fi_report {
    int64_t since;
    int64_t index;
    int64_t range_since;
    uint64_t rows, bytes, spills, claims, busy_ns;
    uint64_t fetch_ns, write_ns, finish_ns, cpu_ns, delay_ns;
    uint32_t ready, pid, start_error_bytes;
} fi_report;

#define FI_STAT_ADD(stat, field, amount)                                                          \
    atomic_store_explicit(&(stat)->field,                                                         \
                          fi_load_relaxed(&(stat)->field) + (amount),  \
                          memory_order_relaxed)

/* `since`: 0 for none. */
static inline void fi_worker_stat_fetches_since(fi_worker_stat *stat, int64_t index, int64_t since)
{
    fi_store_relaxed(&stat->index, index);
    fi_store_relaxed(&stat->since, since);
}

static inline void fi_worker_stat_fetch_begins(fi_worker_stat *stat, int64_t index)
{
    fi_worker_stat_fetches_since(stat, index, fi_coarse_ns());
}

static inline bool fi_worker_stat_fetches(const fi_worker_stat *stat, int64_t index)
{
    return fi_load_relaxed(&stat->since) > 0 && fi_load_relaxed(&stat->index) == index;
}

static inline void fi_worker_stat_fetch_ends(fi_worker_stat *stat)
{
    fi_store_relaxed(&stat->since, 0);
}

static inline void fi_worker_stat_count(fi_worker_stat *stat, uint64_t rows, uint64_t bytes, uint64_t spills)
{
    FI_STAT_ADD(stat, rows, rows);
    FI_STAT_ADD(stat, bytes, bytes);
    FI_STAT_ADD(stat, spills, spills);
}

/* A range or a finish begins. */
static inline void fi_worker_stat_begins(fi_worker_stat *stat, int64_t now_ns)
{
    fi_store_relaxed(&stat->range_since, now_ns);
}

static inline void fi_worker_stat_busy(fi_worker_stat *stat, int64_t nanoseconds)
{
    fi_store_relaxed(&stat->range_since, 0);
    FI_STAT_ADD(stat, claims, 1);
    FI_STAT_ADD(stat, busy_ns, (uint64_t)nanoseconds);
}

static inline void fi_worker_stat_finished(fi_worker_stat *stat, int64_t nanoseconds)
{
    fi_store_relaxed(&stat->range_since, 0);
    FI_STAT_ADD(stat, busy_ns, (uint64_t)nanoseconds);
    FI_STAT_ADD(stat, finish_ns, (uint64_t)nanoseconds);
}

static inline void fi_worker_stat_sampled(fi_worker_stat *stat, int64_t fetch_ns, int64_t write_ns)
{
    FI_STAT_ADD(stat, fetch_ns, (uint64_t)fetch_ns);
    FI_STAT_ADD(stat, write_ns, (uint64_t)write_ns);
}

/* Measures this process' use of CPUs: now and then, since it takes system calls. A new start of a
 * worker adds to what the one before has counted. */
typedef struct fi_cpu_meter {
    int64_t due; /* no look before that, by fi_now_ns */
    int64_t cpu_ns, delay_ns;
} fi_cpu_meter;

void fi_cpu_meter_start(fi_cpu_meter *meter);
void fi_cpu_meter_look(fi_cpu_meter *meter, fi_worker_stat *stat, int64_t now_ns);

/* The parent lets this start begin once it holds a descriptor that becomes readable at its death. */
static inline void fi_worker_stat_allow_start(fi_worker_stat *stat, uint32_t start)
{
    fi_store_release(&stat->go, start);
}

/* True if this worker may begin, false if the parent has meanwhile allowed another start. */
bool fi_worker_stat_wait_for_start(fi_worker_stat *stat, uint32_t start, uint32_t pid);
/* The dataset is loaded (start_error_bytes 0), or the start error says why it could not be. */
void fi_worker_stat_loaded(fi_worker_stat *stat, uint32_t start, uint32_t start_error_bytes);
/* Forgets what the last worker of this number was doing; counters go on. */
void fi_worker_stat_clear(fi_worker_stat *stat);
void fi_worker_stat_read(const fi_worker_stat *stat, fi_report *report);

#endif

/* What a worker tells of itself: the start handshake, the row in hand, counters.
 *
 * Each cell has one writer, the worker that holds its number; the parent's part is `go` alone.
 * Cells serve statistics and messages: no batch depends on what they hold, so relaxed order is
 * enough everywhere but in the handshake.
 */
#ifndef FI_CELL_H
#define FI_CELL_H

#include "os/fi_platform.h"

typedef struct fi_cell {
    _Alignas(FI_CACHE_LINE) _Atomic int64_t since; /* coarse clock at the fetch in hand; 0 none */
    _Atomic int64_t index;                         /* its dataset index; below 0 what else it is */
    _Atomic uint64_t rows;                         /* rows completed */
    _Atomic uint64_t bytes;                        /* bytes written into slots */
    _Atomic uint64_t spills;                       /* rows that fitted no column */
    _Atomic uint64_t claims;                       /* ranges taken */
    _Atomic uint64_t busy_ns;                      /* time spent on ranges and finishes */
    _Atomic uint64_t sleep_ns;                     /* time asleep for want of work */
    _Alignas(FI_CACHE_LINE) _Atomic uint32_t go; /* start number that the parent has let in */
    _Atomic uint32_t ready;                      /* start number whose dataset is loaded */
    _Atomic uint32_t pid;
    _Atomic uint32_t note_bytes; /* length of what the worker left in its note */
    /* Estimates of what the rows cost: those that were timed, each times the rows it stands for. */
    _Atomic uint64_t fetch_ns;  /* in the dataset */
    _Atomic uint64_t write_ns;  /* into the slot */
    _Atomic uint64_t finish_ns; /* padding and converters: exact, a part of busy_ns */
    _Atomic uint64_t cpu_ns;    /* of all threads of the worker since it began to work */
    _Atomic uint64_t delay_ns;  /* time that the worker could have run, had a CPU been free */
    _Atomic int64_t range_since; /* start of the range or finish in hand; 0 none */
} fi_cell;

_Static_assert(sizeof(fi_cell) == 2 * FI_CACHE_LINE, "the byte map says so");

/* The parent's copy of a cell. */
typedef struct fi_report {
    int64_t since;
    int64_t index;
    int64_t range_since;
    uint64_t rows, bytes, spills, claims, busy_ns, sleep_ns;
    uint64_t fetch_ns, write_ns, finish_ns, cpu_ns, delay_ns;
    uint32_t ready, pid, note_bytes;
} fi_report;

#define FI_CELL_ADD(cell, field, amount)                                                          \
    atomic_store_explicit(&(cell)->field,                                                         \
                          atomic_load_explicit(&(cell)->field, memory_order_relaxed) + (amount),  \
                          memory_order_relaxed)

static inline void fi_cell_fetch_begins(fi_cell *cell, int64_t index)
{
    atomic_store_explicit(&cell->index, index, memory_order_relaxed);
    atomic_store_explicit(&cell->since, fi_coarse_ns(), memory_order_relaxed);
}

static inline void fi_cell_fetch_ends(fi_cell *cell)
{
    atomic_store_explicit(&cell->since, 0, memory_order_relaxed);
}

static inline void fi_cell_count(fi_cell *cell, uint64_t rows, uint64_t bytes, uint64_t spills)
{
    FI_CELL_ADD(cell, rows, rows);
    FI_CELL_ADD(cell, bytes, bytes);
    FI_CELL_ADD(cell, spills, spills);
}

/* A range or a finish is taken in hand. */
static inline void fi_cell_begins(fi_cell *cell, int64_t now_ns)
{
    atomic_store_explicit(&cell->range_since, now_ns, memory_order_relaxed);
}

static inline void fi_cell_busy(fi_cell *cell, int64_t nanoseconds)
{
    atomic_store_explicit(&cell->range_since, 0, memory_order_relaxed);
    FI_CELL_ADD(cell, claims, 1);
    FI_CELL_ADD(cell, busy_ns, (uint64_t)nanoseconds);
}

static inline void fi_cell_finished(fi_cell *cell, int64_t nanoseconds)
{
    atomic_store_explicit(&cell->range_since, 0, memory_order_relaxed);
    FI_CELL_ADD(cell, busy_ns, (uint64_t)nanoseconds);
    FI_CELL_ADD(cell, finish_ns, (uint64_t)nanoseconds);
}

static inline void fi_cell_sampled(fi_cell *cell, int64_t fetch_ns, int64_t write_ns)
{
    FI_CELL_ADD(cell, fetch_ns, (uint64_t)fetch_ns);
    FI_CELL_ADD(cell, write_ns, (uint64_t)write_ns);
}

/* How this process' use of CPUs gets into its cell: looked up now and then, since it takes system
 * calls. A new start of a worker goes on where the one before has ended. */
typedef struct fi_cpu_meter {
    int64_t due; /* no look before that, by fi_now_ns */
    int64_t cpu_ns, delay_ns;
} fi_cpu_meter;

void fi_cpu_meter_start(fi_cpu_meter *meter);
void fi_cpu_meter_look(fi_cpu_meter *meter, fi_cell *cell, int64_t now_ns);

/* The parent opens the gate once it holds a descriptor that will tell of this worker's death. */
static inline void fi_cell_let_in(fi_cell *cell, uint32_t start)
{
    atomic_store_explicit(&cell->go, start, memory_order_release);
}

/* True if this worker may begin, false if the parent has meanwhile let in another start. */
bool fi_cell_enter(fi_cell *cell, uint32_t start, uint32_t pid);
/* The dataset is loaded (note_bytes 0), or the note says why it could not be. */
void fi_cell_loaded(fi_cell *cell, uint32_t start, uint32_t note_bytes);
/* Forgets what the last holder of the number had in hand; counters go on. */
void fi_cell_clear(fi_cell *cell);
void fi_cell_read(const fi_cell *cell, fi_report *report);

#endif

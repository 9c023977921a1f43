/* What a worker tells of itself: the start handshake, the row in hand, counters.
 *
 * Each cell has one writer, the worker that holds its number; the parent's part is `go` alone.
 * Cells serve statistics and messages: no batch depends on what they hold, so relaxed order is
 * enough everywhere but in the handshake.
 */
#ifndef FI_CELL_H
#define FI_CELL_H

#include "fi_platform.h"

typedef struct fi_cell {
    _Alignas(FI_CACHE_LINE) _Atomic int64_t since; /* coarse clock at the fetch in hand; 0 none */
    _Atomic int64_t index;                         /* its dataset index */
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
} fi_cell;

/* The parent's copy of a cell. */
typedef struct fi_report {
    int64_t since;
    int64_t index;
    uint64_t rows, bytes, spills, claims, busy_ns, sleep_ns;
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

static inline void fi_cell_busy(fi_cell *cell, int64_t nanoseconds)
{
    FI_CELL_ADD(cell, claims, 1);
    FI_CELL_ADD(cell, busy_ns, (uint64_t)nanoseconds);
}

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

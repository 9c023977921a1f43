#include "ring/fi_call_cost.h"

#include <math.h>

/* A claim may cost a batch so much more than one call for all of its rows would: this part in
 * general, the other one where splitting the batch employs workers that were idle otherwise. */
#define OVERHEAD (1.0 / 32)
#define OVERHEAD_IF_IDLE (1.0 / 2)
/* Older calls are forgotten: the estimate is mostly that of about this many recent ones. */
#define RECENT_CALLS 64
/* One outlier counts no more than this many times the time that was expected. */
#define MOST_SURPRISE 4
/* Calls that all fetch about the same number of rows do not tell the two costs apart. Below this
 * relative spread (squared) of that number the next call fetches another number of rows. With two
 * workers, one call in about a hundred does so. */
#define LEAST_SPREAD (1.0 / 256)

static bool is_spread(const fi_call_cost *cost)
{
    double square = cost->ones * cost->ones;
    return cost->weight * cost->rows - square > LEAST_SPREAD * square;
}

void fi_call_cost_add(fi_call_cost *cost, uint32_t rows, int64_t nanoseconds)
{
    double k = rows, time = nanoseconds > 0 ? (double)nanoseconds : 1;
    double expected = cost->call_ns + cost->row_ns * k;
    if (is_spread(cost) && time > MOST_SURPRISE * expected)
        time = MOST_SURPRISE * expected;
    /* At first the weights grow with each call, since the very first calls open files and
     * connections. */
    if (cost->calls < 2 * RECENT_CALLS)
        cost->calls++;
    double keep = 1 - 2.0 / (cost->calls + 1);
    cost->weight = cost->weight * keep + 1 / k;
    cost->ones = cost->ones * keep + 1;
    cost->rows = cost->rows * keep + k;
    cost->time = cost->time * keep + time / k;
    cost->time_rows = cost->time_rows * keep + time;
    if (is_spread(cost)) {
        double spread = cost->weight * cost->rows - cost->ones * cost->ones;
        double slope = (cost->weight * cost->time_rows - cost->ones * cost->time) / spread;
        cost->row_ns = slope > 0 ? slope : 0;
        cost->call_ns = (cost->time_rows - cost->row_ns * cost->rows) / cost->ones;
        if (cost->call_ns < 0) {
            cost->call_ns = 0;
            cost->row_ns = cost->time_rows / cost->rows;
        }
    } else { /* the total is known, its parts are as they were */
        double fitted = cost->call_ns * cost->ones + cost->row_ns * cost->rows;
        if (fitted > 0) {
            cost->call_ns *= cost->time_rows / fitted;
            cost->row_ns *= cost->time_rows / fitted;
        } else {
            cost->row_ns = cost->time_rows / cost->rows;
        }
    }
}

/* The fewest rows k for which k rows cost at most 1 + overhead times what they cost in a call for
 * all n: call / k + row <= (1 + overhead) * (call / n + row). */
static double least_rows(const fi_call_cost *cost, uint32_t n, double overhead)
{
    return cost->call_ns / (overhead * cost->row_ns + (1 + overhead) * cost->call_ns / n);
}

/* The same where workers that find no rows left have nothing else to do. Each of n / even workers then
 * makes about even / k calls of k rows, and waits for half a call in the end: even / k * call +
 * k / 2 * row is least for this k. More than even rows are never sooner there than even ones; they
 * only leave a worker free for the next batch. */
static double rows_if_idle(const fi_call_cost *cost, uint32_t n, uint32_t even)
{
    double row_ns = fmax(cost->row_ns, cost->call_ns * 1e-9);
    double soonest = sqrt(2 * cost->call_ns / row_ns * even);
    if (soonest < even)
        return soonest;
    return fmax(even, least_rows(cost, n, OVERHEAD_IF_IDLE));
}

uint32_t fi_call_cost_claim(const fi_call_cost *cost, uint32_t n, uint32_t left, uint32_t share,
                            uint32_t even)
{
    double least = 1;
    if (cost->calls > 0 && !is_spread(cost)) {
        /* A smaller number of rows than so far, or, where that is impossible, a larger one. */
        if (share == 1 && 2 * cost->rows <= cost->ones * n)
            least = n / 2 + 1;
    } else if (cost->call_ns > 0) {
        least = least_rows(cost, n, OVERHEAD);
        if (even < n)
            least = fmin(least, rows_if_idle(cost, n, even));
    }
    if (least <= share)
        return share < left ? share : left;
    /* Equal parts, none smaller than that. */
    uint32_t parts = left > least ? (uint32_t)(left / least) : 1;
    return (left + parts - 1) / parts;
}

/* Cost of one call of a dataset that fetches several rows at once, and the number of rows that the
 * next call should therefore fetch.
 */
#ifndef FI_CALL_COST_H
#define FI_CALL_COST_H

#include "base/fi_base.h"

/* A line, time = call_ns + rows * row_ns, fitted to the calls so far by weighted least squares. A
 * call of k rows weighs 1/k (its variance grows with its rows), and recent calls weigh more than
 * older ones. All zero: no call yet. Used by one thread at a time. */
typedef struct fi_call_cost {
    double weight, ones, rows;  /* weighted sums of 1, rows and rows squared */
    double time, time_rows;     /* weighted sums of time, and of time times rows */
    double call_ns;             /* fixed cost of a call, 0 or more */
    double row_ns;              /* cost of each of its rows, 0 or more */
    uint32_t calls;             /* noted so far; stops counting when recent calls dominate */
} fi_call_cost;

/* Notes that a call has fetched `rows` rows, at least one, in `nanoseconds`. */
void fi_call_cost_add(fi_call_cost *cost, uint32_t rows, int64_t nanoseconds);

/* Number of the `left` unclaimed rows of a batch of n that the next call should fetch: 1 to left.
 * share: the rows to claim if calls had no fixed cost, at least 1.
 * even:  the rows that leave as many for each worker that has no other batch to work on; n or more
 *        if every worker has one. */
uint32_t fi_call_cost_claim(const fi_call_cost *cost, uint32_t n, uint32_t left, uint32_t share,
                            uint32_t even);

#endif

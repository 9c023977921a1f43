/* A checksum of what travels packed: enough to tell that shared memory was overwritten, no more. */
#ifndef FI_CHECKSUM_H
#define FI_CHECKSUM_H

#include "base/fi_base.h"

/* Another seed gives another sum of the same bytes; any single flipped bit changes it. Never 0. */
uint64_t fi_checksum(const void *bytes, size_t count, uint64_t seed);

/* Seed for what belongs to one row (or the finisher, row UINT32_MAX) of one batch and is of one
 * kind, so that what was packed for another place is as wrong as what was corrupt. */
uint64_t fi_place_seed(uint64_t q, uint32_t row, uint32_t kind);

#endif

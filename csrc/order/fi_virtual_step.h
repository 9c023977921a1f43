/* What the files of the virtual order share among themselves. */
#ifndef FI_VIRTUAL_STEP_H
#define FI_VIRTUAL_STEP_H

#include "order/fi_virtual.h"

enum { FI_VIRTUAL_STEP = 128 }; /* indices computed at once */

/* The hash of a half-round. Its upper bits are used: each multiplication carries what is below
 * upwards, the shifts carry it down again. */
#define FI_VIRTUAL_MULTIPLIER_1 0x9e3779b1u
#define FI_VIRTUAL_MULTIPLIER_2 0x85ebca6bu
#define FI_VIRTUAL_MULTIPLIER_3 0xc2b2ae35u
enum { FI_VIRTUAL_SHIFT_1 = 16, FI_VIRTUAL_SHIFT_2 = 15 };

/* out[k]: the image of start + k, for k < FI_VIRTUAL_STEP, not walked; whether one is n or more. */
typedef bool fi_virtual_step(const fi_virtual *order, uint64_t start, int64_t *out);

#ifdef __x86_64__
fi_virtual_step fi_virtual_step_avx2, fi_virtual_step_avx512;
#endif

#endif

/* The loops in plain C: what other processors run, and what defines the result. */
#include "order/fi_loops.h"

#define FI_TARGET
typedef uint64_t fi_words;

#include "order/fi_loops_body.h"

const fi_loops fi_loops_generic = FI_LOOPS(fi_virtual_step_generic);

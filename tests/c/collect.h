/* Takes back the slots of a ring whose leases have ended, and those that a reset has drained. */
#ifndef FASTITER_TESTS_COLLECT_H
#define FASTITER_TESTS_COLLECT_H

#include "ring/fi_ring_parent.h"

static inline void collect(fi_parent *parent)
{
    fi_parent_take_back(parent, fi_returned_take(&parent->ring->returned));
    fi_parent_collect(parent);
}

#endif

/* Maps every slot of a ring as a whole: threads, and processes that are forked, then share the addresses. */
#ifndef FASTITER_TESTS_MAP_SLOTS_H
#define FASTITER_TESTS_MAP_SLOTS_H

#include "check.h"
#include "ring/fi_window.h"

static inline void map_slots(const fi_ring *ring)
{
    for (uint32_t slot = 0; slot < ring->geometry.slots; slot++)
        CHECK_EQ(fi_slot_reach(ring, slot, ring->geometry.slot_bytes), FI_OK);
}

#endif

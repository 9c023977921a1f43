/* Mappings of the slots in one process, and their users.
 *
 * The file has room for slots far larger than any batch, the address space of a process has not. So
 * a slot is mapped where it is used, as far as it is used, to the next power of two. What has to
 * reach further gets another mapping beside the former ones, which stay: pointers into these are
 * still good.
 */
#ifndef FI_WINDOW_H
#define FI_WINDOW_H

#include "ring/fi_ring.h"

#define FI_LEAST_WINDOW ((uint64_t)1 << 20)

/* Maps `bytes` of the slot at least. FI_E_SPACE: there is no address space; EBADF: the descriptor is
 * closed, or that of another file. By fi_slot_reach. */
int fi_slot_map(const fi_ring *ring, uint32_t slot, uint64_t bytes);
/* Sees to it that the slot is mapped up to `bytes`. One thread at a time in each process. */
static inline int fi_slot_reach(const fi_ring *ring, uint32_t slot, uint64_t bytes)
{
    return bytes <= ring->windows[slot].bytes ? FI_OK : fi_slot_map(ring, slot, bytes);
}
/* Whether the slot is mapped up to `bytes`, at `address`. */
static inline bool fi_slot_is_at(const fi_ring *ring, uint32_t slot, const char *address,
                                 uint64_t bytes)
{
    return ring->windows[slot].address == address && bytes <= ring->windows[slot].bytes;
}
/* The same for all `bytes` that were committed. FI_E_CORRUPT for more than the file has pages of. */
int fi_slot_reach_all(const fi_ring *ring, uint32_t slot, uint64_t *bytes);
/* Unmaps all but the largest mapping, where nothing points into the others. */
void fi_slot_unmap_smaller(const fi_ring *ring, uint32_t slot);
void fi_slot_unmap(const fi_ring *ring, uint32_t slot);
/* Whether `place` lies in one of the mappings, and at which offset in the slot. */
bool fi_slot_offset(const fi_ring *ring, uint32_t slot, const void *place, uint64_t *offset);

/* Replaces all mappings, the control area's too, as fi_shm_forget; or hides them from children, as
 * fi_shm_inherit, and those to come. `control`: bytes of the control area. */
int fi_ring_forget(fi_ring *ring, uint64_t control);
int fi_ring_inherit(fi_ring *ring, uint64_t control, bool inherited);

/* A lease begins: the slot stays mapped until it ends, whatever becomes of the ring. */
static inline void fi_slot_hold(const fi_ring *ring, uint32_t slot)
{
    fi_add_relaxed(&ring->windows[slot].holders, 1);
}
static inline bool fi_slot_is_held(const fi_ring *ring, uint32_t slot)
{
    return fi_load_acquire(&ring->windows[slot].holders) > 1;
}
/* A lease ends, or the ring's own hold; `is_shared`: another process may have views of the slot. Any
 * thread; takes no lock. True for the last holder, who calls fi_slot_free next. */
bool fi_slot_let_go(const fi_ring *ring, uint32_t slot, bool is_shared);
/* Unmaps the slot, and gives its pages back unless it is shared. */
void fi_slot_free(const fi_ring *ring, uint32_t slot);

/* The parent uses the ring no more, and its workers have ended: all memory is given back but what
 * leases hold. With `keeps_held` the slots that are leased stay mapped until fi_ring_detach, because
 * something else refers to their pages. The words about workers and slots, and the entries of leased
 * slots, can still be read. */
void fi_ring_close(fi_ring *ring, bool keeps_held);

#endif

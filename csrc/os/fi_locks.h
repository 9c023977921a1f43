/* Locks of bytes of a file, which belong to an open file description (F_OFD_SETLK).
 *
 * They exclude all other descriptions, those of this process included. The kernel takes them back when
 * the last descriptor of the description is closed, at the latest when the process ends; that
 * another descriptor of the file is closed changes nothing. A forked child inherits the descriptor,
 * and with it its parent's locks: it has to close that, and open one of its own.
 */
#ifndef FI_LOCKS_H
#define FI_LOCKS_H

#include "base/fi_base.h"

enum fi_lock { FI_UNLOCKED, FI_SHARED, FI_EXCLUSIVE };

/* Opens the file of a descriptor again: a new description, close-on-exec, for reading and writing.
 * Returns an errno: ENOSYS where the system has no such locks, ENOENT without /proc. */
int fi_lock_open(int fd, int *own);

/* Changes the lock of one byte, at once. Returns EAGAIN if another description has it, and the lock
 * is as before. */
int fi_lock_set(int own, uint64_t byte, enum fi_lock kind);

#endif

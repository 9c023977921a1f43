/* End of a worker process, whatever its threads are doing: with its parent, or in time. */
#ifndef FI_WATCH_H
#define FI_WATCH_H

#include <stdint.h>

/* Starts a thread that ends this process at once when the parent is gone: it polls the parent's
 * pidfd (or -1) and the read end of a pipe whose write end only the parent holds. The thread
 * needs no interpreter, so it works while a native call holds Python's lock. */
int fi_watch_parent(int parent_pidfd, int parent_death_pipe);

/* Asks the kernel to kill this process when the *thread* that forked it ends; only right where
 * that thread is the parent's main one. `parent` closes the race with a parent already dead. */
int fi_die_with_parent(int parent);

/* Starts a thread that ends this process with `status` after `ns` nanoseconds, unless it has
 * ended by then: exit handlers may wait for threads or locks that are never released. */
int fi_exit_within(int64_t ns, int status);

/* Ends this process with `status` once it has run for `ns` nanoseconds since the last call. A time
 * for which the process was stopped, by a debugger or a shell, counts as a quarter of a second. */
int fi_exit_unless_renewed(int64_t ns, int status);

#endif

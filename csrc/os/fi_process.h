/* The number of this process, asked of the kernel once and not again for every batch; forks; and
 * the libraries that are loaded. */
#ifndef FI_PROCESS_H
#define FI_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* The number of this process. A fork is noticed as it happens; only a child that something made
 * by a bare clone system call, past the C library, would still be taken for its parent. */
int fi_process_id(void);

/* Does what libraries do before a fork and after it, without one: false if that needs a fork here.
 * To fork a large program takes long, since its page tables are copied. */
bool fi_run_fork_handlers(void);

/* The same by a process that exits at once. */
void fi_fork_for_handlers(void);

/* Number of times that this process has loaded or unloaded a library. */
uint64_t fi_library_changes(void);

#endif

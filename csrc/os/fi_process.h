/* The number of this process, asked of the kernel once and not again for every batch; and forks. */
#ifndef FI_PROCESS_H
#define FI_PROCESS_H

/* The number of this process. A fork is noticed as it happens; only a child that something made
 * by a bare clone system call, past the C library, would still be taken for its parent. */
int fi_process_id(void);

/* Forks a process that exits at once, for what libraries do before a fork. */
void fi_run_fork_handlers(void);

#endif

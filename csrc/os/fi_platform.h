/* Everything that the operating system has to give: shared memory, doorbells, clocks.
 *
 * Linux is served by memfd, futex, eventfd and pidfd. The portable path (FI_PORTABLE, and at run
 * time where the kernel lacks a call) uses shm_open with an immediate unlink, and pipes.
 */
#ifndef FI_PLATFORM_H
#define FI_PLATFORM_H

#include "base/fi_base.h"

/* ---- shared memory ---------------------------------------------------------------------- */

/* Opens anonymous shared memory of `bytes` (sparse: no page is allocated). The descriptor is
 * close-on-exec. Where the system can promise it, the size is final: whoever else gets hold of the
 * file cannot truncate it, which would end those that touch it with SIGBUS. Returns EFBIG where
 * RLIMIT_FSIZE or the file system allows no such size. */
int fi_shm_open(uint64_t bytes, int *fd);

/* Maps [offset, offset + bytes) of it, readable and writable, left out of core dumps; shared, or
 * `private` (copy on write). */
int fi_shm_map(int fd, uint64_t offset, uint64_t bytes, bool private, void **base);
int fi_shm_unmap(void *base, uint64_t bytes);

/* Puts private empty pages in the place of the mapping, so that this process keeps the memory
 * alive no more and old pointers stay harmless. */
int fi_shm_forget(void *base, uint64_t bytes);

/* Whether children that this process forks from now on get the mapping: a grandchild of a worker
 * must not be able to write late into a slot. */
int fi_shm_inherit(void *base, uint64_t bytes, bool inherited);

/* Largest size in bytes that RLIMIT_FSIZE leaves for one of `parts` equal parts of a file. */
uint64_t fi_shm_limit(uint64_t parts);

/* Allocates the pages of [offset, offset + bytes). Checks free memory and the control group's
 * limit first, because fallocate on a memfd past free memory does not fail: it invokes the
 * out-of-memory killer. FI_E_MEMORY: refused by that check, with need and have in the results.
 * ENOSPC: vm.overcommit_memory=2, or /dev/shm is full, for memory that is not a memfd. */
int fi_shm_commit(int fd, uint64_t offset, uint64_t bytes, uint64_t *need, uint64_t *have);
int fi_shm_allocate(int fd, uint64_t offset, uint64_t bytes); /* without the check: a few pages */

/* Gives the pages of [offset, offset + bytes) back, which read as zeros afterwards. Best effort: does
 * nothing where the system cannot. */
void fi_shm_decommit(int fd, uint64_t offset, uint64_t bytes);

/* The same of a shared mapping's pages: it needs no descriptor. */
void fi_shm_remove(void *base, uint64_t bytes);

/* A number that tells a file from others; 0 if `fd` is closed. */
uint64_t fi_shm_file(int fd);
/* Bytes of the file that have pages; 0 if the system does not tell. */
uint64_t fi_shm_allocated(int fd);

/* Bytes that may still be allocated: the smaller of the machine's MemAvailable and what every
 * memory control group above this process leaves, less a reserve of 5 %, of 256 MiB to 2 GiB.
 * UINT64_MAX when unknown. */
uint64_t fi_memory_available(void);

/* Bytes of memory that the machine, or the tightest control group above this process, has in all;
 * UINT64_MAX when unknown. */
uint64_t fi_memory_total(void);

/* Bytes of the largest cache of this machine's first processor; 32 MiB if the system does not tell.
 * Looked up once for each process. */
uint64_t fi_processor_cache_bytes(void);

/* ---- doorbells ------------------------------------------------------------------------- */

/* A worker's bell is a word in shared memory: 1 = this worker sleeps or is about to. Its owner
 * waits on the word itself (pipe < 0, a futex) or on the read end of a pipe of its own, for `ns`
 * nanoseconds at most, less than a month. */
#define FI_FOR_EVER INT64_MAX
void fi_bell_sleep(_Atomic uint32_t *bell, int pipe, int64_t ns);
/* The sleeper found work after all. Takes back the bell and eats the byte of a parent that had
 * rung it meanwhile, so that bytes and rings keep matching. */
void fi_bell_cancel(_Atomic uint32_t *bell, int pipe);
/* True where a bell needs a pipe, for want of a futex that works between processes. */
bool fi_bells_need_pipes(void);

/* The pipe of a worker's bell. A program that closes descriptors may get their numbers for files of
 * its own: `file` tells the pipe from these, which are neither written, read nor closed. */
typedef struct fi_bell_pipe {
    int reader, writer; /* -1: closed */
    uint64_t file;
} fi_bell_pipe;
int fi_bell_pipe_open(fi_bell_pipe *pipe);
void fi_bell_pipe_drain(const fi_bell_pipe *pipe);
void fi_bell_pipe_close(fi_bell_pipe *pipe);

/* Rings the bell if its owner sleeps; returns true if it did. `pipe`: NULL for a futex. */
bool fi_bell_ring(_Atomic uint32_t *bell, const fi_bell_pipe *pipe);
/* Wakes the owner even if the bell does not say that it sleeps: for a bell that may be corrupt. At
 * worst one later sleep ends at once. */
void fi_bell_force(_Atomic uint32_t *bell, const fi_bell_pipe *pipe);

int fi_pipe_open(int ends[2]); /* neither end blocks, and no program that is executed has them */
/* The parent's bell: an eventfd (both ends the same descriptor) or a pipe. Never blocks. */
int fi_event_open(int ends[2]);
void fi_event_ring(int write_end);
void fi_event_drain(int read_end);

/* ---- waiting ---------------------------------------------------------------------------- */

/* Waits until one of `count` descriptors is readable or closed; sets ready[i] to 0 or 1. A
 * negative timeout waits for ever. Returns EINTR when a signal came. */
int fi_wait(const int *descriptors, uint32_t count, int64_t timeout_ns, uint8_t *ready);

int64_t fi_now_ns(void);
/* Some milliseconds coarse, but cheap enough to be read for every row. */
int64_t fi_coarse_ns(void);
/* CPU time of this process, all its threads; and how long the calling thread stood in line for a
 * CPU, 0 where the system does not tell. Some system calls, without `delay_ns` one. */
void fi_cpu_times(int64_t *cpu_ns, int64_t *delay_ns);

/* Gives free memory of the heap back to the system, where the C library can. Takes about a
 * millisecond for each 20 MB. */
void fi_heap_trim(void);
/* From now on the heap keeps what is freed at its end, up to 62 MiB, for the next example, where the
 * program has not set other limits. A page that goes back and comes again costs up to 2 us. */
void fi_heap_keep(void);

#endif

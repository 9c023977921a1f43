#define _GNU_SOURCE
#include "os/fi_platform.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef FI_PORTABLE
#define FI_LINUX 1
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#ifndef MFD_NOEXEC_SEAL /* Linux 6.3 */
#define MFD_NOEXEC_SEAL 8u
#endif
#endif

/* ---- shared memory ---------------------------------------------------------------------- */

/* 0 to 2 are the standard streams, even where the program has closed them: what the program prints
 * must not land in shared memory or ring a bell. Returns the descriptor to use, or -1 and errno. */
static int above_stdio(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int reason = errno;
    close(fd);
    errno = reason;
    return moved;
}

static int open_named_and_unlink(int *fd)
{
    static atomic_uint serial;
    char name[64];
    for (int attempt = 0; attempt < 1000; attempt++) {
        unsigned number = fi_add_relaxed(&serial, 1);
        snprintf(name, sizeof name, "/fastiter-%ld-%x-%llx", (long)getpid(), number,
                 (unsigned long long)fi_now_ns());
        *fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (*fd >= 0) {
            shm_unlink(name);
            *fd = above_stdio(*fd);
            return *fd >= 0 ? FI_OK : errno;
        }
        if (errno != EEXIST)
            return errno;
    }
    return EEXIST;
}

#ifdef FI_LINUX
/* An errno by which a kernel without the call, or a sandbox that filters it, says no. */
static bool is_missing(int error)
{
    return error == ENOSYS || error == EPERM || error == EACCES || error == EINVAL;
}

static int open_memfd(void)
{
    /* Some systems insist on memory that can never be executed, older ones do not know the flag. */
    int fd = memfd_create("fastiter", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("fastiter", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return above_stdio(fd);
}
#endif

int fi_shm_open(uint64_t bytes, int *fd)
{
    *fd = -1;
    if (bytes > (uint64_t)INT64_MAX)
        return EFBIG;
#ifdef FI_LINUX
    *fd = open_memfd();
    if (*fd < 0 && !is_missing(errno))
        return errno;
#endif
    if (*fd < 0) {
        int rc = open_named_and_unlink(fd);
        if (rc != FI_OK)
            return rc;
    }
    int rc;
    do
        rc = ftruncate(*fd, (off_t)bytes) == 0 ? FI_OK : errno;
    while (rc == EINTR);
    if (rc != FI_OK) {
        close(*fd);
        *fd = -1;
    }
#ifdef FI_LINUX
    else /* what shm_open gives takes no seals */
        (void)fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
#endif
    return rc;
}

uint64_t fi_shm_file(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 ? (uint64_t)status.st_ino * 0x9E3779B97F4A7C15u ^ (uint64_t)status.st_dev : 0;
}

uint64_t fi_shm_allocated(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 ? (uint64_t)status.st_blocks * 512 : 0;
}

int fi_shm_map(int fd, uint64_t offset, uint64_t bytes, bool private, void **base)
{
    int flags = MAP_NORESERVE | (private ? MAP_PRIVATE : MAP_SHARED);
    void *address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
    if (address == MAP_FAILED)
        return errno;
    (void)madvise(address, bytes, MADV_DONTDUMP);
    if (!private)
        (void)madvise(address, bytes, MADV_HUGEPAGE); /* heeded only where shmem_enabled=advise */
    *base = address;
    return FI_OK;
}

int fi_shm_unmap(void *base, uint64_t bytes)
{
    return munmap(base, bytes) == 0 ? FI_OK : errno;
}

int fi_shm_forget(void *base, uint64_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(base, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == base ? FI_OK : errno;
}

int fi_shm_inherit(void *base, uint64_t bytes, bool inherited)
{
    return madvise(base, bytes, inherited ? MADV_DOFORK : MADV_DONTFORK) == 0 ? FI_OK : errno;
}

uint64_t fi_shm_limit(uint64_t parts)
{
    uint64_t most = (uint64_t)1 << 40;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        most = fi_min_u64(most, (uint64_t)limit.rlim_cur / parts);
    return most;
}

/* First unsigned number after `key` in a small file of /proc or /sys; false if there is none. */
static bool read_number(const char *path, const char *key, uint64_t *value)
{
    char text[4096]; /* what is looked for stands in the first lines */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return false;
    text[length] = 0;
    char *from = strstr(text, key);
    if (!from)
        return false;
    from += strlen(key);
    from += strspn(from, " \t");
    char *end;
    errno = 0;
    unsigned long long number = strtoull(from, &end, 10);
    if (end == from || errno)
        return false; /* "max": no limit */
    *value = number;
    return true;
}

/* Bytes of cached files in a control group; shared memory is not among them. */
static uint64_t file_cache(const char *stat_path, const char *prefix)
{
    static const char *const lists[] = {"inactive_file ", "active_file "};
    uint64_t sum = 0, bytes;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char key[64];
        snprintf(key, sizeof key, "\n%s%s", prefix, lists[i]);
        if (read_number(stat_path, key, &bytes))
            sum += bytes;
    }
    return sum;
}

/* The limit of one group: of version 2 of control groups, or of the memory hierarchy of version 1. */
static void lower_to_group(const char *group, bool second, uint64_t *total, uint64_t *available)
{
    const char *root = second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    char path[PATH_MAX + 128];
    uint64_t limit, usage;
    snprintf(path, sizeof path, "%s%s/%s", root, group,
             second ? "memory.max" : "memory.limit_in_bytes");
    if (!read_number(path, "", &limit))
        return;
    snprintf(path, sizeof path, "%s%s/%s", root, group,
             second ? "memory.current" : "memory.usage_in_bytes");
    if (!read_number(path, "", &usage))
        return;
    /* The usage counts cached file pages, which the kernel gives up before it fails. */
    snprintf(path, sizeof path, "%s%s/memory.stat", root, group);
    usage -= fi_min_u64(usage, file_cache(path, second ? "" : "total_"));
    *total = fi_min_u64(*total, limit);
    *available = fi_min_u64(*available, limit > usage ? limit - usage : 0);
}

/* Lowers both numbers to what the memory control groups of this process and their ancestors
 * allow: version 2 ("0::/a/b") and the memory hierarchy of version 1 ("7:memory:/a/b"). */
static void lower_to_control_groups(uint64_t *total, uint64_t *available)
{
    char line[PATH_MAX + 64];
    FILE *groups = fopen("/proc/self/cgroup", "re");
    if (!groups)
        return;
    while (fgets(line, sizeof line, groups)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        bool second = controllers[1] == 0;
        if (!second && !strstr(controllers, "memory"))
            continue;
        for (char *slash; (slash = strrchr(group, '/')) != NULL && slash[1] != 0; *slash = 0)
            lower_to_group(group, second, total, available);
        lower_to_group("", second, total, available);
    }
    fclose(groups);
}

/* All memory, and the part that is available, within the limits of machine and control groups. */
static bool read_memory(uint64_t *total, uint64_t *available)
{
    if (!read_number("/proc/meminfo", "MemTotal:", total) ||
        !read_number("/proc/meminfo", "MemAvailable:", available))
        return false;
    *total *= 1024;
    *available *= 1024;
    lower_to_control_groups(total, available);
    return true;
}

uint64_t fi_memory_total(void)
{
    uint64_t total = 0, available = 0;
    return read_memory(&total, &available) ? total : UINT64_MAX;
}

uint64_t fi_memory_available(void)
{
    uint64_t total = 0, available = 0;
    if (!read_memory(&total, &available))
        return UINT64_MAX;
    /* A reserve stays free: 5 %, or 256 MiB where that is more, but never over a quarter; on large
     * machines 2 GiB, for what others allocate in one moment does not grow with the machine. */
    uint64_t reserve = fi_max_u64(fi_min_u64(total / 20, (uint64_t)2 << 30),
                                  fi_min_u64((uint64_t)256 << 20, total / 4));
    return available > reserve ? available - reserve : 0;
}

#define UNKNOWN_CACHE ((uint64_t)32 << 20)

/* The C library derives its figure from the processor's own description, which counts all caches of
 * a socket, whatever part of it a virtual machine has. The kernel's is that of one cache. */
static uint64_t largest_cache(void)
{
    uint64_t largest = 0;
    for (int index = 0; index < 10; index++) {
        char path[80];
        uint64_t kib;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        if (!read_number(path, "", &kib))
            break;
        if (kib <= (uint64_t)1 << 30)
            largest = fi_max_u64(largest, kib << 10);
    }
    return largest != 0 ? largest : UNKNOWN_CACHE;
}

uint64_t fi_processor_cache_bytes(void)
{
    static _Atomic uint64_t known;
    uint64_t bytes = fi_load_relaxed(&known); /* all find the same */
    if (bytes == 0) {
        bytes = largest_cache();
        fi_store_relaxed(&known, bytes);
    }
    return bytes;
}

int fi_shm_commit(int fd, uint64_t offset, uint64_t bytes, uint64_t *need, uint64_t *have)
{
    *need = bytes;
    *have = fi_memory_available();
    return bytes > *have ? FI_E_MEMORY : fi_shm_allocate(fd, offset, bytes);
}

int fi_shm_allocate(int fd, uint64_t offset, uint64_t bytes)
{
    /* In pieces, since a signal may make fallocate undo all that this call has allocated so far.
     * Smaller ones after each signal, until they end between two signals of the program's timers. */
    uint64_t piece = (uint64_t)16 << 20;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t part = fi_min_u64(piece, bytes - done);
#ifdef FI_LINUX
        int rc = fallocate(fd, 0, (off_t)(offset + done), (off_t)part) == 0 ? FI_OK : errno;
#else
        int rc = posix_fallocate(fd, (off_t)(offset + done), (off_t)part);
#endif
        if (rc == EINTR) {
            piece = fi_max_u64(piece / 8, FI_PAGE);
            continue;
        }
        if (rc != FI_OK)
            return rc;
        done += part;
    }
    return FI_OK;
}

void fi_shm_decommit(int fd, uint64_t offset, uint64_t bytes)
{
#ifdef FALLOC_FL_PUNCH_HOLE
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
#else
    (void)fd;
    (void)offset;
    (void)bytes;
#endif
}

void fi_shm_remove(void *base, uint64_t bytes)
{
    (void)madvise(base, bytes, MADV_REMOVE);
}

/* ---- doorbells ------------------------------------------------------------------------- */

static void read_one_byte(int pipe)
{
    char byte;
    while (read(pipe, &byte, 1) < 0 && (errno == EINTR || errno == EAGAIN)) {
        if (errno == EAGAIN) {
            struct pollfd entry = {.fd = pipe, .events = POLLIN};
            (void)poll(&entry, 1, -1);
        }
    }
}

void fi_bell_sleep(_Atomic uint32_t *bell, int pipe, int64_t ns)
{
    if (pipe >= 0) {
        struct pollfd entry = {.fd = pipe, .events = POLLIN};
        if (poll(&entry, 1, ns < FI_FOR_EVER ? (int)(ns / 1000000) + 1 : -1) != 1) {
            fi_bell_cancel(bell, pipe);
            return;
        }
        read_one_byte(pipe);
    }
#ifdef FI_LINUX
    /* Not FUTEX_PRIVATE: the ringer is another process. Any return is a reason to look again. */
    else if (fi_load_relaxed(bell) == 1) {
        struct timespec most = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
        (void)syscall(SYS_futex, bell, FUTEX_WAIT, 1, ns < FI_FOR_EVER ? &most : NULL, NULL, 0);
    }
#endif
    fi_store_relaxed(bell, 0);
}

void fi_bell_cancel(_Atomic uint32_t *bell, int pipe)
{
    if (atomic_exchange_explicit(bell, 0, memory_order_acq_rel) == 0 && pipe >= 0)
        read_one_byte(pipe);
}

static bool is_end(const fi_bell_pipe *pipe, int descriptor)
{
    return descriptor >= 0 && fi_shm_file(descriptor) == pipe->file;
}

static void wake_sleeper(_Atomic uint32_t *bell, const fi_bell_pipe *pipe)
{
    if (pipe) {
        while (is_end(pipe, pipe->writer) && write(pipe->writer, "", 1) < 0 && errno == EINTR) {
        }
        return;
    }
#ifdef FI_LINUX
    (void)syscall(SYS_futex, bell, FUTEX_WAKE, 1, NULL, NULL, 0);
#else
    (void)bell;
#endif
}

bool fi_bell_ring(_Atomic uint32_t *bell, const fi_bell_pipe *pipe)
{
    uint32_t asleep = 1;
    if (fi_load_relaxed(bell) != 1 ||
        !atomic_compare_exchange_strong_explicit(bell, &asleep, 0, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return false;
    wake_sleeper(bell, pipe);
    return true;
}

void fi_bell_force(_Atomic uint32_t *bell, const fi_bell_pipe *pipe)
{
    (void)atomic_exchange_explicit(bell, 0, memory_order_acq_rel);
    wake_sleeper(bell, pipe);
}

bool fi_bells_need_pipes(void)
{
#ifdef FI_LINUX
    return false;
#else
    return true;
#endif
}

int fi_pipe_open(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return errno;
    ends[0] = above_stdio(ends[0]);
    ends[1] = above_stdio(ends[1]);
    if (ends[0] < 0 || ends[1] < 0) {
        int rc = errno;
        for (int end = 0; end < 2; end++) {
            if (ends[end] >= 0)
                close(ends[end]);
            ends[end] = -1;
        }
        return rc;
    }
    return FI_OK;
}

int fi_bell_pipe_open(fi_bell_pipe *pipe)
{
    int ends[2] = {-1, -1};
    int rc = fi_pipe_open(ends);
    *pipe = (fi_bell_pipe){ends[0], ends[1], rc == FI_OK ? fi_shm_file(ends[0]) : 0};
    return rc;
}

void fi_bell_pipe_drain(const fi_bell_pipe *pipe)
{
    if (is_end(pipe, pipe->reader))
        fi_event_drain(pipe->reader);
}

void fi_bell_pipe_close(fi_bell_pipe *pipe)
{
    const int ends[2] = {pipe->reader, pipe->writer};
    pipe->reader = pipe->writer = -1;
    for (int end = 0; end < 2; end++)
        if (is_end(pipe, ends[end]))
            close(ends[end]);
}

int fi_event_open(int ends[2])
{
#ifdef FI_LINUX
    ends[0] = ends[1] = above_stdio(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (ends[0] >= 0)
        return FI_OK;
    if (!is_missing(errno))
        return errno;
#endif
    return fi_pipe_open(ends);
}

void fi_event_ring(int write_end)
{
    const uint64_t one = 1; /* a full pipe, or counter, counts as rung */
    while (write(write_end, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void fi_event_drain(int read_end)
{
    char bytes[4096];
    ssize_t count;
    do
        count = read(read_end, bytes, sizeof bytes);
    while (count == (ssize_t)sizeof bytes || (count < 0 && errno == EINTR));
}

/* ---- waiting ---------------------------------------------------------------------------- */

int fi_wait(const int *descriptors, uint32_t count, int64_t timeout_ns, uint8_t *ready)
{
    enum { AT_ONCE = 64 };
    struct pollfd few[AT_ONCE];
    struct pollfd *entries = count <= AT_ONCE ? few : calloc(count, sizeof *entries);
    if (!entries)
        return ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        entries[i] = (struct pollfd){.fd = descriptors[i], .events = POLLIN};
    int64_t ms = timeout_ns < 0 ? -1 : (timeout_ns + 999999) / 1000000;
    int got = poll(entries, count, ms > INT_MAX ? INT_MAX : (int)ms);
    int rc = got < 0 ? errno : FI_OK;
    for (uint32_t i = 0; i < count; i++) {
        ready[i] = got > 0 && entries[i].revents != 0;
        if (ready[i] && (entries[i].revents & POLLNVAL))
            rc = EBADF;
    }
    if (entries != few)
        free(entries);
    return rc;
}

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t fi_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t fi_coarse_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

void fi_cpu_times(int64_t *cpu_ns, int64_t *delay_ns)
{
    char text[80] = "";
    long long ran, waited;
    *cpu_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    if (delay_ns == NULL)
        return;
    *delay_ns = 0;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, text, sizeof text - 1) > 0 && sscanf(text, "%lld %lld", &ran, &waited) == 2)
        *delay_ns = waited;
    close(fd);
}

void fi_heap_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

void fi_heap_keep(void)
{
    /* glibc takes the size of a mapped block that is freed for its limit of blocks in the heap, up to
     * 32 MiB, and twice that for what the heap keeps. No page of the block is touched. */
    void *volatile block = malloc(31u << 20);
    free(block);
}

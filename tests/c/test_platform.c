/* fi_platform: shared memory and its limits, bells, waits. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include "check.h"
#include "os/fi_platform.h"
#include "processes.h"

#define MIB (UINT64_C(1) << 20)

/* ---- shared memory ------------------------------------------------------------------------- */

static uint64_t allocated(int fd)
{
    struct stat status;
    CHECK_EQ(fstat(fd, &status), 0);
    return (uint64_t)status.st_blocks * 512;
}

static void check_no_name_left(void)
{
    char prefix[64];
    struct dirent *entry;
    DIR *directory = opendir("/dev/shm");
    if (!directory)
        return; /* then shm_open makes its names elsewhere, as on macOS */
    snprintf(prefix, sizeof prefix, "fastiter-%ld-", (long)getpid());
    while ((entry = readdir(directory)))
        CHECK(strncmp(entry->d_name, prefix, strlen(prefix)) != 0);
    closedir(directory);
}

static void test_memory_is_sparse_and_nameless(void)
{
    int fd;
    struct stat status;
    CHECK_EQ(fi_shm_open(1024 * MIB, &fd), FI_OK);
    CHECK_EQ(fstat(fd, &status), 0);
    CHECK_EQ(status.st_size, 1024 * MIB);
    CHECK_EQ(allocated(fd), 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    check_no_name_left();
    close(fd);
    CHECK_EQ(fi_shm_open((uint64_t)INT64_MAX + 1, &fd), EFBIG);
    CHECK_EQ(fd, -1);
}

static void *shared_base;

static void write_shared(void)
{
    *(volatile char *)shared_base = 42;
}

/* The kernel looks for us, so that no signal is needed to see that the page is not there. */
static void expect_unmapped(void)
{
    int ends[2];
    CHECK_EQ(fi_pipe_open(ends), FI_OK);
    CHECK(write(ends[1], shared_base, 1) == -1 && errno == EFAULT);
}

/* Whoever else has the file cannot take pages away under those that use them. */
static void test_size_is_final(void)
{
#if defined(__linux__) && !defined(FI_PORTABLE)
    int fd;
    CHECK_EQ(fi_shm_open(MIB, &fd), FI_OK);
    CHECK(ftruncate(fd, 0) < 0 && errno == EPERM);
    CHECK(ftruncate(fd, 2 * MIB) < 0 && errno == EPERM);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    CHECK(truncate(path, 0) < 0 && errno == EPERM);
    CHECK(open(path, O_RDWR | O_TRUNC) < 0 && errno == EPERM);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM); /* nor anything else */
    close(fd);
#endif
}

static void test_mapping_is_shared_until_told_otherwise(void)
{
    int fd;
    CHECK_EQ(fi_shm_open(MIB, &fd), FI_OK);
    CHECK_EQ(fi_shm_map(fd, 0, MIB, false, &shared_base), FI_OK);
    CHECK_EQ(in_child(write_shared), 0);
    CHECK_EQ(*(volatile char *)shared_base, 42);
#ifdef __linux__
    CHECK_EQ(fi_shm_inherit(shared_base, MIB, false), FI_OK);
    CHECK_EQ(in_child(expect_unmapped), 0);
    CHECK_EQ(*(volatile char *)shared_base, 42);
    *(volatile char *)shared_base = 0;
    CHECK_EQ(fi_shm_inherit(shared_base, MIB, true), FI_OK);
    CHECK_EQ(in_child(write_shared), 0);
    CHECK_EQ(*(volatile char *)shared_base, 42);
#endif
    CHECK_EQ(fi_shm_unmap(shared_base, MIB), FI_OK);
    expect_unmapped();
    close(fd);
    CHECK(fi_shm_map(-1, 0, MIB, false, &shared_base) > 0);
}

static void test_commit(void)
{
    int fd;
    uint64_t need = 0, have = 0;
    CHECK_EQ(fi_shm_open(UINT64_C(1) << 43, &fd), FI_OK);
    CHECK_EQ(fi_shm_commit(fd, 3 * FI_PAGE, 40 * MIB, &need, &have), FI_OK);
    CHECK_EQ(need, 40 * MIB);
    CHECK(allocated(fd) >= 40 * MIB && allocated(fd) < 48 * MIB);
    /* Refused before anything is allocated; both numbers are for the message. */
    CHECK_EQ(fi_shm_commit(fd, 64 * MIB, UINT64_C(1) << 42, &need, &have), FI_E_MEMORY);
    CHECK(need == UINT64_C(1) << 42 && have < need);
    CHECK(allocated(fd) < 48 * MIB);
    close(fd);
    CHECK(fi_shm_commit(fd, 0, FI_PAGE, &need, &have) > 0);
}

#if defined(__linux__) && !defined(FI_PORTABLE)
/* The system's fallocate, or one of a kernel that is interrupted after `longest` bytes and undoes
 * what it has done. */
static uint64_t longest = UINT64_MAX;
static uint32_t interrupted;

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (mode == 0 && (uint64_t)bytes > longest) {
        CHECK(++interrupted < 1000);
        errno = EINTR;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}
#endif

/* A timer of the program interrupts each piece that takes longer than its period. */
static void test_commit_in_a_storm_of_signals(void)
{
#if defined(__linux__) && !defined(FI_PORTABLE)
    int fd;
    uint64_t need = 0, have = 0;
    CHECK_EQ(fi_shm_open(64 * MIB, &fd), FI_OK);
    for (longest = 4 * MIB; longest >= FI_PAGE; longest /= 2) {
        fi_shm_decommit(fd, 0, 64 * MIB);
        CHECK_EQ(allocated(fd), 0);
        interrupted = 0;
        CHECK_EQ(fi_shm_commit(fd, FI_PAGE, 20 * MIB, &need, &have), FI_OK);
        CHECK(allocated(fd) >= 20 * MIB && interrupted > 0);
    }
    longest = UINT64_MAX;
    close(fd);
#endif
}

static void test_memory_available(void)
{
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t available = fi_memory_available();
#ifdef __linux__
    CHECK(available > 0 && available <= total - total / 20);
#else
    CHECK(available == UINT64_MAX || available <= total);
#endif
}

static void limit_file_size(void)
{
    const struct rlimit limit = {8 * MIB, 8 * MIB};
    int fd;
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR); /* as Python does */
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(fi_shm_limit(4), 2 * MIB);
    CHECK_EQ(fi_shm_open(16 * MIB, &fd), EFBIG);
    CHECK_EQ(fi_shm_open(8 * MIB, &fd), FI_OK);
}

static void test_limits(void)
{
    CHECK(fi_shm_limit(1) <= UINT64_C(1) << 40);
    CHECK_EQ(in_child(limit_file_size), 0);
}

/* ---- bells --------------------------------------------------------------------------------- */

enum { SLEEPS = 3000 };

struct sleeper {
    _Atomic uint32_t bell;
    int reader; /* -1: a futex */
    bool cancels;
    atomic_uint woken;
};

static void *sleep_and_wake(void *argument)
{
    struct sleeper *s = argument;
    for (uint32_t i = 0; i < SLEEPS; i++) {
        atomic_store(&s->bell, 1);
        if (s->cancels && i % 3 == 0)
            fi_bell_cancel(&s->bell, s->reader);
        else
            fi_bell_sleep(&s->bell, s->reader, s->cancels && i % 3 == 1 ? 1000 : FI_FOR_EVER);
        CHECK_EQ(atomic_load(&s->bell), 0);
        atomic_fetch_add(&s->woken, 1);
    }
    return NULL;
}

/* A file that has got the numbers of the pipe's ends gets no byte, loses none, and stays open. */
static void check_foreign(_Atomic uint32_t *bell, const fi_bell_pipe *pipe)
{
    int own[2];
    char bytes[3];
    fi_bell_pipe stale = *pipe;
    CHECK_EQ(fi_pipe_open(own), FI_OK);
    CHECK_EQ(write(own[1], "own", 3), 3);
    stale.reader = own[0];
    stale.writer = own[1];
    atomic_store(bell, 1);
    CHECK(fi_bell_ring(bell, &stale));
    fi_bell_force(bell, &stale);
    fi_bell_pipe_drain(&stale);
    fi_bell_pipe_close(&stale);
    CHECK_EQ(read(own[0], bytes, sizeof bytes), 3);
    CHECK(!is_readable(own[0], 0));
    close(own[0]);
    close(own[1]);
}

/* Each sleep is ended by a ring, and at the end no byte of a ring is left. */
static void check_bell(bool pipe, bool cancels)
{
    fi_bell_pipe ends;
    fi_bell_pipe *bell_pipe = pipe ? &ends : NULL;
    struct sleeper s = {.reader = -1, .cancels = cancels};
    pthread_t thread;
    uint32_t rings = 0;
    if (pipe) {
        CHECK_EQ(fi_bell_pipe_open(&ends), FI_OK);
        s.reader = ends.reader;
    }
    CHECK(!fi_bell_ring(&s.bell, bell_pipe)); /* awake */
    CHECK_EQ(pthread_create(&thread, NULL, sleep_and_wake, &s), 0);
    while (atomic_load(&s.woken) < SLEEPS)
        rings += fi_bell_ring(&s.bell, bell_pipe);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(rings <= SLEEPS && rings > 0);
    if (!pipe)
        return;
    CHECK(!is_readable(ends.reader, 0));
    CHECK(cancels || rings == SLEEPS);
    /* A corrupt bell: its owner sleeps although the word says that it does not. */
    atomic_store(&s.bell, 7);
    CHECK(!fi_bell_ring(&s.bell, bell_pipe));
    fi_bell_force(&s.bell, bell_pipe);
    fi_bell_sleep(&s.bell, ends.reader, FI_FOR_EVER);
    CHECK_EQ(atomic_load(&s.bell), 0);
    check_foreign(&s.bell, &ends);
    fi_bell_pipe_close(&ends);
}

static void test_bells(void)
{
    check_bell(true, false);
    check_bell(true, true);
    if (!fi_bells_need_pipes()) {
        check_bell(false, false);
        check_bell(false, true);
    }
}

struct forced {
    _Atomic uint32_t bell;
    int reader; /* -1: a futex */
    atomic_bool awake;
};

static void *sleep_once(void *argument)
{
    struct forced *f = argument;
    fi_bell_sleep(&f->bell, f->reader, FI_FOR_EVER);
    atomic_store(&f->awake, true);
    return NULL;
}

/* fi_bell_force wakes whoever sleeps, before or after he has fallen asleep. */
static void test_force(void)
{
    for (int pipe = fi_bells_need_pipes(); pipe < 2; pipe++) {
        fi_bell_pipe ends;
        struct forced f = {.bell = 1, .reader = -1};
        pthread_t thread;
        if (pipe) {
            CHECK_EQ(fi_bell_pipe_open(&ends), FI_OK);
            f.reader = ends.reader;
        }
        CHECK_EQ(pthread_create(&thread, NULL, sleep_once, &f), 0);
        fi_bell_force(&f.bell, pipe ? &ends : NULL);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK(atomic_load(&f.awake));
        if (pipe)
            fi_bell_pipe_close(&ends);
    }
}

static void test_event(void)
{
    int ends[2];
    CHECK_EQ(fi_event_open(ends), FI_OK);
    CHECK(fcntl(ends[0], F_GETFD) & FD_CLOEXEC && fcntl(ends[1], F_GETFD) & FD_CLOEXEC);
    CHECK(!is_readable(ends[0], 0));
    fi_event_drain(ends[0]); /* does not block */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 20000; i++)
            fi_event_ring(ends[1]); /* nor does this, when it is full */
        CHECK(is_readable(ends[0], LONG_ENOUGH));
        fi_event_drain(ends[0]);
        CHECK(!is_readable(ends[0], 0));
    }
    close(ends[0]);
    if (ends[1] != ends[0])
        close(ends[1]);
}

/* ---- waiting ------------------------------------------------------------------------------- */

static volatile sig_atomic_t alarms;

static void count_alarm(int number)
{
    (void)number;
    alarms = alarms + 1;
}

static void test_wait(void)
{
    enum { MANY = 100 }; /* more than fit the stack's array */
    int ends[MANY][2], descriptors[MANY];
    uint8_t ready[MANY];
    for (int i = 0; i < MANY; i++) {
        CHECK_EQ(fi_pipe_open(ends[i]), FI_OK);
        descriptors[i] = ends[i][0];
    }
    int64_t before = fi_now_ns();
    CHECK_EQ(fi_wait(descriptors, MANY, 3000000, ready), FI_OK);
    CHECK(fi_now_ns() - before >= 3000000);
    for (int i = 0; i < MANY; i++)
        CHECK_EQ(ready[i], 0);
    CHECK_EQ(write(ends[3][1], "x", 1), 1);
    close(ends[77][1]); /* the end of a file is an event, too */
    CHECK_EQ(fi_wait(descriptors, MANY, -1, ready), FI_OK);
    for (int i = 0; i < MANY; i++)
        CHECK_EQ(ready[i], i == 3 || i == 77);
    for (int i = 0; i < MANY; i++) {
        close(ends[i][0]);
        if (i != 77)
            close(ends[i][1]);
    }

    const struct sigaction action = {.sa_handler = count_alarm};
    const struct timeval period = {.tv_usec = 20000};
    const struct itimerval soon = {.it_value = period, .it_interval = period};
    const struct itimerval never = {.it_value = {0}};
    int silent[2];
    CHECK_EQ(fi_pipe_open(silent), FI_OK);
    CHECK_EQ(sigaction(SIGALRM, &action, NULL), 0);
    CHECK_EQ(setitimer(ITIMER_REAL, &soon, NULL), 0);
    CHECK_EQ(fi_wait(silent, 1, LONG_ENOUGH, ready), EINTR);
    CHECK_EQ(ready[0], 0);
    CHECK_EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
    CHECK(alarms > 0);
    close(silent[0]);
    close(silent[1]);
}

static void test_clocks(void)
{
    int64_t before = fi_now_ns(), coarse = fi_coarse_ns();
    CHECK(before > 0 && coarse > 0 && coarse - before < 1000000000);
    CHECK(fi_now_ns() >= before && fi_coarse_ns() >= coarse);
}

int main(void)
{
    test_memory_is_sparse_and_nameless();
    test_size_is_final();
    test_mapping_is_shared_until_told_otherwise();
    test_commit();
    test_commit_in_a_storm_of_signals();
    test_memory_available();
    test_limits();
    test_bells();
    test_force();
    test_event();
    test_wait();
    test_clocks();
    return 0;
}

#define _GNU_SOURCE
#include "os/fi_watch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/fi_base.h"
#include "os/fi_thread.h"

static void *watch_parent(void *argument)
{
    struct pollfd entries[2];
    memcpy(entries, argument, sizeof entries);
    free(argument);
    prctl(PR_SET_NAME, "fastiter-watch"); /* the program knows it by this name */
    for (;;) {
        int got = poll(entries, 2, -1);
        if (got > 0 && (entries[0].revents | entries[1].revents))
            _exit(EXIT_FAILURE); /* ends every thread, whatever it is doing */
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return NULL;
    }
}

int fi_watch_parent(int parent_pidfd, int parent_death_pipe)
{
    /* poll ignores a negative descriptor. */
    struct pollfd entries[2] = {{.fd = parent_pidfd, .events = POLLIN},
                                {.fd = parent_death_pipe, .events = POLLIN}};
    return fi_thread_start(watch_parent, entries, sizeof entries);
}

int fi_die_with_parent(int parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return errno;
    if (getppid() != (pid_t)parent)
        _exit(EXIT_FAILURE);
    return FI_OK;
}

struct deadline {
    struct timespec rest;
    int status;
};

static void *wait_for_deadline(void *argument)
{
    struct deadline deadline = *(struct deadline *)argument;
    free(argument);
    while (nanosleep(&deadline.rest, &deadline.rest) != 0 && errno == EINTR) {
    }
    _exit(deadline.status);
}

int fi_exit_within(int64_t ns, int status)
{
    struct deadline deadline = {.status = status};
    deadline.rest.tv_sec = (time_t)(ns / 1000000000);
    deadline.rest.tv_nsec = (long)(ns % 1000000000);
    return fi_thread_start(wait_for_deadline, &deadline, sizeof deadline);
}

#define TICK_NS 250000000

static _Atomic int64_t ticks_left;
static atomic_flag is_counting = ATOMIC_FLAG_INIT;

static void *count_ticks(void *argument)
{
    int status = *(int *)argument;
    free(argument);
    do {
        struct timespec tick = {.tv_nsec = TICK_NS};
        nanosleep(&tick, NULL);
    } while (atomic_fetch_sub(&ticks_left, 1) > 1);
    _exit(status);
}

int fi_exit_unless_renewed(int64_t ns, int status)
{
    atomic_store(&ticks_left, ns / TICK_NS);
    if (atomic_flag_test_and_set(&is_counting))
        return FI_OK;
    int error = fi_thread_start(count_ticks, &status, sizeof status);
    if (error != FI_OK)
        atomic_flag_clear(&is_counting);
    return error;
}

/* Common parts of tests of processes: a child to run something in, its death, and a look at a descriptor. */
#ifndef FASTITER_TESTS_PROCESSES_H
#define FASTITER_TESTS_PROCESSES_H

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "os/fi_platform.h"

#define LONG_ENOUGH (30 * INT64_C(1000000000)) /* only a failure waits so long */

static inline bool is_readable(int descriptor, int64_t timeout_ns)
{
    uint8_t ready;
    CHECK_EQ(fi_wait(&descriptor, 1, timeout_ns, &ready), FI_OK);
    return ready;
}

/* Runs `body` in a child and returns its wait status. */
static inline int in_child(void (*body)(void))
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        body();
        _exit(EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

/* SIGKILL from the kernel at an instant that has nothing to do with what this process does. */
static inline void kill_me_after(uint64_t microseconds)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(microseconds / 1000000),
                                           .tv_nsec = (long)(microseconds % 1000000) * 1000}};
    timer_t timer;
    CHECK_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    CHECK_EQ(timer_settime(timer, 0, &when, NULL), 0);
}

#endif

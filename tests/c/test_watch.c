/* fi_watch: no worker outlives its parent, or the time it has been given. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "check.h"
#include "os/fi_watch.h"
#include "processes.h"

enum watch_kind { BY_DEATH_PIPE, BY_CLOSED_PIPE, BY_PIDFD, BY_KERNEL };

static int open_pidfd(pid_t pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    return -1;
#endif
}

/* A native call of a worker that never returns and holds every lock. */
static void spin_for_ever(void)
{
    for (volatile uint64_t turns = 0;; turns++) {
    }
}

static void be_worker(enum watch_kind kind, pid_t parent, const int life[2], int proof)
{
    close(life[1]);
    if (kind == BY_KERNEL)
        CHECK_EQ(fi_die_with_parent((int)parent), FI_OK);
    else if (kind == BY_PIDFD)
        CHECK_EQ(fi_watch_parent(open_pidfd(parent), -1), FI_OK);
    else
        CHECK_EQ(fi_watch_parent(-1, life[0]), FI_OK);
    CHECK_EQ(write(proof, "r", 1), 1);
    spin_for_ever();
}

static void be_parent(enum watch_kind kind, const int proof[2], int command)
{
    int life[2];
    char byte;
    pid_t self = getpid();
    CHECK_EQ(fi_pipe_open(life), FI_OK);
    pid_t worker = fork();
    CHECK(worker >= 0);
    if (worker == 0)
        be_worker(kind, self, life, proof[1]);
    close(life[0]);
    close(proof[1]);
    CHECK(is_readable(command, -1));
    CHECK_EQ(read(command, &byte, 1), 1);
    close(life[1]);
    CHECK(is_readable(command, -1)); /* until it is killed */
}

/* The test starts a parent that starts a worker, and ends the parent. `proof` is open in the worker
 * alone: its end shows the worker's death, and nothing else does. */
static void check_watch(enum watch_kind kind)
{
    int proof[2], command[2], status;
    char byte;
    CHECK_EQ(fi_pipe_open(proof), FI_OK);
    CHECK_EQ(fi_pipe_open(command), FI_OK);
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        close(command[1]);
        be_parent(kind, proof, command[0]);
        _exit(EXIT_FAILURE);
    }
    close(proof[1]);
    CHECK(is_readable(proof[0], LONG_ENOUGH));
    CHECK_EQ(read(proof[0], &byte, 1), 1); /* the worker stands; it does not die by itself */
    CHECK(!is_readable(proof[0], 50000000));
    if (kind == BY_CLOSED_PIPE)
        CHECK_EQ(write(command[1], "c", 1), 1); /* the parent lives on, as after execv */
    else
        CHECK_EQ(kill(parent, SIGKILL), 0);
    CHECK(is_readable(proof[0], LONG_ENOUGH));
    CHECK_EQ(read(proof[0], &byte, 1), 0);
    if (kind == BY_CLOSED_PIPE) {
        CHECK_EQ(waitpid(parent, &status, WNOHANG), 0);
        CHECK_EQ(kill(parent, SIGKILL), 0);
    }
    CHECK_EQ(waitpid(parent, &status, 0), parent);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(proof[0]);
    close(command[0]);
    close(command[1]);
}

static void ask_to_die_with_somebody_else(void)
{
    CHECK_EQ(fi_die_with_parent((int)getpid()), FI_OK); /* not our parent: it died meanwhile */
}

static void test_watch(void)
{
    check_watch(BY_DEATH_PIPE);
    check_watch(BY_CLOSED_PIPE);
    int descriptor = open_pidfd(getpid());
    if (descriptor >= 0) { /* where the kernel has no pidfd, there is none to watch */
        close(descriptor);
        check_watch(BY_PIDFD);
    }
#ifdef __linux__
    check_watch(BY_KERNEL);
    int status = in_child(ask_to_die_with_somebody_else);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
#endif
}

static void spin_beyond_its_time(void)
{
    CHECK_EQ(fi_exit_within(50000000, 7), FI_OK);
    spin_for_ever();
}

static void end_before_its_time(void)
{
    CHECK_EQ(fi_exit_within(LONG_ENOUGH, 7), FI_OK);
    _exit(5);
}

static void test_exit_within(void)
{
    int64_t began = fi_now_ns();
    int status = in_child(spin_beyond_its_time);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(fi_now_ns() - began >= 50000000);
    status = in_child(end_before_its_time);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    CHECK(fi_now_ns() - began < LONG_ENOUGH);
}

static void end_unless_renewed(void)
{
    int64_t began = fi_now_ns();
    while (fi_now_ns() - began < 1500000000) {
        struct timespec pause = {.tv_nsec = 10000000};
        CHECK_EQ(fi_exit_unless_renewed(1000000000, 7), FI_OK);
        nanosleep(&pause, NULL);
    }
    CHECK_EQ(raise(SIGSTOP), 0);
    spin_for_ever();
}

static void test_exit_unless_renewed(void)
{
    struct timespec pause = {.tv_sec = 1, .tv_nsec = 500000000};
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        end_unless_renewed();
        _exit(EXIT_FAILURE);
    }
    CHECK_EQ(waitpid(child, &status, WUNTRACED), child);
    CHECK(WIFSTOPPED(status)); /* it was not ended while it renewed */
    nanosleep(&pause, NULL);   /* longer than its second, of which a quarter is counted */
    int64_t went_on = fi_now_ns();
    CHECK_EQ(kill(child, SIGCONT), 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(fi_now_ns() - went_on > 300000000);
}

int main(void)
{
    test_watch();
    test_exit_within();
    test_exit_unless_renewed();
    return 0;
}

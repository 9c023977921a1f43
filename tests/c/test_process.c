/* fi_process: a child knows that it is another process, and so does its own child; handlers of forks
 * run without one. */
#define _GNU_SOURCE
#include "check.h"
#include "os/fi_process.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void fork_and_look(int depth)
{
    CHECK_EQ(fi_process_id(), (int)getpid());
    if (depth == 0)
        return;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fork_and_look(depth - 1);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(fi_process_id(), (int)getpid());
}

static int n_before, n_after;

static void before(void)
{
    n_before++;
}

static void after(void)
{
    n_after++;
}

static void run_handlers(void)
{
    sigset_t former, mask;
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, NULL, &former), 0);
    CHECK_EQ(pthread_atfork(before, after, NULL), 0);
    bool ran = fi_run_fork_handlers(); /* false where the system has no filters of calls */
    CHECK_EQ(n_before, ran);
    CHECK_EQ(n_after, ran);
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    fi_fork_for_handlers();
    CHECK_EQ(n_before, ran + 1);
    CHECK_EQ(n_after, ran + 1);
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1);
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    for (int number = 1; number < NSIG; number++) /* the sets have bytes that nobody writes */
        CHECK_EQ(sigismember(&mask, number), sigismember(&former, number));
}

int main(void)
{
    fork_and_look(2);
    run_handlers();
    fork_and_look(2); /* forks of this thread are not refused */
    return 0;
}

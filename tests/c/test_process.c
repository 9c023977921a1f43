/* fi_process: a child knows that it is another process, and so does its own child. */
#define _GNU_SOURCE
#include "check.h"
#include "os/fi_process.h"

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

int main(void)
{
    fork_and_look(2);
    fork_and_look(2);
    return 0;
}

/* fi_locks: descriptions exclude each other, in one process and in several; closing a duplicate, or a
 * child's copy, gives up nothing. */
#define _GNU_SOURCE
#include "check.h"
#include "os/fi_locks.h"
#include "os/fi_platform.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static int opened(int fd)
{
    int own = -1;
    CHECK_EQ(fi_lock_open(fd, &own), FI_OK);
    CHECK(own >= 0 && own != fd);
    return own;
}

static void exclusion(int fd)
{
    int a = opened(fd), b = opened(fd);
    CHECK_EQ(fi_lock_set(a, 5, FI_SHARED), FI_OK);
    CHECK_EQ(fi_lock_set(b, 5, FI_SHARED), FI_OK);
    CHECK_EQ(fi_lock_set(a, 5, FI_EXCLUSIVE), EAGAIN);
    CHECK_EQ(fi_lock_set(b, 5, FI_UNLOCKED), FI_OK);
    CHECK_EQ(fi_lock_set(a, 5, FI_EXCLUSIVE), FI_OK);
    CHECK_EQ(fi_lock_set(b, 5, FI_SHARED), EAGAIN);
    CHECK_EQ(fi_lock_set(b, 6, FI_EXCLUSIVE), FI_OK); /* beyond the end of the file, too */
    CHECK_EQ(fi_lock_set(b, UINT64_C(1) << 40, FI_EXCLUSIVE), FI_OK);
    close(dup(fd));
    close(dup(a));
    CHECK_EQ(fi_lock_set(b, 5, FI_SHARED), EAGAIN);
    close(a);
    CHECK_EQ(fi_lock_set(b, 5, FI_EXCLUSIVE), FI_OK);
    close(b);
}

static void processes(int fd)
{
    int a = opened(fd);
    CHECK_EQ(fi_lock_set(a, 0, FI_EXCLUSIVE), FI_OK);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(a); /* which is the parent's */
        int b = opened(fd);
        _exit(fi_lock_set(b, 0, FI_SHARED) == EAGAIN && fi_lock_set(b, 1, FI_EXCLUSIVE) == FI_OK
                  ? 0
                  : 1);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(fi_lock_set(a, 1, FI_EXCLUSIVE), FI_OK); /* the child's are gone with it */
    close(a);
}

int main(void)
{
    int fd, own;
    CHECK_EQ(fi_shm_open(1 << 16, &fd), FI_OK);
    exclusion(fd);
    processes(fd);
    CHECK_EQ(fi_lock_open(-1, &own), ENOENT);
    CHECK_EQ(own, -1);
    CHECK_EQ(fi_lock_set(-1, 0, FI_SHARED), EBADF);
    close(fd);
    return 0;
}

/* fi_process: a child knows that it is another process, and so does its own child; handlers of forks
 * run without one; loaded libraries are counted. fi_thread: room for threads is tried. */
#define _GNU_SOURCE
#include "check.h"
#include "os/fi_process.h"
#include "os/fi_thread.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

static int n_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    int n = -2; /* "." and ".." */
    while (readdir(tasks))
        n++;
    closedir(tasks);
    return n;
}

static void try_threads(void)
{
    CHECK(fi_can_start_threads(0));
    CHECK(fi_can_start_threads(8));
    int n = n_threads(); /* a sanitizer may have one of its own by now */
    CHECK(fi_can_start_threads(8));
    CHECK_EQ(n_threads(), n);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which take terabytes */
    struct rlimit former, low;
    CHECK_EQ(getrlimit(RLIMIT_AS, &former), 0);
    low = former;
    low.rlim_cur = 200u << 20; /* a thread takes the 8 MiB of RLIMIT_STACK, of musl 128 KiB */
    CHECK_EQ(setrlimit(RLIMIT_AS, &low), 0);
    if (mmap(NULL, low.rlim_cur, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
        CHECK(!fi_can_start_threads(5000)); /* emulators have no such limit */
    CHECK_EQ(setrlimit(RLIMIT_AS, &former), 0);
    CHECK_EQ(n_threads(), n);
#endif
}

static void count_libraries(void)
{
    uint64_t before = fi_library_changes();
    CHECK_EQ(fi_library_changes(), before);
    void *library = dlopen("libutil.so.1", RTLD_NOW);
    if (!library) /* a C library of another kind */
        return;
    CHECK(fi_library_changes() > before);
    dlclose(library);
}

int main(void)
{
    fork_and_look(2);
    run_handlers();
    try_threads();
    count_libraries();
    fork_and_look(2); /* forks of this thread are not refused */
    return 0;
}

#define _GNU_SOURCE
#include "os/fi_process.h"

#include <errno.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fi_base.h"

/* For processors without that call, and for the headers of old kernels. */
#ifdef __NR_fork
#define FORK_CALL __NR_fork
#else
#define FORK_CALL __NR_clone
#endif
#ifdef __NR_clone3
#define CLONE3_CALL __NR_clone3
#else
#define CLONE3_CALL 435
#endif

static _Atomic int known; /* 0: not asked yet in this process */
static bool forks_are_noticed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget(void)
{
    fi_store_relaxed(&known, 0);
}

static void notice_forks(void)
{
    forks_are_noticed = pthread_atfork(NULL, NULL, forget) == 0;
}

int fi_process_id(void)
{
    int id = fi_load_relaxed(&known);
    if (id != 0)
        return id;
    pthread_once(&once, notice_forks);
    id = (int)getpid();
    if (forks_are_noticed)
        fi_store_relaxed(&known, id);
    return id;
}

void fi_fork_for_handlers(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* The system refuses this thread's forks from now on, and those of no other thread. */
static bool refuse_forks(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FORK_CALL, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLONE3_CALL, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void *fork_in_vain(void *done)
{
    if (refuse_forks()) {
        fi_fork_for_handlers();
        *(bool *)done = true;
    }
    return NULL;
}

static int read_changes(struct dl_phdr_info *info, size_t size, void *count)
{
    (void)size;
    *(uint64_t *)count = (uint64_t)(info->dlpi_adds + info->dlpi_subs);
    return 1; /* each library has the same counts */
}

uint64_t fi_library_changes(void)
{
    uint64_t count = 0;
    dl_iterate_phdr(read_changes, &count);
    return count;
}

bool fi_run_fork_handlers(void)
{
    bool done = false;
    pthread_t thread;
    sigset_t all, former;
    sigfillset(&all); /* signals are for the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &former);
    bool is_there = pthread_create(&thread, NULL, fork_in_vain, &done) == 0;
    pthread_sigmask(SIG_SETMASK, &former, NULL);
    if (is_there)
        pthread_join(thread, NULL);
    return done;
}

#define _GNU_SOURCE
#include "os/fi_process.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fi_base.h"

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

void fi_run_fork_handlers(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
}

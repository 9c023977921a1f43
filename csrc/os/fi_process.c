#define _GNU_SOURCE
#include "os/fi_process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

static _Atomic int known; /* 0: not asked yet in this process */
static bool forks_are_seen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void forget(void)
{
    atomic_store_explicit(&known, 0, memory_order_relaxed);
}

static void look_out(void)
{
    forks_are_seen = pthread_atfork(NULL, NULL, forget) == 0;
}

int fi_process_id(void)
{
    int id = atomic_load_explicit(&known, memory_order_relaxed);
    if (id != 0)
        return id;
    pthread_once(&once, look_out);
    id = (int)getpid();
    if (forks_are_seen)
        atomic_store_explicit(&known, id, memory_order_relaxed);
    return id;
}

#define _GNU_SOURCE
#include "os/fi_thread.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WAIT_US = 100, MOST_WAITS = 1000 };

int fi_thread_start(void *(*body)(void *), const void *argument, size_t bytes)
{
    void *copy = malloc(bytes);
    if (!copy)
        return ENOMEM;
    memcpy(copy, argument, bytes);
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, (size_t)PTHREAD_STACK_MIN + (256u << 10));
    pthread_t thread;
    int rc = pthread_create(&thread, &attributes, body, copy);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        free(copy);
    return rc;
}

struct trial {
    pthread_t thread;
    pid_t id;
    pthread_mutex_t *gate;
};

static void *pass_gate(void *argument)
{
    struct trial *trial = argument;
    trial->id = (pid_t)syscall(SYS_gettid);
    pthread_mutex_lock(trial->gate);
    pthread_mutex_unlock(trial->gate);
    return NULL;
}

bool fi_can_start_threads(size_t count)
{
    struct trial *trials = calloc(count + 1, sizeof *trials); /* of none as well */
    if (!trials)
        return false;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_mutex_lock(&gate);
    size_t n = 0;
    for (; n < count; n++) {
        trials[n].gate = &gate;
        if (pthread_create(&trials[n].thread, NULL, pass_gate, &trials[n]) != 0)
            break;
    }
    pthread_mutex_unlock(&gate);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (size_t i = 0; i < n; i++)
        pthread_join(trials[i].thread, NULL);
    /* The system counts a thread for a moment after it was joined. */
    for (size_t i = 0, waits = 0; i < n && waits < MOST_WAITS;) {
        if (syscall(SYS_tgkill, getpid(), trials[i].id, 0) != 0) {
            i++;
        } else {
            usleep(WAIT_US);
            waits++;
        }
    }
    free(trials);
    return n == count;
}

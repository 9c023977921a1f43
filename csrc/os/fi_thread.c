#define _GNU_SOURCE
#include "os/fi_thread.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

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

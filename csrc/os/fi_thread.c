#define _GNU_SOURCE
#include "os/fi_thread.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

int fi_thread_start(void *(*body)(void *), void *argument)
{
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, (size_t)PTHREAD_STACK_MIN + (256u << 10));
    pthread_t thread;
    int rc = pthread_create(&thread, &attributes, body, argument);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

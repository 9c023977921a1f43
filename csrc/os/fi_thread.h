/* Threads of this floor's own. */
#ifndef FI_THREAD_H
#define FI_THREAD_H

#include <stddef.h>

/* Starts a small detached thread that gets no signals: these belong to the program's threads. Its
 * argument is a copy of `bytes` bytes, which the body frees. Returns 0 or a positive errno. */
int fi_thread_start(void *(*body)(void *), const void *argument, size_t bytes);

#endif

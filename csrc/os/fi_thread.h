/* Threads of this floor's own, and room for those of others. */
#ifndef FI_THREAD_H
#define FI_THREAD_H

#include <stdbool.h>
#include <stddef.h>

/* Starts a small detached thread that gets no signals: these belong to the program's threads. Its
 * argument is a copy of `bytes` bytes, which the body frees. Returns 0 or a positive errno. */
int fi_thread_start(void *(*body)(void *), const void *argument, size_t bytes);

/* Whether this process can start so many more ordinary threads now: tried. Returns when the system
 * does not count them any more. */
bool fi_can_start_threads(size_t count);

#endif

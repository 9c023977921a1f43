/* Threads of this floor's own. */
#ifndef FI_THREAD_H
#define FI_THREAD_H

/* Starts a small detached thread that gets no signals: these belong to the program's threads.
 * Returns 0 or a positive errno; then `argument` is still the caller's. */
int fi_thread_start(void *(*body)(void *), void *argument);

#endif

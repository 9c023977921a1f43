/* The ring with threads for workers, each of which may end at any step of the protocol: at every
 * point of its own code, at each fence, and when it has fallen asleep. So that ThreadSanitizer sees
 * both sides, and a death can hit the few instructions that a signal would hardly ever hit.
 * Argument (or STRESS_SECONDS): seconds for each configuration. STRESS_SEED repeats a run.
 */
#include <pthread.h>

#include "os/fi_platform.h"

static void step(void);

/* fi_ring_worker.c with a death at its fences F1 to F3, and between the bell's word and the sleep. */
#define fi_fence(number) (step(), (fi_fence)(number))
#define fi_bell_sleep(bell, pipe, ns) (step(), (fi_bell_sleep)(bell, pipe, ns))
#define LATE_NS 2000
#include "../../csrc/ring/fi_ring_worker.c"
#undef load_acquire
#undef load_relaxed
#undef store_release
#undef store_relaxed

#include "ring_stress.h"

struct thread_worker {
    stress *stress;
    uint32_t number;
    uint64_t seed;
    uint64_t steps_left; /* it dies when they are used up */
    pthread_t thread;
    atomic_bool ended;
};

static struct thread_worker workers[MOST_WORKERS];
static _Thread_local struct thread_worker *self;

static void step(void)
{
    if (!self || self->steps_left-- > 0)
        return;
    atomic_store(&self->ended, true);
    fi_event_ring(self->stress->event[1]); /* as a pidfd would wake the parent */
    pthread_exit(NULL);
}

static void *run_worker(void *argument)
{
    self = argument;
    stress *t = self->stress;
    work(&t->ring, self->number, t->pipes ? t->bell_pipes[self->number].reader : -1, self->seed);
    return NULL;
}

static void start_thread(stress *t, uint32_t number)
{
    struct thread_worker *worker = workers + number;
    worker->stress = t;
    worker->number = number;
    worker->seed = mix(t->random + number);
    worker->steps_left = draw(&t->random, UINT64_C(16) << draw(&t->random, 10));
    atomic_store(&worker->ended, false);
    CHECK_EQ(pthread_create(&worker->thread, NULL, run_worker, worker), 0);
}

static bool thread_is_dead(stress *t, uint32_t number)
{
    (void)t;
    if (!atomic_load(&workers[number].ended))
        return false;
    CHECK_EQ(pthread_join(workers[number].thread, NULL), 0);
    return true;
}

static int no_descriptor(stress *t, uint32_t number)
{
    (void)t;
    (void)number;
    return -1;
}

static void no_disturbance(stress *t)
{
    (void)t;
}

/* ---- leases that die on another thread ----------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t slots[MOST_SLOTS], count;
    bool closed;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *run_reader(void *argument)
{
    stress *t = argument;
    for (;;) {
        pthread_mutex_lock(&queue.lock);
        while (queue.count == 0 && !queue.closed)
            pthread_cond_wait(&queue.changed, &queue.lock);
        bool end = queue.count == 0;
        uint32_t slot = end ? 0 : queue.slots[--queue.count];
        pthread_mutex_unlock(&queue.lock);
        if (end)
            return NULL;
        verify(t, slot, false);
        fi_returned_push(&t->ring.returned, slot, false);
    }
}

static void release_here_or_there(stress *t, uint32_t slot)
{
    if (draw(&t->random, 2)) {
        fi_returned_push(&t->ring.returned, slot, false);
        return;
    }
    pthread_mutex_lock(&queue.lock);
    queue.slots[queue.count++] = slot;
    pthread_cond_signal(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
}

/* ---- configurations ------------------------------------------------------------------------ */

static void run(const char *name, uint32_t slots, uint32_t number, bool pipes, bool corrupt,
                bool overtakes, uint64_t first_q, double seconds, uint64_t seed)
{
    stress t = {.random = seed,
                .pipes = pipes || fi_bells_need_pipes(),
                .corrupt = corrupt,
                .overtakes = overtakes,
                .start = start_thread,
                .is_dead = thread_is_dead,
                .death_descriptor = no_descriptor,
                .disturb = no_disturbance,
                .release = release_here_or_there};
    pthread_t reader;
    queue.closed = false;
    CHECK_EQ(pthread_create(&reader, NULL, run_reader, &t), 0);
    stress_open(&t, slots, number, first_q);
    stress_run(&t, seconds);

    while (t.lease_count > 0)
        release_one(&t);
    pthread_mutex_lock(&queue.lock);
    queue.closed = true;
    pthread_cond_signal(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
    CHECK_EQ(pthread_join(reader, NULL), 0);
    fi_parent_stop(&t.parent);
    if (corrupt)
        fi_parent_restore_hints(&t.parent);
    for (uint32_t w = 0; w < number; w++)
        if (t.alive[w])
            CHECK_EQ(pthread_join(workers[w].thread, NULL), 0); /* each one leaves */
    stress_report(&t, name);
    stress_close(&t);
}

int main(int argc, char **argv)
{
    double seconds = stress_seconds(argc, argv);
    uint64_t seed = stress_seed();
    run("2 threads", 6, 2, false, false, false, 0, seconds, seed);
    run("8 threads, sequence wraps", 8, 8, false, false, false, UINT32_MAX - UINT64_C(20),
        seconds, seed + 1);
    run("3 threads, pipes, few slots", 3, 3, true, false, false, 0, seconds, seed + 2);
    run("3 threads, corrupt hints", 6, 3, false, true, false, 0, seconds, seed + 3);
    run("3 threads, corrupt hints, pipes", 6, 3, true, true, false, 0, seconds, seed + 4);
    run("3 threads, any batch", 6, 3, false, false, true, 0, seconds, seed + 5);
    run("3 threads, any batch, corrupt hints", 6, 3, false, true, true, 0, seconds, seed + 6);
    return 0;
}

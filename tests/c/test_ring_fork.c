/* The ring with forked workers that are killed at any instruction: by a timer of their own, and by
 * the parent at the moments that matter to it. pidfd (or the end of a pipe) wakes the parent, only
 * waitpid proves a death. Argument (or STRESS_SECONDS): seconds for each configuration.
 * STRESS_SEED repeats the choices, though not the instants of a run.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>

#include "processes.h"
#include "ring_stress.h"

struct process {
    pid_t pid;
    int death; /* readable when it has died, or is about to */
};

static struct process processes[MOST_WORKERS];
static bool stopping;

static void step(void)
{
}

static int death_descriptor_of(pid_t pid, const int life[2])
{
    (void)pid;
#if defined(SYS_pidfd_open) && !defined(FI_PORTABLE)
    int descriptor = (int)syscall(SYS_pidfd_open, pid, 0);
    if (descriptor >= 0) {
        close(life[0]);
        return descriptor;
    }
#endif
    return life[0];
}

static void start_process(stress *t, uint32_t number)
{
    uint64_t seed = mix(t->random + number);
    uint64_t life_us = 1 + draw(&t->random, UINT64_C(64) << draw(&t->random, 12));
    int life[2];
    CHECK_EQ(fi_pipe_open(life), FI_OK);
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(life[0]);
        kill_me_after(life_us);
        work(&t->ring, number, t->pipes ? t->bell_pipes[number].reader : -1, seed);
        _exit(EXIT_SUCCESS);
    }
    close(life[1]); /* so that it is the child's alone */
    processes[number] = (struct process){pid, death_descriptor_of(pid, life)};
}

static void check_end(int status)
{
    if (WIFSIGNALED(status))
        CHECK_EQ(WTERMSIG(status), SIGKILL); /* nothing but our own kills */
    else
        CHECK(stopping && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
}

static bool process_is_dead(stress *t, uint32_t number)
{
    (void)t;
    int status;
    pid_t got = waitpid(processes[number].pid, &status, WNOHANG);
    CHECK(got >= 0);
    if (got == 0)
        return false;
    check_end(status);
    close(processes[number].death);
    return true;
}

static int descriptor_of_process(stress *t, uint32_t number)
{
    (void)t;
    return processes[number].death;
}

/* A pid that was not waited for is nobody else's, so the signal cannot go astray. */
static void kill_some(stress *t)
{
    uint32_t number = (uint32_t)draw(&t->random, t->ring.geometry.workers);
    if (t->alive[number] && draw(&t->random, 40) == 0)
        CHECK_EQ(kill(processes[number].pid, SIGKILL), 0);
}

static void release_here(stress *t, uint32_t slot)
{
    fi_returned_push(&t->ring.returned, slot, false);
}

static void run(const char *name, uint32_t slots, uint32_t number, bool pipes, bool corrupt,
                bool overtakes, uint64_t first_q, double seconds, uint64_t seed)
{
    stress t = {.random = seed,
                .pipes = pipes || fi_bells_need_pipes(),
                .corrupt = corrupt,
                .overtakes = overtakes,
                .start = start_process,
                .is_dead = process_is_dead,
                .death_descriptor = descriptor_of_process,
                .disturb = kill_some,
                .release = release_here};
    stopping = false;
    stress_open(&t, slots, number, first_q);
    stress_run(&t, seconds);

    stopping = true;
    fi_parent_stop(&t.parent);
    if (corrupt)
        fi_parent_restore_hints(&t.parent);
    for (uint32_t w = 0; w < number; w++) {
        int status;
        if (!t.alive[w])
            continue;
        CHECK_EQ(waitpid(processes[w].pid, &status, 0), processes[w].pid);
        check_end(status);
        close(processes[w].death);
    }
    stress_report(&t, name);
    stress_close(&t);
}

int main(int argc, char **argv)
{
    double seconds = stress_seconds(argc, argv);
    uint64_t seed = stress_seed();
    run("3 processes", 6, 3, false, false, false, 0, seconds, seed);
    run("12 processes, sequence wraps", 16, 12, false, false, false, UINT32_MAX - UINT64_C(20),
        seconds, seed + 1);
    run("2 processes, pipes, few slots", 3, 2, true, false, false, 0, seconds, seed + 2);
    run("3 processes, corrupt hints", 6, 3, false, true, false, 0, seconds, seed + 3);
    run("3 processes, corrupt hints, pipes", 6, 3, true, true, false, 0, seconds, seed + 4);
    run("3 processes, any batch", 6, 3, false, false, true, 0, seconds, seed + 5);
    run("3 processes, any batch, corrupt hints", 6, 3, false, true, true, 0, seconds, seed + 6);
    return 0;
}

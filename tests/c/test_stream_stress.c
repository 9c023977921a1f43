/* Streams of readers that run beside their parent: as threads, so that ThreadSanitizer sees both
 * sides, and as processes, killed at any instant. The parent takes what there is in parts of random
 * size, lends slots and releases them much later, from another order, and checks every byte.
 * Argument (or STRESS_SECONDS): seconds for each configuration. STRESS_SEED repeats the choices.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "processes.h"
#include "stream_fixture.h"

enum { MOST_HELD = 64 };

typedef struct held {
    uint32_t reader, slot, rows;
    uint64_t first; /* number of the sample in row 0 */
} held;

typedef struct run {
    channel c;
    uint64_t samples; /* of each reader */
    bool processes;
    pthread_t threads[MOST_READERS];
    pid_t pids[MOST_READERS];
    bool dead[MOST_READERS];
    uint64_t taken, granted;
    held held[MOST_HELD];
    uint32_t held_count;
    bool lent[MOST_READERS];          /* the block in hand is */
    uint64_t block_first[MOST_READERS];
    uint64_t kills;
} run;

struct reader_thread {
    run *run;
    uint32_t number;
    uint64_t seed;
};

static struct reader_thread all_readers[MOST_READERS];

static void *run_reader(void *argument)
{
    struct reader_thread *reader = argument;
    uint64_t random = reader->seed;
    fi_reader r;
    reader_init(&r, &reader->run->c, reader->number);
    (void)read_all(&r, reader->run->samples, &random);
    return NULL;
}

static void start(run *t, uint32_t number)
{
    all_readers[number] = (struct reader_thread){t, number, mix(t->c.random + number)};
    if (!t->processes) {
        CHECK_EQ(pthread_create(t->threads + number, NULL, run_reader, all_readers + number), 0);
        return;
    }
    uint64_t life = 1 + draw(&t->c.random, UINT64_C(256) << draw(&t->c.random, 10));
    bool mortal = draw(&t->c.random, 3) > 0;
    fflush(stdout);
    t->pids[number] = fork();
    CHECK(t->pids[number] >= 0);
    if (t->pids[number] == 0) {
        if (mortal)
            kill_me_after(life);
        run_reader(all_readers + number);
        _exit(EXIT_SUCCESS);
    }
}

static void release_one(run *t)
{
    held h = t->held[draw(&t->c.random, t->held_count)];
    for (uint32_t i = 0; i < t->held_count; i++)
        if (t->held[i].slot == h.slot)
            t->held[i] = t->held[--t->held_count];
    for (uint32_t row = 0; row < h.rows; row++)
        check_row(fi_slot_payload(&t->c.ring, h.slot) + row * ROW_BYTES, h.reader, h.first + row);
    fi_returned_push(&t->c.ring.returned, h.slot, false);
}

/* Takes some rows of one reader; false if there is nothing new. */
static bool visit(run *t, uint32_t reader)
{
    channel *c = &t->c;
    fi_part part;
    int rc = fi_stream_ready(&c->stream, reader, &part);
    if (rc == FI_E_BUSY)
        return false;
    CHECK_EQ(rc, FI_OK);
    if (part.first == 0 && part.count > 0) {
        t->lent[reader] = t->held_count < MOST_HELD && draw(&c->random, 2) &&
                          fi_stream_lend(&c->stream, reader);
        t->block_first[reader] = c->next[reader];
    }
    bool closed = part.flags & FI_CLOSED;
    if (part.count > 1 && draw(&c->random, 2)) {
        part.count = 1 + (uint32_t)draw(&c->random, part.count - 1);
        closed = false;
    }
    check_rows(c, reader, &part);
    c->stream.source[reader].taken += part.count;
    c->next[reader] += part.count;
    t->taken += part.count;
    if (closed) {
        uint32_t rows = part.first + part.count;
        fi_stream_leave(&c->stream, reader, part.flags);
        if (rows > 0 && t->lent[reader])
            t->held[t->held_count++] = (held){reader, part.slot, rows, t->block_first[reader]};
    }
    return part.count > 0 || closed;
}

static bool visit_all(run *t)
{
    bool any = false;
    for (uint32_t reader = 0; reader < t->c.ring.geometry.workers; reader++)
        any |= visit(t, reader);
    return any;
}

/* At the end of all readers, or of one that died: its credit is lost, and so is the stream. */
static bool is_over(const run *t)
{
    uint32_t ended = 0, workers = t->c.ring.geometry.workers;
    for (uint32_t reader = 0; reader < workers; reader++) {
        if (t->c.stream.source[reader].ended)
            ended++;
        else if (t->dead[reader])
            return true;
    }
    return ended == workers;
}

static void stop_all(channel *c)
{
    atomic_store(&c->ring.board->stop, 1);
    fi_stream_grant(&c->stream, 0); /* wakes them */
}

static void notice_deaths(run *t)
{
    for (uint32_t n = 0; t->processes && n < t->c.ring.geometry.workers; n++) {
        int status;
        if (t->dead[n] || waitpid(t->pids[n], &status, WNOHANG) != t->pids[n])
            continue;
        if (WIFSIGNALED(status))
            CHECK_EQ(WTERMSIG(status), SIGKILL);
        t->kills += WIFSIGNALED(status);
        t->dead[n] = true;
    }
}

/* In flight never more than allowed. What this has taken it has not granted: that is its own. */
static void check_credit(run *t)
{
    uint64_t published = 0;
    for (uint32_t reader = 0; reader < t->c.ring.geometry.workers; reader++) {
        fi_part part;
        published += t->c.next[reader];
        if (fi_stream_ready(&t->c.stream, reader, &part) == FI_OK)
            published += part.count;
    }
    CHECK(published - t->granted <= t->c.credit);
}

static void consume(run *t)
{
    channel *c = &t->c;
    int64_t deadline = fi_now_ns() + INT64_C(100000000000);
    for (;;) {
        notice_deaths(t); /* before the look: what the dead have published is to be taken */
        fi_stream_collect(&c->stream);
        check_credit(t);
        bool any = visit_all(t);
        if (t->held_count > 0 && draw(&c->random, 3) == 0)
            release_one(t);
        if (t->taken - t->granted > draw(&c->random, c->credit)) {
            fi_stream_grant(&c->stream, t->taken - t->granted);
            t->granted = t->taken;
        }
        if (any)
            continue;
        if (is_over(t)) {
            stop_all(c);
            return;
        }
        if (t->granted != t->taken) {
            fi_stream_grant(&c->stream, t->taken - t->granted);
            t->granted = t->taken;
        }
        atomic_store_explicit(c->ring.pwait, FI_ANY, memory_order_relaxed);
        fi_fence(5);
        uint8_t ready;
        if (!visit_all(t))
            /* A death wakes nobody here. */
            (void)fi_wait(c->event, 1, t->processes ? 2000000 : 5000000000, &ready);
        atomic_store_explicit(c->ring.pwait, 0, memory_order_relaxed);
        fi_event_drain(c->event[0]);
        CHECK(fi_now_ns() < deadline);
    }
}

static void one_pass(bool processes, uint32_t readers, uint32_t each, bool pipes, uint64_t *random,
                     uint64_t *samples, uint64_t *kills)
{
    static run t; /* forked readers find it where it is */
    memset(&t, 0, sizeof t);
    t.processes = processes;
    t.samples = draw(random, 3000);
    channel_open(&t.c, readers, each, 1 + draw(random, 60), pipes, mix(*random));
    for (uint32_t number = 0; number < readers; number++)
        start(&t, number);
    consume(&t);
    for (uint32_t number = 0; number < readers; number++) {
        if (!processes)
            CHECK_EQ(pthread_join(t.threads[number], NULL), 0);
        else if (!t.dead[number])
            CHECK_EQ(waitpid(t.pids[number], NULL, 0), t.pids[number]);
        if (t.c.stream.source[number].ended)
            CHECK_EQ(t.c.next[number], t.samples);
        else
            CHECK(t.kills > 0);
    }
    while (t.held_count > 0)
        release_one(&t);
    *samples += t.taken;
    *kills += t.kills;
    channel_close(&t.c);
}

static void stress(const char *name, bool processes, uint32_t readers, uint32_t each, bool pipes,
                   double seconds, uint64_t seed)
{
    uint64_t samples = 0, kills = 0, passes = 0;
    int64_t end = fi_now_ns() + (int64_t)(seconds * 1e9);
    do {
        one_pass(processes, readers, each, pipes, &seed, &samples, &kills);
        passes++;
    } while (fi_now_ns() < end);
    printf("%s: %" PRIu64 " samples in %" PRIu64 " passes, %" PRIu64 " kills\n", name, samples,
           passes, kills);
}

int main(int argc, char **argv)
{
    const char *text = argc > 1 ? argv[1] : getenv("STRESS_SECONDS");
    double seconds = text ? atof(text) : 0.4;
    text = getenv("STRESS_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)fi_now_ns();
    CHECK(seconds > 0);
    printf("STRESS_SEED=%" PRIu64 "\n", seed);
    fflush(stdout);
    stress("3 processes", true, 3, 6, false, seconds, seed);
    stress("12 processes, pipes, two slots each", true, 12, 2, true, seconds, seed + 1);
    stress("2 threads", false, 2, 8, false, seconds, seed + 2);
    stress("8 threads, three slots each", false, 8, 3, false, seconds, seed + 3);
    stress("4 threads, pipes", false, 4, 5, true, seconds, seed + 4);
    return 0;
}

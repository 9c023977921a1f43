/* Speed at which this machine copies examples that lie in memory into batches: one memcpy each.

   memcpy_limit THREADS SECONDS SOURCE_ROWS BATCH_ROWS BATCHES NBYTES...

   A source holds SOURCE_ROWS rows of one column per NBYTES, a destination BATCHES batches of
   BATCH_ROWS rows of the same columns. The threads share every batch, each copying its part row
   by row, as workers that fill one batch together do, and go round source and destination for
   SECONDS. Prints rows per second, all threads together. No locks, no hand-over: nothing that a
   loader does besides. */

#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_COLUMNS = 64, MAX_THREADS = 256 };

typedef struct {
    size_t nbytes;
    unsigned char *source, *batches;
} column_t;

static column_t columns[MAX_COLUMNS];
static int n_columns, n_threads;
static size_t source_rows, batch_rows, n_batches;
static double seconds;
static pthread_barrier_t start;

typedef struct {
    pthread_t thread;
    int number;
    double rows_per_second;
} worker_t;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Copies this thread's share of batch after batch until the time is up. */
static void *copy_rows(void *argument)
{
    worker_t *worker = argument;
    const size_t first = batch_rows * (size_t)worker->number / (size_t)n_threads;
    const size_t stop = batch_rows * (size_t)(worker->number + 1) / (size_t)n_threads;
    size_t from = first % source_rows, batch = 0, rows = 0;
    double elapsed = 0.0;

    pthread_barrier_wait(&start);
    const double begin = now();
    do {
        for (size_t row = first; row < stop; row++) {
            for (int c = 0; c < n_columns; c++) {
                const size_t nbytes = columns[c].nbytes;
                memcpy(columns[c].batches + (batch * batch_rows + row) * nbytes,
                       columns[c].source + from * nbytes, nbytes);
            }
            if (++from == source_rows)
                from = 0;
        }
        from = (from + batch_rows - (stop - first)) % source_rows;
        if (++batch == n_batches)
            batch = 0;
        rows += stop - first;
        elapsed = now() - begin;
    } while (elapsed < seconds);
    worker->rows_per_second = (double)rows / elapsed;
    return NULL;
}

static size_t positive(const char *text, size_t most)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || text[0] == '-' || value < 1 || value > most) {
        fprintf(stderr, "memcpy_limit: '%s' is not a number from 1 to %zu\n", text, most);
        exit(2);
    }
    return (size_t)value;
}

/* Page-aligned memory with every page touched, so that no fault falls into the measured time. */
static unsigned char *touched(size_t rows, size_t nbytes, int fill)
{
    void *memory;
    if (rows > ((size_t)1 << 46) / nbytes || posix_memalign(&memory, 4096, rows * nbytes)) {
        fprintf(stderr, "memcpy_limit: no memory for %zu rows of %zu bytes\n", rows, nbytes);
        exit(1);
    }
    memset(memory, fill, rows * nbytes);
    return memory;
}

int main(int argc, char **argv)
{
    static worker_t workers[MAX_THREADS];
    double total = 0.0;

    if (argc < 7 || argc - 6 > MAX_COLUMNS) {
        fprintf(stderr, "usage: memcpy_limit THREADS SECONDS SOURCE_ROWS BATCH_ROWS BATCHES "
                        "NBYTES...\n");
        return 2;
    }
    n_threads = (int)positive(argv[1], MAX_THREADS);
    seconds = strtod(argv[2], NULL);
    source_rows = positive(argv[3], (size_t)1 << 40);
    batch_rows = positive(argv[4], (size_t)1 << 30);
    n_batches = positive(argv[5], 1 << 20);
    if ((size_t)n_threads > batch_rows)
        n_threads = (int)batch_rows;
    n_columns = argc - 6;
    for (int c = 0; c < n_columns; c++) {
        columns[c].nbytes = positive(argv[6 + c], (size_t)1 << 40);
        columns[c].source = touched(source_rows, columns[c].nbytes, 1);
        columns[c].batches = touched(n_batches * batch_rows, columns[c].nbytes, 2);
    }
    pthread_barrier_init(&start, NULL, (unsigned)n_threads);
    for (int i = 0; i < n_threads; i++) {
        workers[i].number = i;
        if (pthread_create(&workers[i].thread, NULL, copy_rows, &workers[i])) {
            fprintf(stderr, "memcpy_limit: a thread could not be started\n");
            return 1;
        }
    }
    for (int i = 0; i < n_threads; i++) {
        pthread_join(workers[i].thread, NULL);
        total += workers[i].rows_per_second;
    }
    printf("%.1f\n", total);
    return 0;
}

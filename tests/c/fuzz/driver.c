/* Stands in for libFuzzer where there is none: replays a corpus, then mutates it for a while. An
 * input that reaches code no other one has reached is kept, in memory and, with a third argument,
 * in that directory; gcc's -fsanitize-coverage=trace-pc tells.
 *
 *   fuzz_NAME CORPUS [SECONDS [NEW]]
 *
 * The input in hand lies in the file NAME.input beside the program, also after a crash. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

enum { MOST_BYTES = 4096, MOST_INPUTS = 4096, MAP = 1 << 16 };

typedef struct input {
    size_t size;
    uint8_t bytes[MOST_BYTES];
} input;

static input *inputs[MOST_INPUTS];
static size_t count;
static uint8_t reached[MAP];
static bool is_new;
static uint64_t state;
static uint8_t *shown; /* size, then bytes, in a file that outlives a crash */

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uint8_t *place = reached + (here ^ here >> 16) % MAP;
    is_new |= !*place;
    *place = 1;
}

static uint64_t draw(uint64_t below)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static void run(const input *in)
{
    memcpy(shown, in->bytes, in->size);
    memset(shown + in->size, 0, MOST_BYTES - in->size);
    uint8_t *exact = malloc(in->size ? in->size : 1); /* a sanitizer sees overreading */
    memcpy(exact, in->bytes, in->size);
    is_new = false;
    (void)LLVMFuzzerTestOneInput(exact, in->size);
    free(exact);
}

static void keep(const input *in)
{
    if (count < MOST_INPUTS) {
        inputs[count] = malloc(sizeof *in);
        memcpy(inputs[count++], in, sizeof *in);
    }
}

static bool read_input(const char *path, input *in)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, in->bytes, MOST_BYTES);
    if (fd >= 0)
        close(fd);
    in->size = size < 0 ? 0 : (size_t)size;
    return size >= 0;
}

static int replay(const char *corpus)
{
    DIR *directory = opendir(corpus);
    struct dirent *entry;
    static input in;
    char path[4096];
    if (!directory)
        return -1;
    while ((entry = readdir(directory))) {
        snprintf(path, sizeof path, "%s/%s", corpus, entry->d_name);
        if (entry->d_name[0] == '.' || !read_input(path, &in))
            continue;
        run(&in);
        keep(&in);
    }
    closedir(directory);
    return (int)count;
}

static void mutate(input *in)
{
    for (uint64_t times = 1 + draw(6); times > 0; times--) {
        size_t at = in->size ? draw(in->size) : 0;
        const input *other = inputs[draw(count)];
        switch (draw(6)) {
        case 0: /* flip a bit */
            if (in->size)
                in->bytes[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1: /* another byte */
            if (in->size)
                in->bytes[at] = (uint8_t)draw(256);
            break;
        case 2: /* cut some out */
            if (in->size) {
                size_t cut = 1 + draw(in->size - at < 16 ? in->size - at : 16);
                memmove(in->bytes + at, in->bytes + at + cut, in->size - at - cut);
                in->size -= cut;
            }
            break;
        case 3: /* put some in */
            if (in->size + 16 <= MOST_BYTES) {
                size_t more = 1 + draw(16);
                memmove(in->bytes + at + more, in->bytes + at, in->size - at);
                for (size_t i = 0; i < more; i++)
                    in->bytes[at + i] = (uint8_t)draw(256);
                in->size += more;
            }
            break;
        case 4: /* the end of another one */
            if (other->size) {
                size_t from = draw(other->size), more = other->size - from;
                more = more < MOST_BYTES - at ? more : MOST_BYTES - at;
                memcpy(in->bytes + at, other->bytes + from, more);
                in->size = at + more;
            }
            break;
        default: /* something that it has already, once more */
            if (in->size && in->size + 32 <= MOST_BYTES) {
                size_t more = 1 + draw(in->size - at < 32 ? in->size - at : 32);
                memcpy(in->bytes + in->size, in->bytes + at, more);
                in->size += more;
            }
        }
    }
}

static void store(const char *directory, const input *in)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%016" PRIx64, directory, draw(UINT64_MAX));
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, in->bytes, in->size) != (ssize_t)in->size)
        perror(path);
    if (fd >= 0)
        close(fd);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
    char path[4096];
    static input in;
    double seconds = argc > 2 ? atof(argv[2]) : 0, start = now();
    const char *seed = getenv("FUZZ_SEED");
    state = seed ? strtoull(seed, NULL, 0) : (uint64_t)(start * 1e6);
    snprintf(path, sizeof path, "%s.input", argv[0]);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (argc < 2 || fd < 0 || ftruncate(fd, MOST_BYTES) != 0)
        return fprintf(stderr, "usage: %s CORPUS [SECONDS [NEW]]\n", argv[0]), 2;
    shown = mmap(NULL, MOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    uint64_t seeded = state, runs = 0;
    if (shown == MAP_FAILED || replay(argv[1]) < 1)
        return fprintf(stderr, "%s: no corpus in %s\n", argv[0], argv[1]), 2;
    size_t replayed = count;
    for (; seconds > 0 && now() - start < seconds; runs++) {
        in = *inputs[draw(count)];
        mutate(&in);
        run(&in);
        if (is_new) {
            keep(&in);
            if (argc > 3)
                store(argv[3], &in);
        }
    }
    unlink(path);
    printf("%s: %zu inputs replayed, %" PRIu64 " tried (FUZZ_SEED=%" PRIu64 "), %zu found\n", argv[0],
           replayed, runs, seeded, count - replayed);
    return 0;
}

/* Speed of this machine at the least work of a kernel: plain loops of memcpy, memset and
 * stores, called in-process by micro-benchmarks (bench/harness/micro.py, `limits`). Each returns the
 * seconds that it took, so that the call from Python is not part of it. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Copies n rows of nbytes each from sources[] behind one another. */
double limit_copy(unsigned char *out, const void *const *sources, size_t n, size_t nbytes)
{
    const double begin = now();
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * nbytes, sources[i], nbytes);
    return now() - begin;
}

/* For each of n segments: copies copied[i] bytes from sources[i], then sets filled[i] bytes to
 * `byte`, all behind one another: what padding writes. */
double limit_segments(unsigned char *out, size_t n, const void *const *sources,
                      const size_t *copied, const size_t *filled, int byte)
{
    const double begin = now();
    for (size_t i = 0; i < n; i++) {
        memcpy(out, sources[i], copied[i]);
        out += copied[i];
        memset(out, byte, filled[i]);
        out += filled[i];
    }
    return now() - begin;
}

/* Converts n rows of `length` uint16 from sources[], behind one another. */
double limit_widen(int64_t *out, const uint16_t *const *sources, size_t n, size_t length)
{
    const double begin = now();
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < length; k++)
            out[i * length + k] = sources[i][k];
    return now() - begin;
}

double limit_fill(unsigned char *out, size_t nbytes, int byte)
{
    const double begin = now();
    memset(out, byte, nbytes);
    return now() - begin;
}

/* Writes 0 to n - 1: the least that making any order of n indices has to store. */
double limit_count(int64_t *out, size_t n)
{
    const double begin = now();
    for (size_t i = 0; i < n; i++)
        out[i] = (int64_t)i;
    return now() - begin;
}

#include "batch/fi_copy.h"

#include "base/fi_base.h"
#include "os/fi_platform.h"

bool fi_outruns_cache(uint64_t batch_bytes, uint64_t batches)
{
    return batch_bytes > fi_processor_cache_bytes() / fi_max_u64(1, batches);
}

#if defined(__SSE2__)

#include <emmintrin.h>

/* One cache line at a time, so that each leaves the processor's write buffers whole. */
static void copy_lines(char *dst, const char *src, size_t lines)
{
    for (; lines > 0; lines--, dst += FI_CACHE_LINE, src += FI_CACHE_LINE) {
        const __m128i a = _mm_loadu_si128((const __m128i *)src);
        const __m128i b = _mm_loadu_si128((const __m128i *)(src + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(src + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(src + 48));
        _mm_stream_si128((__m128i *)dst, a);
        _mm_stream_si128((__m128i *)(dst + 16), b);
        _mm_stream_si128((__m128i *)(dst + 32), c);
        _mm_stream_si128((__m128i *)(dst + 48), d);
    }
    /* Neither a release store nor a lock orders stores of this kind. */
    _mm_sfence();
}

static void fill_lines(char *dst, const char *line, size_t lines)
{
    const __m128i a = _mm_loadu_si128((const __m128i *)line);
    const __m128i b = _mm_loadu_si128((const __m128i *)(line + 16));
    const __m128i c = _mm_loadu_si128((const __m128i *)(line + 32));
    const __m128i d = _mm_loadu_si128((const __m128i *)(line + 48));

    for (; lines > 0; lines--, dst += FI_CACHE_LINE) {
        _mm_stream_si128((__m128i *)dst, a);
        _mm_stream_si128((__m128i *)(dst + 16), b);
        _mm_stream_si128((__m128i *)(dst + 32), c);
        _mm_stream_si128((__m128i *)(dst + 48), d);
    }
    _mm_sfence();
}

/* An area as whole cache lines, and what lies before and after them: lines that are shared with a
 * neighbour's bytes stay in the cache. */
typedef struct {
    size_t head; /* bytes before the first whole line */
    size_t lines;
    size_t done; /* bytes up to the end of the last one */
} line_span;

static line_span whole_lines(const void *dst, size_t bytes)
{
    line_span span;

    span.head = (size_t)fi_min_u64(-(uintptr_t)dst % FI_CACHE_LINE, bytes);
    span.lines = (bytes - span.head) / FI_CACHE_LINE;
    span.done = span.head + span.lines * FI_CACHE_LINE;
    return span;
}

void fi_copy_uncached(void *dst, const void *src, size_t bytes)
{
    char *out = dst;
    const char *in = src;
    const line_span span = whole_lines(dst, bytes);

    memcpy(out, in, span.head);
    copy_lines(out + span.head, in + span.head, span.lines);
    memcpy(out + span.done, in + span.done, bytes - span.done);
}

void fi_fill_uncached(void *dst, const void *line, size_t bytes)
{
    char *out = dst;
    const char *in = line;
    const line_span span = whole_lines(dst, bytes);
    char turned[FI_CACHE_LINE]; /* content of a whole line of dst */

    memcpy(turned, in + span.head, FI_CACHE_LINE - span.head);
    memcpy(turned + FI_CACHE_LINE - span.head, in, span.head);
    memcpy(out, in, span.head);
    fill_lines(out + span.head, turned, span.lines);
    memcpy(out + span.done, turned, bytes - span.done);
}

#else

void fi_copy_uncached(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

void fi_fill_uncached(void *dst, const void *line, size_t bytes)
{
    char *out = dst;

    for (; bytes >= FI_CACHE_LINE; bytes -= FI_CACHE_LINE, out += FI_CACHE_LINE)
        memcpy(out, line, FI_CACHE_LINE);
    memcpy(out, line, bytes);
}

#endif

/* A call of memcpy for each few bytes would take longer than the copy. */
#define COPY_RUNS(bytes)                                           \
    case bytes:                                                    \
        for (int64_t i = 0; i < n; i++, dst += (bytes), src += stride) \
            memcpy(dst, src, (bytes));                             \
        break

static void copy_runs(char *dst, const char *src, int64_t n, int64_t stride, size_t run)
{
    switch (run) {
        COPY_RUNS(1);
        COPY_RUNS(2);
        COPY_RUNS(3);
        COPY_RUNS(4);
        COPY_RUNS(6);
        COPY_RUNS(8);
        COPY_RUNS(12);
        COPY_RUNS(16);
    default:
        for (int64_t i = 0; i < n; i++, dst += run, src += stride)
            memcpy(dst, src, run);
    }
}

void fi_copy_strided(void *dst, const void *src, int ndim, const int64_t *dims,
                     const int64_t *strides, size_t itemsize)
{
    char *out = dst;
    const char *in = src;
    int64_t at[FI_MOST_NDIM] = {0};
    size_t run = itemsize; /* bytes that lie side by side in both */

    for (int axis = 0; axis < ndim; axis++)
        if (dims[axis] == 0)
            return;
    while (ndim > 0 && (dims[ndim - 1] == 1 || strides[ndim - 1] == (int64_t)run))
        run *= (size_t)dims[--ndim];
    if (ndim == 0) {
        memcpy(out, in, run);
        return;
    }
    for (;;) {
        copy_runs(out, in, dims[ndim - 1], strides[ndim - 1], run);
        out += (size_t)dims[ndim - 1] * run;
        int axis = ndim - 2;
        for (; axis >= 0 && ++at[axis] == dims[axis]; axis--) {
            in -= (dims[axis] - 1) * strides[axis];
            at[axis] = 0;
        }
        if (axis < 0)
            return;
        in += strides[axis];
    }
}

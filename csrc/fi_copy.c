#include "fi_copy.h"

#include "fi_base.h"
#include "fi_platform.h"

bool fi_outruns_cache(uint64_t batch_bytes, uint64_t batches)
{
    return batch_bytes > fi_cache_bytes() / fi_max_u64(1, batches);
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

/* How many of the bytes lie before the first whole cache line. */
static size_t head_bytes(const void *dst, size_t bytes)
{
    return (size_t)fi_min_u64(-(uintptr_t)dst % FI_CACHE_LINE, bytes);
}

void fi_copy_uncached(void *dst, const void *src, size_t bytes)
{
    char *out = dst;
    const char *in = src;
    const size_t head = head_bytes(dst, bytes);
    const size_t lines = (bytes - head) / FI_CACHE_LINE;
    const size_t done = head + lines * FI_CACHE_LINE;
    /* Lines that are shared with a neighbour's bytes stay in the cache. */
    memcpy(out, in, head);
    copy_lines(out + head, in + head, lines);
    memcpy(out + done, in + done, bytes - done);
}

void fi_fill_uncached(void *dst, const void *line, size_t bytes)
{
    char *out = dst;
    const char *in = line;
    const size_t head = head_bytes(dst, bytes);
    const size_t lines = (bytes - head) / FI_CACHE_LINE;
    const size_t done = head + lines * FI_CACHE_LINE;
    char turned[FI_CACHE_LINE]; /* what a whole line of dst gets */

    memcpy(turned, in + head, FI_CACHE_LINE - head);
    memcpy(turned + FI_CACHE_LINE - head, in, head);
    memcpy(out, in, head);
    fill_lines(out + head, turned, lines);
    memcpy(out + done, turned, bytes - done);
}

#else

void fi_copy_uncached(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

void fi_fill_uncached(void *dst, const void *line, size_t bytes)
{
    char *out = dst;

    for (; bytes >= FI_CACHE_LINE; bytes -= FI_CACHE_LINE, out += FI_CACHE_LINE) {
        memcpy(out, line, FI_CACHE_LINE);
    }
    memcpy(out, line, bytes);
}

#endif

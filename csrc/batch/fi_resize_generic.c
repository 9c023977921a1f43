/* The loops of fi_resize in plain C: what other processors run, and what defines the result. */
#include "batch/fi_resize_loops.h"

static void across(const fi_resize_axis *axis, const uint8_t *const *rows, int16_t *out, uint64_t stride,
                   uint64_t plane)
{
    const uint64_t next = plane == 0 ? 3 : 1, channel = plane == 0 ? 1 : plane;

    for (int k = 0; k < FI_RESIZE_ROWS; k++, out += stride) {
        for (uint64_t x = 0; x < axis->n; x++) {
            const uint8_t *const source = rows[k] + 3 * (uint64_t)axis->firsts[x];
            const int16_t *const weights = axis->weights + x * axis->taps;
            int32_t sums[3] = {1 << (axis->shift - 1), 1 << (axis->shift - 1), 1 << (axis->shift - 1)};
            for (uint32_t t = 0; t < axis->counts[x]; t++) {
                for (int c = 0; c < 3; c++)
                    sums[c] += weights[t] * source[3 * t + c];
            }
            for (int c = 0; c < 3; c++)
                out[x * next + c * channel] = (int16_t)(sums[c] >> axis->shift);
        }
    }
}

static void down(const int16_t *const *rows, uint64_t from, const int16_t *weights, uint32_t pairs, unsigned shift,
                 uint64_t n, uint8_t *out)
{
    enum { BLOCK = 64 };

    for (uint64_t begin = 0; begin < n; begin += BLOCK) {
        const uint64_t width = fi_min_u64(n - begin, BLOCK);
        int32_t sums[BLOCK];
        for (uint64_t v = 0; v < width; v++)
            sums[v] = 1 << (shift - 1);
        for (uint32_t p = 0; p < pairs; p++) {
            const int16_t *const upper = rows[2 * p] + from + begin, *const lower = rows[2 * p + 1] + from + begin;
            const int16_t first = weights[2 * p], second = weights[2 * p + 1];
            for (uint64_t v = 0; v < width; v++)
                sums[v] += first * upper[v] + second * lower[v];
        }
        for (uint64_t v = 0; v < width; v++)
            out[begin + v] = (uint8_t)(sums[v] >> shift);
    }
}

const fi_resize_loops fi_resize_generic = {across, down};

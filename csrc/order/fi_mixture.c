#include "order/fi_mixture.h"

enum { SOURCE_BITS = 16 };
static const int64_t FAR = (int64_t)1 << 47; /* later than any slot */

/* ---- heaps: the least key on top ------------------------------------------------------------ */

static void push(uint64_t *heap, uint32_t *count, uint64_t key)
{
    uint32_t place = (*count)++;

    while (place > 0 && heap[(place - 1) / 2] > key) {
        heap[place] = heap[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    heap[place] = key;
}

static uint32_t pop(uint64_t *heap, uint32_t *count)
{
    const uint64_t top = heap[0], key = heap[--*count];
    uint32_t place = 0, child;

    while ((child = 2 * place + 1) < *count) {
        child += child + 1 < *count && heap[child + 1] < heap[child];
        if (heap[child] >= key)
            break;
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = key;
    return (uint32_t)(top & (((uint64_t)1 << SOURCE_BITS) - 1));
}

/* ---- windows ----------------------------------------------------------------------------- */

/* When `draws` draws are due: in whole slots, and the rest in slots / weight. */
static int64_t due(const fi_mixture *mixture, const fi_mixture_source *source, uint64_t draws,
                   uint64_t *part)
{
    const __int128 amount = (__int128)draws * mixture->total - source->lag;
    __int128 whole = amount / (__int128)source->weight, rest = amount % (__int128)source->weight;

    if (rest < 0) {
        rest += source->weight;
        whole--;
    }
    *part = (uint64_t)rest;
    return whole > FAR ? FAR : (int64_t)whole;
}

static uint64_t deadline_of(const fi_mixture_source *source)
{
    const int64_t slot = source->whole + (source->part > 0);

    return slot < 0 ? 0 : (uint64_t)slot;
}

/* A source's next draw is released. */
static void release(fi_mixture *mixture, uint32_t i)
{
    const uint64_t deadline = deadline_of(&mixture->sources[i]);

    if (deadline > mixture->last)
        mixture->spare++;
    else
        push(mixture->ready, &mixture->ready_count, deadline << SOURCE_BITS | i);
}

/* Notes a draw that is released at a slot, for the slots after the present one. */
static void note(fi_mixture *mixture, uint32_t i, int64_t slot)
{
    if (slot <= (int64_t)mixture->slot + 1)
        release(mixture, i);
    else
        push(mixture->waiting, &mixture->waiting_count, (uint64_t)slot << SOURCE_BITS | i);
}

void fi_mixture_start(fi_mixture *mixture)
{
    uint64_t drawn = 0;

    mixture->ready_count = mixture->waiting_count = mixture->spare = 0;
    for (uint32_t i = 0; i < mixture->count; i++) {
        fi_mixture_source *const source = &mixture->sources[i];
        drawn += source->drawn;
        if (source->weight > 0) {
            const int64_t released = due(mixture, source, source->drawn, &source->part) + 1;
            source->whole = due(mixture, source, source->drawn + 1, &source->part);
            note(mixture, i, released);
        }
    }
    mixture->spare -= (uint32_t)(mixture->slot - drawn);
}

void fi_mixture_run(fi_mixture *mixture, uint64_t count, uint16_t *out)
{
    const uint64_t total = mixture->total;

    for (uint64_t k = 0; k < count; k++) {
        fi_mixture_source *source;
        int64_t released;
        uint32_t i;

        while (mixture->waiting_count > 0 &&
               mixture->waiting[0] >> SOURCE_BITS <= mixture->slot + 1) {
            release(mixture, pop(mixture->waiting, &mixture->waiting_count));
        }
        mixture->slot++;
        if (mixture->ready_count == 0) {
            mixture->spare--;
            out[k] = FI_MIXTURE_OPEN;
            continue;
        }
        i = pop(mixture->ready, &mixture->ready_count);
        out[k] = (uint16_t)i;
        source = &mixture->sources[i];
        source->drawn++;
        released = source->whole + 1;
        source->whole += (int64_t)(total / source->weight);
        source->part += total % source->weight;
        if (source->part >= source->weight) {
            source->part -= source->weight;
            source->whole++;
        }
        source->whole = source->whole > FAR ? FAR : source->whole;
        note(mixture, i, released);
    }
}

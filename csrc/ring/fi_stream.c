/* Streams, both halves.
 *
 * model/stream.pml is this file for the model checker. Its actions here: begin is fi_reader_begin
 * (find_slot free_slot, credit take_credit, B1 to B4 sleep_for_room), open_block fi_reader_open,
 * write fi_reader_publish, close_block fi_reader_close; find_block and look_at fi_stream_ready,
 * take_of fi_stream_lend and fi_stream_leave, hand_back, collect and grant the
 * functions of those names. What changes a step changes the model too; what changes an order,
 * model/orders.py.
 */
#include "ring/fi_stream.h"

#include <errno.h>
#include <stdlib.h>

#include "os/fi_platform.h"

#define NO_SLOT UINT32_MAX

static _Atomic uint32_t *map_entry(const fi_ring *ring, uint32_t reader, uint32_t each, uint64_t q)
{
    return ring->map + (uint64_t)reader * each + q % each;
}

/* ---- reader --------------------------------------------------------------------------------- */

void fi_reader_init(fi_reader *reader, fi_ring *ring, uint32_t number, int bell_pipe, uint64_t most)
{
    *reader = (fi_reader){.ring = ring,
                          .number = number,
                          .bell_pipe = bell_pipe,
                          .each = ring->geometry.slots / ring->geometry.workers,
                          .most = most};
}

/* The first of the reader's slots that is free, for the lowest numbers are the warmest; NO_SLOT
 * where none is, or where the blocks in flight have bytes enough. What is lent is in flight no
 * more: the program may hold it for ever. */
static uint32_t free_slot(const fi_reader *reader)
{
    fi_ring *ring = reader->ring;
    uint32_t first = reader->number * reader->each, found = NO_SLOT, busy = 0;
    uint64_t bytes = 0;
    for (uint32_t slot = first; slot < first + reader->each; slot++) {
        /* G2, pairs with the parent's store in hand_back: old bytes may be overwritten. */
        uint32_t code = fi_word_code(fi_load_acquire(&ring->slots[slot].state));
        if (code == FI_FILLING) {
            busy++;
            bytes += fi_slot_committed(ring, slot);
        } else if (code != FI_READY && found == NO_SLOT) {
            found = slot;
        }
    }
    if (found == NO_SLOT || busy < 2)
        return found;
    return bytes + fi_slot_committed(ring, found) <= reader->most ? found : NO_SLOT;
}

bool fi_reader_find_slot(fi_reader *reader)
{
    uint32_t slot = free_slot(reader);
    if (slot == NO_SLOT)
        return false;
    reader->slot = slot;
    reader->has_slot = true;
    return true;
}

/* Part of what the board has, so that one reader does not hold what another waits for: half a
 * fair share of the rest, or one. Progress only: no bytes are published by it. */
static bool take_credit(fi_reader *reader)
{
    _Atomic uint64_t *credit = &reader->ring->board->credit;
    uint64_t left = fi_load_relaxed(credit), share;
    do {
        if (left == 0)
            return false;
        share = fi_max_u64(1, left / (2 * reader->ring->geometry.workers));
    } while (!atomic_compare_exchange_weak_explicit(credit, &left, left - share,
                                                    memory_order_relaxed, memory_order_relaxed));
    reader->credit = share;
    return true;
}

static bool may_go_on(const fi_reader *reader)
{
    fi_board *board = reader->ring->board;
    if (fi_load_relaxed(&board->stop))
        return true;
    return reader->has_slot ? fi_load_relaxed(&board->credit) > 0 : free_slot(reader) != NO_SLOT;
}

/* B1 to B4, as in the ring. */
static void sleep_for_room(fi_reader *reader)
{
    _Atomic uint32_t *bell = reader->ring->bells + reader->number;
    fi_store_relaxed(bell, 1); /* B1 */
    fi_fence(3);               /* F3, pairs with F4: bell before the look at credit and slots */
    if (may_go_on(reader))     /* B3 */
        fi_bell_cancel(bell, reader->bell_pipe);
    else
        fi_bell_sleep(bell, reader->bell_pipe, FI_FOR_EVER); /* B4 */
}

bool fi_reader_begin(fi_reader *reader)
{
    for (;;) {
        if (fi_load_relaxed(&reader->ring->board->stop))
            return false;
        /* The slot first: who waits for one must not hold credit that others could use. */
        if ((reader->has_slot || fi_reader_find_slot(reader)) &&
            (reader->credit > 0 || take_credit(reader)))
            return true;
        sleep_for_room(reader);
    }
}

void fi_reader_open(fi_reader *reader, uint64_t heap, uint32_t schema)
{
    fi_ring *ring = reader->ring;
    fi_slot *s = ring->slots + reader->slot;
    uint64_t q = ++reader->q;
    reader->rows = 0;
    reader->is_open = true;
    fi_store_relaxed(&s->state, fi_word(q, reader->number, FI_FILLING, 0));
    fi_store_relaxed(&s->heap, fi_heap_word(heap));
    fi_store_relaxed(&s->schema, schema);
    /* G1, pairs with find_block: whoever finds the slot, by a new map or by chance by an old one,
     * sees its words. */
    fi_store_release(&s->filled, fi_filled_word(q, 0, 0));
    fi_store_release(map_entry(ring, reader->number, reader->each, q), reader->slot);
}

static void wake_parent(const fi_ring *ring)
{
    fi_fence(2); /* F2, pairs with F5: `filled` before the look at pwait */
    fi_wake_parent(ring, FI_ANY);
}

void fi_reader_publish(fi_reader *reader, uint32_t code)
{
    fi_ring *ring = reader->ring;
    fi_slot *s = ring->slots + reader->slot;
    fi_store_relaxed(fi_row_word(ring, reader->slot, reader->rows),
                     fi_word(reader->q, reader->number, code, 0));
    reader->rows++;
    reader->credit--;
    /* G3, pairs with fi_stream_ready: word, entry and bytes of the row, and of those before. */
    fi_store_release(&s->filled, fi_filled_word(reader->q, reader->rows, 0));
    wake_parent(ring);
}

void fi_reader_close(fi_reader *reader, bool last)
{
    fi_ring *ring = reader->ring;
    uint32_t flags = last ? FI_CLOSED | FI_LAST : FI_CLOSED;
    if (last) { /* what is left of the credit is the others'; the parent wakes them */
        fi_add_relaxed(&ring->board->credit, reader->credit);
        reader->credit = 0;
    }
    fi_store_release(&ring->slots[reader->slot].filled, /* G3 */
                     fi_filled_word(reader->q, reader->rows, flags));
    reader->has_slot = reader->is_open = false;
    wake_parent(ring);
}

/* ---- parent --------------------------------------------------------------------------------- */

int fi_stream_init(fi_stream *stream, fi_ring *ring, uint64_t credit, uint64_t most,
                   const fi_bell_pipe *bell_pipes)
{
    const fi_geometry *g = &ring->geometry;
    *stream = (fi_stream){
        .ring = ring, .each = g->slots / g->workers, .most = most, .bell_pipes = bell_pipes};
    if (g->slots % g->workers != 0 || stream->each < 2 || g->rows > FI_MOST_BLOCK_ROWS)
        return FI_E_RANGE;
    stream->source = calloc(g->workers, sizeof *stream->source);
    stream->phase = calloc(g->slots, sizeof *stream->phase);
    if (!stream->source || !stream->phase) {
        fi_stream_clear(stream);
        return ENOMEM;
    }
    for (uint32_t reader = 0; reader < g->workers; reader++)
        stream->source[reader].q = 1;
    fi_store_relaxed(&ring->board->credit, credit);
    return FI_OK;
}

void fi_stream_clear(fi_stream *stream)
{
    free(stream->source);
    free(stream->phase);
    *stream = (fi_stream){.ring = stream->ring};
}

/* Finds the next block of the reader, if it has begun one. */
static bool find_block(fi_stream *stream, uint32_t reader)
{
    fi_ring *ring = stream->ring;
    fi_source *source = stream->source + reader;
    /* G1, pairs with fi_reader_open. */
    uint32_t slot = fi_load_acquire(map_entry(ring, reader, stream->each, source->q));
    if (slot / stream->each != reader || stream->phase[slot] != FI_AT_READER)
        return false; /* not yet, or a broken hint: then the stream ends with the reader's death */
    uint64_t filled = fi_load_acquire(&ring->slots[slot].filled);
    if (filled >> 32 != (source->q & UINT32_MAX))
        return false;
    source->slot = slot;
    source->taken = 0;
    source->in_hand = true;
    stream->phase[slot] = FI_IN_HAND;
    return true;
}

int fi_stream_ready(fi_stream *stream, uint32_t reader, fi_part *part)
{
    fi_source *source = stream->source + reader;
    if (source->ended || (!source->in_hand && !find_block(stream, reader)))
        return FI_E_BUSY;
    /* G3, pairs with fi_reader_publish and fi_reader_close. */
    uint64_t filled = fi_load_acquire(&stream->ring->slots[source->slot].filled);
    uint32_t rows = (uint32_t)(filled >> 8) & FI_MOST_BLOCK_ROWS, flags = filled & 0xff;
    if (filled >> 32 != (source->q & UINT32_MAX) || rows < source->taken ||
        rows > stream->ring->geometry.rows || flags > (FI_CLOSED | FI_LAST))
        return FI_E_CORRUPT;
    *part = (fi_part){source->q, source->slot, source->taken, rows - source->taken, flags};
    return FI_OK;
}

uint32_t fi_stream_row_code(const fi_stream *stream, uint32_t reader, uint32_t row)
{
    const fi_source *source = stream->source + reader;
    uint64_t word = fi_load_relaxed(fi_row_word(stream->ring, source->slot, row)); /* after G3 */
    uint32_t code = fi_word_code(word);
    return word == fi_word(source->q, reader, code, 0) ? code : 0;
}

static void wake_reader(const fi_stream *stream, uint32_t reader)
{
    fi_bell_ring(stream->ring->bells + reader,
                 stream->bell_pipes ? stream->bell_pipes + reader : NULL);
}

static void wake_all(const fi_stream *stream)
{
    fi_fence(4); /* F4, pairs with F3: credit before the look at the bells */
    for (uint32_t reader = 0; reader < stream->ring->geometry.workers; reader++)
        wake_reader(stream, reader);
}

/* Tells the reader what has become of its slot: FI_CANCELLED, it may write there again; FI_READY, it is
 * lent. */
static void hand_back(const fi_stream *stream, uint32_t slot, uint32_t code)
{
    /* G2, pairs with free_slot: all that this process has read of the slot. */
    fi_store_release(&stream->ring->slots[slot].state, fi_word(0, 0, code, 0));
    fi_fence(4); /* F4, pairs with F3: the slot before the look at the bell */
    wake_reader(stream, slot / stream->each);
}

static void give_back(fi_stream *stream, uint32_t slot)
{
    stream->phase[slot] = FI_AT_READER;
    hand_back(stream, slot, FI_CANCELLED);
}

bool fi_stream_lend(fi_stream *stream, uint32_t reader)
{
    fi_source *source = stream->source + reader;
    uint64_t bytes = fi_slot_committed(stream->ring, source->slot);
    if (source->away + 2 >= stream->each)
        return false;
    for (uint32_t slot = reader * stream->each; slot < (reader + 1) * stream->each; slot++)
        if (stream->phase[slot] == FI_LENT)
            bytes += fi_slot_committed(stream->ring, slot);
    if (source->away >= 2 && bytes > stream->most)
        return false;
    stream->phase[source->slot] = FI_LENT;
    source->away++;
    return true;
}

void fi_stream_leave(fi_stream *stream, uint32_t reader, uint32_t flags)
{
    fi_source *source = stream->source + reader;
    source->in_hand = false;
    source->ended = (flags & FI_LAST) != 0;
    source->q++;
    if (stream->phase[source->slot] == FI_IN_HAND)
        give_back(stream, source->slot);
    else
        hand_back(stream, source->slot, FI_READY);
    if (source->ended)
        wake_all(stream);
}

void fi_stream_collect(fi_stream *stream)
{
    fi_returned *returned = &stream->ring->returned;
    uint32_t stack = fi_returned_take(returned), slot;
    bool not_again;
    while (fi_returned_next(returned, &stack, &slot, &not_again)) {
        if (not_again)
            continue; /* lent for ever */
        stream->source[slot / stream->each].away--;
        give_back(stream, slot);
    }
}

void fi_stream_grant(fi_stream *stream, uint64_t samples)
{
    fi_add_relaxed(&stream->ring->board->credit, samples);
    wake_all(stream);
}

/* Streams: samples of several readers, merged as they come, in the segment of a ring.
 *
 * A ring's batches are planned by the parent and come back in order. A stream knows nothing
 * beforehand: each worker is a *reader*, which publishes samples one after the other, and the
 * parent takes what there is. The segment is laid out as for a ring of W workers; its slots are
 * dealt out, S / W for each reader, and none is ever written by another. A reader fills one slot
 * after the other, a *block* of rows each. Every row can be taken as soon as it is published, so
 * a block that is slow to fill delays nothing, and what the parent takes at a time grows by
 * itself with the speed of the readers. README.md has the table of words and orders.
 */
#ifndef FI_STREAM_H
#define FI_STREAM_H

#include "os/fi_platform.h"
#include "ring/fi_ring.h"

/* The word `filled` of a slot: {sequence:32 | rows:24 | flags:8}. */
#define FI_MOST_BLOCK_ROWS ((1u << 24) - 1)
enum {
    FI_CLOSED = 1, /* the block gets no more rows */
    FI_LAST = 2    /* and no other follows it */
};

static inline uint64_t fi_filled_word(uint64_t q, uint32_t rows, uint32_t flags)
{
    return (q & UINT32_MAX) << 32 | (uint64_t)rows << 8 | flags;
}

/* ---- reader (one per worker process) ----------------------------------------------------- */

typedef struct fi_reader {
    fi_ring *ring;
    uint32_t number;
    int bell_pipe;    /* read end, or -1 for a futex */
    uint32_t each;    /* slots of this reader */
    uint64_t most;    /* bytes of pages under blocks in flight, where those are more than two */
    uint64_t q;       /* sequence of the current block, or of the last one; 0 before the first */
    uint32_t slot;    /* of the current block */
    uint32_t rows;    /* published of it */
    uint64_t credit;  /* samples that it may publish, taken from the board */
    bool has_slot;    /* it has a slot, which may still have to be opened */
    bool is_open;     /* the current block is in the map */
} fi_reader;

void fi_reader_init(fi_reader *reader, fi_ring *ring, uint32_t number, int bell_pipe,
                    uint64_t most);

/* Blocks until one more sample may be published: it has a slot, and credit. False: stop. A
 * slot that is not open yet wants fi_reader_open. */
bool fi_reader_begin(fi_reader *reader);
/* The same, if it need not look further than at what it has. */
static inline bool fi_reader_is_ready(const fi_reader *reader)
{
    return reader->is_open && reader->credit > 0 &&
           !fi_load_relaxed(&reader->ring->board->stop);
}

/* Takes a slot without waiting, for the end of a stream without samples; false if none is free. */
bool fi_reader_find_slot(fi_reader *reader);

/* Begins the block in the current slot. `heap`: where the bump allocation starts. */
void fi_reader_open(fi_reader *reader, uint64_t heap, uint32_t schema);

/* Publishes the next row of the current block, whose bytes are complete. */
void fi_reader_publish(fi_reader *reader, uint32_t code);

/* Ends the current block, which is open; `last` ends the stream. */
void fi_reader_close(fi_reader *reader, bool last);

/* ---- parent ------------------------------------------------------------------------------- */

/* Owner of a slot: the reader; the parent, which copies out of it; or views of it. */
enum fi_stream_phase { FI_AT_READER, FI_IN_HAND, FI_LENT };

/* The parent's own record of a reader. */
typedef struct fi_source {
    uint64_t q;     /* sequence of the current block, or of the next one */
    uint32_t slot;  /* of the current block */
    uint32_t taken; /* rows; the caller adds what it takes */
    uint32_t away;  /* slots lent, also those that a forked child may have for ever */
    bool in_hand;
    bool ended;
} fi_source;

typedef struct fi_stream {
    fi_ring *ring;
    uint32_t each;
    uint64_t most;         /* as fi_reader's, for what is lent */
    fi_source *source;     /* W */
    uint8_t *phase;        /* S, of enum fi_stream_phase */
    const fi_bell_pipe *bell_pipes;
} fi_stream;

/* Samples of a reader that can be taken now. */
typedef struct fi_part {
    uint64_t q;
    uint32_t slot;
    uint32_t first, count; /* rows; count may be 0 */
    uint32_t flags;        /* FI_CLOSED, FI_LAST: the block ends after these rows */
} fi_part;

/* The ring's workers are the readers. `credit`: samples in flight at most; `most`: bytes of pages
 * that are lent of one reader, where those are more than two slots. Allocates; ENOMEM. */
int fi_stream_init(fi_stream *stream, fi_ring *ring, uint64_t credit, uint64_t most,
                   const fi_bell_pipe *bell_pipes);
void fi_stream_clear(fi_stream *stream);

/* FI_E_BUSY: no block of this reader is there, or it has ended; FI_E_CORRUPT: a word holds what no
 * reader writes. */
int fi_stream_ready(fi_stream *stream, uint32_t reader, fi_part *part);
/* Code of a published row of the current block; 0 if its word is none of that block's. */
uint32_t fi_stream_row_code(const fi_stream *stream, uint32_t reader, uint32_t row);
/* Before the first row of a block is taken: may its slot be viewed, for as long as the program likes?
 * Always two slots of each reader are left, so that holding views costs memory, never progress. */
bool fi_stream_lend(fi_stream *stream, uint32_t reader);
/* All rows of a closed block are taken. Its slot goes back to the reader; if lent, only when it has been
 * pushed onto the ring's `returned`, after its last view, once for each fi_stream_lend. */
void fi_stream_leave(fi_stream *stream, uint32_t reader, uint32_t flags);

/* Gives the slots on the ring's `returned` back to their readers. */
void fi_stream_collect(fi_stream *stream);

/* Lets readers publish that many samples more, and wakes those that sleep. */
void fi_stream_grant(fi_stream *stream, uint64_t samples);

#endif

/* A stream in a segment of its own, readers that publish what can be recognised, and a parent that
 * checks it: content, order of each reader, nothing twice, nothing left out, no more in flight than
 * allowed, and lent slots that nobody writes to. */
#ifndef FASTITER_TESTS_STREAM_FIXTURE_H
#define FASTITER_TESTS_STREAM_FIXTURE_H

#include <string.h>
#include <unistd.h>

#include "check.h"
#include "map_slots.h"
#include "os/fi_platform.h"
#include "ring/fi_stream.h"

enum { MOST_READERS = 12, BLOCK_ROWS = 16, STREAM_SLOT_BYTES = 1 << 16, ROW_BYTES = 192 };

typedef struct channel {
    fi_ring ring;
    fi_stream stream;
    uint64_t control;
    uint64_t credit;
    int event[2];
    fi_bell_pipe bell_pipes[MOST_READERS];
    bool pipes;
    uint64_t random;
    uint64_t next[MOST_READERS];  /* number of the sample that comes next */
    uint64_t ended_at[MOST_READERS];
} channel;

static inline uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline uint64_t draw(uint64_t *random, uint64_t below)
{
    *random = mix(*random);
    return *random % below;
}

static inline void channel_open(channel *c, uint32_t readers, uint32_t each, uint64_t credit,
                                bool pipes, uint64_t seed)
{
    fi_geometry geometry = {readers * each, readers, BLOCK_ROWS, 1, STREAM_SLOT_BYTES};
    uint64_t total;
    int fd;
    void *base;
    *c = (channel){.random = seed, .credit = credit, .pipes = pipes || fi_bells_need_pipes()};
    CHECK_EQ(fi_ring_size(&geometry, &c->control, &total), FI_OK);
    CHECK_EQ(fi_shm_open(total, &fd), FI_OK);
    CHECK_EQ(fi_shm_map(fd, 0, c->control, false, &base), FI_OK);
    CHECK_EQ(fi_event_open(c->event), FI_OK);
    CHECK_EQ(fi_ring_attach(&c->ring, &geometry, base, fd, c->event[1]), FI_OK);
    map_slots(&c->ring);
    for (uint32_t reader = 0; c->pipes && reader < readers; reader++)
        CHECK_EQ(fi_bell_pipe_open(c->bell_pipes + reader), FI_OK);
    CHECK_EQ(fi_stream_init(&c->stream, &c->ring, credit, 4 * STREAM_SLOT_BYTES,
                            c->pipes ? c->bell_pipes : NULL),
             FI_OK);
}

static inline void channel_close(channel *c)
{
    for (uint32_t reader = 0; c->pipes && reader < c->ring.geometry.workers; reader++)
        fi_bell_pipe_close(c->bell_pipes + reader);
    fi_stream_clear(&c->stream);
    fi_ring_detach(&c->ring);
    CHECK_EQ(fi_shm_unmap(c->ring.base, c->control), FI_OK);
    close(c->ring.fd);
    close(c->event[0]);
    if (c->event[1] != c->event[0])
        close(c->event[1]);
}

static inline void reader_init(fi_reader *r, channel *c, uint32_t number)
{
    fi_reader_init(r, &c->ring, number, c->pipes ? c->bell_pipes[number].reader : -1,
                   4 * STREAM_SLOT_BYTES);
}

static inline void write_row(char *place, uint32_t reader, uint64_t number)
{
    uint64_t words[ROW_BYTES / 8];
    for (uint32_t i = 0; i < ROW_BYTES / 8; i++)
        words[i] = mix(number * 64 + reader) + i;
    memcpy(place, words, sizeof words);
}

static inline void check_row(const char *place, uint32_t reader, uint64_t number)
{
    uint64_t words[ROW_BYTES / 8];
    memcpy(words, place, sizeof words);
    for (uint32_t i = 0; i < ROW_BYTES / 8; i++)
        CHECK_EQ(words[i], mix(number * 64 + reader) + i);
}

/* Makes a slot ready to be written to; the first BLOCK_ROWS rows lie one after the other. */
static inline void begin_block(fi_reader *r)
{
    uint64_t need, have;
    CHECK_EQ(fi_slot_commit(r->ring, r->slot, 0, BLOCK_ROWS * ROW_BYTES, &need, &have), FI_OK);
    fi_reader_open(r, BLOCK_ROWS * ROW_BYTES, 7);
}

/* One reader's stream of `samples`; false if it was stopped before the end. */
static inline bool read_all(fi_reader *r, uint64_t samples, uint64_t *random)
{
    for (uint64_t number = 0; number < samples; number++) {
        if (r->is_open && (r->rows == BLOCK_ROWS || draw(random, 24) == 0))
            fi_reader_close(r, false);
        if (!fi_reader_begin(r))
            return false;
        if (!r->is_open)
            begin_block(r);
        write_row(fi_slot_payload(r->ring, r->slot) + r->rows * ROW_BYTES, r->number, number);
        fi_reader_publish(r, FI_ROW_OK);
    }
    if (!r->is_open) {
        if (!r->has_slot)
            CHECK(fi_reader_find_slot(r));
        begin_block(r);
    }
    fi_reader_close(r, true);
    return true;
}

static inline void check_rows(const channel *c, uint32_t reader, const fi_part *part)
{
    CHECK_EQ(atomic_load_explicit(&c->ring.slots[part->slot].schema, memory_order_relaxed), 7);
    for (uint32_t i = 0; i < part->count; i++) {
        CHECK_EQ(fi_stream_row_code(&c->stream, reader, part->first + i), FI_ROW_OK);
        check_row(fi_slot_payload(&c->ring, part->slot) + (part->first + i) * ROW_BYTES, reader,
                  c->next[reader] + i);
    }
}

#endif

/* Streams step by step, in one thread. */
#include "stream_fixture.h"

static void publish(fi_reader *r, uint32_t count, uint64_t first)
{
    for (uint32_t i = 0; i < count; i++) {
        CHECK(fi_reader_begin(r));
        if (!r->is_open)
            begin_block(r);
        write_row(fi_slot_payload(r->ring, r->slot) + r->rows * ROW_BYTES, r->number, first + i);
        fi_reader_publish(r, FI_ROW_OK);
    }
}

static fi_part part_of(channel *c, uint32_t reader)
{
    fi_part part;
    CHECK_EQ(fi_stream_ready(&c->stream, reader, &part), FI_OK);
    return part;
}

static void take(channel *c, uint32_t reader, fi_part part)
{
    check_rows(c, reader, &part);
    c->next[reader] += part.count;
    c->stream.source[reader].taken += part.count;
}

static bool is_rung(channel *c)
{
    uint8_t ready;
    CHECK_EQ(fi_wait(c->event, 1, 0, &ready), FI_OK);
    fi_event_drain(c->event[0]);
    return ready;
}

static void test_rows_are_taken_as_they_are_published(void)
{
    channel c;
    fi_reader r;
    fi_part part;
    channel_open(&c, 2, 3, 100, false, 1);
    reader_init(&r, &c, 1);
    CHECK_EQ(fi_stream_ready(&c.stream, 1, &part), FI_E_BUSY);
    for (uint64_t block = 0; block < 10; block++) {
        publish(&r, 2, 5 * block);
        part = part_of(&c, 1);
        CHECK_EQ(part.first, 0);
        CHECK_EQ(part.count, 2);
        CHECK_EQ(part.slot / 3, 1);
        take(&c, 1, part);
        CHECK_EQ(part_of(&c, 1).count, 0);
        publish(&r, 3, 5 * block + 2);
        fi_reader_close(&r, block == 9);
        part = part_of(&c, 1);
        CHECK_EQ(part.first, 2);
        CHECK_EQ(part.count, 3);
        CHECK_EQ(part.flags, block == 9 ? FI_CLOSED | FI_LAST : FI_CLOSED);
        take(&c, 1, part);
        fi_stream_leave(&c.stream, 1, part.flags);
        CHECK_EQ(fi_stream_ready(&c.stream, 1, &part), FI_E_BUSY);
    }
    CHECK(c.stream.source[1].ended);
    CHECK(!c.stream.source[0].ended);
    CHECK_EQ(fi_stream_ready(&c.stream, 0, &part), FI_E_BUSY);
    channel_close(&c);
}

static void test_a_stream_without_samples_ends(void)
{
    channel c;
    fi_reader r;
    uint64_t random = 1;
    channel_open(&c, 1, 2, 1, false, 1);
    reader_init(&r, &c, 0);
    CHECK(read_all(&r, 0, &random));
    fi_part part = part_of(&c, 0);
    CHECK_EQ(part.count, 0);
    CHECK_EQ(part.flags, FI_CLOSED | FI_LAST);
    channel_close(&c);
}

static void test_the_parent_is_rung_when_it_sleeps(void)
{
    channel c;
    fi_reader r;
    channel_open(&c, 1, 2, 100, false, 1);
    reader_init(&r, &c, 0);
    publish(&r, 1, 0);
    CHECK(!is_rung(&c));
    atomic_store(c.ring.pwait, FI_ANY);
    publish(&r, 3, 1);
    CHECK(is_rung(&c));
    CHECK_EQ(atomic_load(c.ring.pwait), 0);
    publish(&r, 1, 4);
    CHECK(!is_rung(&c));
    atomic_store(c.ring.pwait, FI_ANY);
    fi_reader_close(&r, true);
    CHECK(is_rung(&c));
    channel_close(&c);
}

static void test_credit_is_shared_and_bounds_what_is_in_flight(void)
{
    channel c;
    fi_reader a, b;
    channel_open(&c, 2, 3, 9, false, 1);
    reader_init(&a, &c, 0);
    reader_init(&b, &c, 1);
    atomic_store(&c.ring.board->stop, 0);
    publish(&a, 1, 0);
    CHECK_EQ(atomic_load(&c.ring.board->credit), 7); /* a quarter of 9 for two readers is 2 */
    CHECK_EQ(a.credit, 1);
    publish(&b, 1, 0);
    CHECK_EQ(b.credit, 0);
    publish(&a, 7, 1); /* all the rest */
    CHECK_EQ(a.credit + atomic_load(&c.ring.board->credit), 0);
    fi_stream_grant(&c.stream, 1);
    publish(&b, 1, 1);
    CHECK_EQ(atomic_load(&c.ring.board->credit), 0);
    atomic_store(&c.ring.board->stop, 1);
    CHECK(!fi_reader_begin(&b));
    channel_close(&c);
}

static void test_two_slots_are_never_lent(void)
{
    channel c;
    fi_reader r;
    uint32_t lent = 0, slots[8];
    channel_open(&c, 1, 5, 1000, false, 1);
    reader_init(&r, &c, 0);
    for (uint64_t block = 0; block < 20; block++) {
        publish(&r, 2, 2 * block);
        fi_reader_close(&r, false);
        fi_part part = part_of(&c, 0);
        if (fi_stream_lend(&c.stream, 0))
            slots[lent++] = part.slot;
        take(&c, 0, part);
        fi_stream_leave(&c.stream, 0, part.flags);
    }
    CHECK_EQ(lent, 3);
    CHECK_EQ(c.stream.source[0].away, 3);
    for (uint32_t i = 0; i < lent; i++)
        check_row(fi_slot_payload(&c.ring, slots[i]), 0, 2 * i);
    fi_returned_push(&c.ring.returned, slots[1], false);
    fi_returned_push(&c.ring.returned, slots[0], false);
    fi_stream_collect(&c.stream);
    CHECK_EQ(c.stream.source[0].away, 1);
    fi_returned_push(&c.ring.returned, slots[2], true);
    fi_stream_collect(&c.stream);
    CHECK_EQ(c.stream.source[0].away, 1);
    for (uint64_t block = 20; block < 40; block++) {
        publish(&r, 2, 2 * block);
        CHECK(r.slot != slots[2]);
        fi_reader_close(&r, false);
        fi_part part = part_of(&c, 0);
        take(&c, 0, part);
        fi_stream_leave(&c.stream, 0, part.flags);
    }
    check_row(fi_slot_payload(&c.ring, slots[2]), 0, 4);
    channel_close(&c);
}

static void commit_whole_slot(fi_reader *r)
{
    uint64_t need, have;
    CHECK_EQ(fi_slot_commit(r->ring, r->slot, 0, STREAM_SLOT_BYTES, &need, &have), FI_OK);
}

static void test_bytes_in_flight_are_bounded_beyond_two_blocks(void)
{
    channel c;
    fi_reader r;
    channel_open(&c, 1, 8, 1000, false, 1);
    reader_init(&r, &c, 0);
    r.most = c.stream.most = 3 * STREAM_SLOT_BYTES;
    for (uint32_t block = 0; block < 3; block++) {
        CHECK(fi_reader_begin(&r));
        begin_block(&r);
        commit_whole_slot(&r);
        fi_reader_close(&r, false);
    }
    CHECK(fi_reader_find_slot(&r)); /* its pages are still to come */
    commit_whole_slot(&r);
    r.has_slot = false;
    CHECK(!fi_reader_find_slot(&r));
    for (uint32_t block = 0; block < 3; block++) { /* what is lent is in flight no more */
        fi_part part = part_of(&c, 0);
        CHECK(fi_stream_lend(&c.stream, 0));
        fi_stream_leave(&c.stream, 0, part.flags);
        CHECK(fi_reader_find_slot(&r));
        begin_block(&r);
        commit_whole_slot(&r);
        fi_reader_close(&r, false);
    }
    part_of(&c, 0);
    CHECK(!fi_stream_lend(&c.stream, 0)); /* three slots of bytes are */
    channel_close(&c);
}

static void test_corrupt_words_are_noticed(void)
{
    channel c;
    fi_reader r;
    fi_part part;
    channel_open(&c, 1, 2, 100, false, 1);
    reader_init(&r, &c, 0);
    atomic_store(&c.ring.map[1], 77);
    CHECK_EQ(fi_stream_ready(&c.stream, 0, &part), FI_E_BUSY);
    publish(&r, 2, 0);
    take(&c, 0, part_of(&c, 0));
    _Atomic uint64_t *filled = &c.ring.slots[r.slot].filled;
    const uint64_t wrong[] = {fi_filled_word(2, 2, 0), fi_filled_word(1, 1, 0),
                              fi_filled_word(1, BLOCK_ROWS + 1, 0), fi_filled_word(1, 2, 4)};
    for (uint32_t i = 0; i < 4; i++) {
        atomic_store(filled, wrong[i]);
        CHECK_EQ(fi_stream_ready(&c.stream, 0, &part), FI_E_CORRUPT);
    }
    atomic_store(filled, fi_filled_word(1, 2, 0));
    CHECK_EQ(fi_stream_ready(&c.stream, 0, &part), FI_OK);
    atomic_store(fi_row_word(&c.ring, r.slot, 1), fi_word(1, 3, FI_ROW_OK, 0));
    CHECK_EQ(fi_stream_row_code(&c.stream, 0, 0), FI_ROW_OK);
    CHECK_EQ(fi_stream_row_code(&c.stream, 0, 1), 0);
    channel_close(&c);
}

static void test_wrong_geometries_are_refused(void)
{
    channel c;
    fi_stream other;
    channel_open(&c, 2, 3, 1, false, 1);
    c.ring.geometry.slots = 5;
    CHECK_EQ(fi_stream_init(&other, &c.ring, 1, 1, NULL), FI_E_RANGE);
    c.ring.geometry.slots = 2;
    CHECK_EQ(fi_stream_init(&other, &c.ring, 1, 1, NULL), FI_E_RANGE);
    c.ring.geometry.slots = 6;
    channel_close(&c);
}

int main(void)
{
    test_rows_are_taken_as_they_are_published();
    test_a_stream_without_samples_ends();
    test_the_parent_is_rung_when_it_sleeps();
    test_credit_is_shared_and_bounds_what_is_in_flight();
    test_two_slots_are_never_lent();
    test_bytes_in_flight_are_bounded_beyond_two_blocks();
    test_corrupt_words_are_noticed();
    test_wrong_geometries_are_refused();
    return 0;
}

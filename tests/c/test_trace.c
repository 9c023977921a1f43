/* Records of the workers' time. */
#include "ring_fixture.h"

#include "ring/fi_trace.h"

static fi_event events[FI_TRACE_EVENTS];

static void put(fixture *f, uint32_t worker, int64_t began)
{
    fi_event event = {.began_ns = began, .took_ns = 2 * began, .index = -began, .batch = 9};
    fi_trace_put(&f->ring, worker, FI_EVENT_WRITE, &event, 70000);
}

static void test_record(void)
{
    fixture f;
    uint64_t need, have;
    set_up(&f, 0);
    CHECK(!fi_traces(&f.ring));
    CHECK_EQ(fi_trace_start(&f.ring, &need, &have), FI_OK);
    CHECK(fi_traces(&f.ring));
    put(&f, 1, 5);
    put(&f, 1, 6);
    put(&f, 2, 7);
    fi_trace_stop(&f.ring);
    CHECK(!fi_traces(&f.ring));
    CHECK_EQ(fi_trace_read(&f.ring, 0, events), 0);
    CHECK_EQ(fi_trace_read(&f.ring, 1, events), 2);
    CHECK(events[0].began_ns == 5 && events[1].began_ns == 6);
    CHECK(events[1].took_ns == 12 && events[1].index == -6 && events[1].batch == 9);
    CHECK(events[1].rows_kind >> 8 == 70000 && (events[1].rows_kind & 255) == FI_EVENT_WRITE);
    CHECK_EQ(fi_trace_start(&f.ring, &need, &have), FI_OK); /* anew */
    CHECK_EQ(fi_trace_read(&f.ring, 1, events), 0);
    tear_down(&f);
}

/* The last ones are kept, but the oldest of them: it might be overwritten at this moment. */
static void test_overflow(void)
{
    fixture f;
    uint64_t need, have;
    int64_t more = 100, last = (int64_t)FI_TRACE_EVENTS + more;
    set_up(&f, 0);
    CHECK_EQ(fi_trace_start(&f.ring, &need, &have), FI_OK);
    for (int64_t i = 1; i <= last; i++)
        put(&f, 0, i);
    uint32_t count = fi_trace_read(&f.ring, 0, events);
    CHECK_EQ(count, FI_TRACE_EVENTS - 1);
    for (uint32_t i = 0; i < count; i++)
        CHECK_EQ(events[i].began_ns, last - count + 1 + i);
    tear_down(&f);
}

/* The worker itself records its sleep. */
static void test_sleep(void)
{
    fixture f;
    fi_claim claim;
    uint64_t need, have;
    set_up(&f, 0);
    now = &f;
    CHECK_EQ(fi_worker_next(f.workers, &claim), FI_CLAIM_STOP); /* after a sleep that is not recorded */
    atomic_store(&f.ring.board->stop, 0);
    CHECK_EQ(fi_trace_start(&f.ring, &need, &have), FI_OK);
    CHECK_EQ(fi_worker_next(f.workers, &claim), FI_CLAIM_STOP);
    CHECK_EQ(fi_trace_read(&f.ring, 0, events), 1);
    CHECK_EQ(events[0].rows_kind, FI_EVENT_WAIT);
    CHECK(events[0].began_ns > 0 && events[0].took_ns >= 0);
    tear_down(&f);
}

int main(void)
{
    test_record();
    test_overflow();
    test_sleep();
    return 0;
}

/* The ring in one thread: workers that are slow, or neither go on nor end. Their rows are fetched a
 * second time, or their batch moves. */
#include "ring/fi_views.h"
#include "ring_fixture.h"

static void test_a_batch_moves(void)
{
    fixture f;
    fi_claim stuck, claim;
    fi_loss losses[ROWS];
    uint32_t to, from;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 4);
    from = slot_of(&f, q);
    CHECK_EQ(next_claim(&f, 2, &stuck), FI_CLAIM_ROWS);
    own_all(&f, 2, &stuck, 0);
    CHECK_EQ(next_claim(&f, 1, &claim), FI_CLAIM_ROWS); /* another one is in the old slot */
    CHECK_EQ(fi_parent_next_slot(&f.parent, 0, &to), FI_OK);
    CHECK_EQ(fi_parent_move(&f.parent, from, to, 1, HEAP, false), FI_OK);
    CHECK(fi_parent_give_up_row(&f.parent, to, 3));
    CHECK(!fi_parent_give_up_row(&f.parent, to, 3));
    fi_parent_restore_hints(&f.parent);
    CHECK_EQ(slot_of(&f, q), to);
    CHECK(to != from);
    CHECK(row_word(&f, to, 3) == fi_word(q, 0, FI_POISON, 0));
    CHECK(!fi_row_own(f.workers + 1, &claim, claim.first)); /* nothing more begins there */
    work_all(&f, 1);
    uint32_t flags, irregular, row;
    uint64_t word;
    CHECK_EQ(fi_parent_ready(&f.parent, &row, &flags), FI_OK);
    CHECK_EQ(row, to);
    CHECK_EQ(fi_parent_check(&f.parent, to, &irregular, &row, &word), FI_OK);
    CHECK_EQ(irregular, 1);
    fi_parent_take(&f.parent, to, true);
    collect(&f.parent);
    CHECK_EQ(f.parent.draining, 1); /* the old slot stays the stuck worker's, */
    CHECK(fi_parent_losses(&f.parent, 2, losses, ROWS) > 0);
    own_all(&f, 2, &stuck, FI_ROW_OK);
    for (row = stuck.first; row < stuck.first + stuck.count; row++)
        fi_row_done(f.workers + 2, &stuck, row, FI_ROW_OK);
    collect(&f.parent); /* until it lets go */
    CHECK_EQ(f.parent.draining, 0);
    CHECK_EQ(f.parent.free_count, SLOTS);
    tear_down(&f);
}

/* Worker w has taken LATE_NS for a row. */
static void has_taken(fixture *f, uint32_t w)
{
    fi_worker_stat *stat = f->ring.worker_stats + w;
    fi_worker_stat_count(stat, 1, 0, 0);
    fi_worker_stat_sampled(stat, LATE_NS, 0);
}

/* A row is promised to worker 0, which is slow, and worker 1 hedges it. */
static uint64_t begin_hedge_of_slow_row(fixture *f, fi_claim *first, fi_claim *hedge)
{
    int64_t index;
    set_up(f, 0);
    fi_parent_set_hedge(&f->parent, 1);
    f->workers[0].hedges = f->workers[1].hedges = f->workers[2].hedges = true;
    uint64_t q = schedule(f, 2);
    CHECK_EQ(next_claim(f, 0, first), FI_CLAIM_ROWS);
    CHECK(first->first == 0 && first->count == 1);
    CHECK(fi_row_promise(f->workers, first, 0, fi_now_ns(), &index));
    CHECK_EQ(index, 1000 * (int64_t)q);
    CHECK_EQ(next_claim(f, 1, hedge), FI_CLAIM_ROWS);
    CHECK(fi_row_promise(f->workers + 1, hedge, 1, fi_now_ns(), &index));
    fi_claim other = *hedge;
    other.fetcher = 2;
    CHECK(!fi_row_promise(f->workers + 2, &other, 1, fi_now_ns(), &index)); /* not twice */
    CHECK(fi_row_win(f->workers + 1, hedge, 1));
    fi_row_done(f->workers + 1, hedge, 1, FI_ROW_OK);
    has_taken(f, 1);
    CHECK_EQ(next_claim(f, 1, hedge), CLAIM_SLEEP); /* not late yet */
    CHECK(nap > 0 && nap <= 3 * LATE_NS);
    fi_store_relaxed(&f->ring.worker_stats[0].since, fi_now_ns() - 3 * LATE_NS);
    CHECK_EQ(next_claim(f, 1, hedge), FI_CLAIM_ROWS);
    CHECK(hedge->first == 0 && hedge->count == 1 && hedge->fetcher == 0);
    CHECK(fi_row_promise(f->workers + 1, hedge, 0, fi_now_ns(), &index));
    CHECK_EQ(index, 1000 * (int64_t)q);
    CHECK(!fi_row_promise(f->workers + 2, hedge, 0, fi_now_ns(), &index)); /* nobody hedges it again */
    CHECK_EQ(next_claim(f, 2, &other), CLAIM_SLEEP);
    CHECK_EQ(nap, FI_FOR_EVER);
    return q;
}

static void test_the_first_to_end_a_row_writes_it(void)
{
    for (uint32_t faster = 0; faster < 2; faster++) {
        fixture f;
        fi_claim claims[2];
        uint32_t won;
        uint64_t q = begin_hedge_of_slow_row(&f, claims, claims + 1);
        uint32_t slot = claims->slot;
        CHECK(row_word(&f, slot, 0) == fi_word(q, 0, FI_FETCH, FI_HEDGED));
        CHECK(fi_row_win(f.workers + faster, claims + faster, 0));
        CHECK(row_word(&f, slot, 0) == fi_word(q, faster, FI_OWNED, 0));
        CHECK(!fi_row_win(f.workers + !faster, claims + !faster, 0));
        fi_row_done(f.workers + faster, claims + faster, 0, FI_ROW_OK);
        CHECK(!fi_row_win(f.workers + !faster, claims + !faster, 0));
        CHECK_EQ(next_claim(&f, faster, claims + faster), FI_CLAIM_FINISH);
        fi_worker_ready(f.workers + faster, claims + faster, 0);
        CHECK_EQ(fi_parent_hedged(&f.parent, &won), 1);
        CHECK_EQ(won, faster);
        take_ready(&f, true);
        tear_down(&f);
    }
}

static void test_a_worker_dies_whose_row_is_hedged(void)
{
    fixture f;
    fi_claim claims[2];
    fi_loss losses[2];
    uint64_t q = begin_hedge_of_slow_row(&f, claims, claims + 1);
    CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, 2), 1);
    CHECK(fi_row_win(f.workers + 1, claims + 1, 0)); /* between the two halves of R2 */
    fi_parent_return(&f.parent, 0, true, losses, true);
    CHECK(row_word(&f, claims->slot, 0) == fi_word(q, 1, FI_OWNED, 0));
    CHECK_EQ(recover(&f, 1, false), 1); /* the hedger dies, too */
    CHECK(row_word(&f, claims->slot, 0) == fi_word(q, 0, FI_TODO, 0));
    tear_down(&f);

    begin_hedge_of_slow_row(&f, claims, claims + 1);
    CHECK_EQ(recover(&f, 0, false), 1);
    CHECK(fi_row_win(f.workers + 1, claims + 1, 0)); /* its example is as good as before */
    fi_row_done(f.workers + 1, claims + 1, 0, FI_ROW_OK);
    work_all(&f, 2);
    take_ready(&f, true);
    tear_down(&f);
}

/* Of a worker that lives, rows are taken back that it fetches, and no others. */
static void test_rows_are_taken_from_a_stuck_worker(void)
{
    fixture f;
    fi_claim claim;
    fi_loss losses[3];
    int64_t index;
    set_up(&f, 0);
    uint64_t q = schedule(&f, 2);
    f.workers[0].least = 2;
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    for (uint32_t row = 0; row < 2; row++)
        CHECK(fi_row_promise(f.workers, &claim, row, fi_now_ns(), &index));
    CHECK(fi_row_win(f.workers, &claim, 0));
    CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, 3), 2);
    for (uint32_t row = 0; row < 2; row++)
        fi_parent_return(&f.parent, 0, false, losses + row, false);
    CHECK(row_word(&f, claim.slot, 0) == fi_word(q, 0, FI_OWNED, 0));
    CHECK(row_word(&f, claim.slot, 1) == fi_word(q, 0, FI_TODO, 0));
    fi_parent_restore_hints(&f.parent);
    work_all(&f, 1);
    CHECK(!fi_row_win(f.workers, &claim, 1));
    fi_row_done(f.workers, &claim, 0, FI_ROW_OK);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_FINISH);
    CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, 3), 1);
    fi_parent_return(&f.parent, 0, false, losses, false);
    CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, 3), 1);
    fi_worker_ready(f.workers, &claim, 0);
    take_ready(&f, true);
    tear_down(&f);
}

/* Cheap rows: the word does not say who fetches the row, and others find it by its index. */
static void test_rows_that_are_announced_only(void)
{
    for (uint32_t end = 0; end < 5; end++) {
        fixture f;
        fi_claim claim, hedge;
        fi_loss losses[3];
        int64_t index;
        set_up(&f, 0);
        fi_parent_set_hedge(&f.parent, 1);
        f.workers[1].hedges = true;
        uint64_t q = schedule(&f, 2);
        f.workers[0].least = 2;
        CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
        CHECK_EQ(claim.count, 2);
        CHECK(fi_row_announce(f.workers, &claim, 0, fi_now_ns(), &index));
        CHECK(fi_row_win(f.workers, &claim, 0));
        CHECK(!fi_row_announce(f.workers, &claim, 0, fi_now_ns(), &index));
        fi_worker_stat_fetch_ends(f.ring.worker_stats);
        fi_row_done(f.workers, &claim, 0, FI_ROW_OK);
        CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, 3), 0);
        CHECK(fi_row_announce(f.workers, &claim, 1, fi_now_ns(), &index));
        CHECK_EQ(index, 1000 * (int64_t)q + 1);
        CHECK(row_word(&f, claim.slot, 1) == fi_word(q, 0, FI_TODO, 0));
        CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, 3), 1);
        CHECK(losses->slot == claim.slot && losses->row == 1 && losses->q == q);
        if (end < 2) { /* it takes too long, or has died of the row too often */
            fi_parent_return(&f.parent, 0, end == 1, losses, end == 1);
            CHECK_EQ(fi_parent_losses(&f.parent, 0, losses, 3), 0);
            CHECK(row_word(&f, claim.slot, 1) ==
                  fi_word(q, 0, end == 1 ? FI_POISON : FI_TODO, 0));
            fi_parent_rewind(&f.parent, 0);
            work_all(&f, 2);
        } else { /* it is slow: whoever is faster writes the row, also if the slow one dies */
            has_taken(&f, 2);
            fi_store_relaxed(&f.ring.worker_stats[0].since, fi_now_ns() - 3 * LATE_NS);
            CHECK_EQ(next_claim(&f, 1, &hedge), FI_CLAIM_ROWS);
            CHECK(hedge.first == 1 && hedge.count == 1 && hedge.fetcher == 0);
            CHECK(fi_row_promise(f.workers + 1, &hedge, 1, fi_now_ns(), &index));
            CHECK(row_word(&f, claim.slot, 1) == fi_word(q, 1, FI_FETCH, FI_HEDGED));
            CHECK_EQ(index, 1000 * (int64_t)q + 1);
            if (end == 4)
                CHECK_EQ(recover(&f, 1, false), 1);
            uint32_t winner = end == 2;
            CHECK(fi_row_win(f.workers + winner, winner ? &hedge : &claim, 1));
            CHECK(!fi_row_win(f.workers + !winner, winner ? &claim : &hedge, 1));
            fi_row_done(f.workers + winner, &claim, 1, FI_ROW_OK);
            work_all(&f, 2);
        }
        if (end != 1) /* an error takes its place */
            take_ready(&f, true);
        tear_down(&f);
    }
}

static void test_a_stuck_fetch_holds_no_slot(void)
{
    fixture f;
    fi_claim claims[2];
    begin_hedge_of_slow_row(&f, claims, claims + 1);
    fi_parent_reset(&f.parent);
    collect(&f.parent);
    CHECK_EQ(f.parent.free_count, SLOTS);
    CHECK(!fi_row_win(f.workers, claims, 0) && !fi_row_win(f.workers + 1, claims + 1, 0));
    tear_down(&f);
}

static void test_rows_behind_a_slow_one_and_the_share_of_hedges(void)
{
    fixture f;
    fi_claim claim, other;
    int64_t index;
    set_up(&f, 0);
    fi_parent_set_hedge(&f.parent, 0.01);
    f.workers[0].hedges = f.workers[1].hedges = true;
    schedule(&f, ROWS);
    CHECK_EQ(next_claim(&f, 0, &claim), FI_CLAIM_ROWS);
    CHECK(claim.count > 1);
    CHECK(fi_row_promise(f.workers, &claim, 0, fi_now_ns(), &index));
    for (int kind; (kind = next_claim(&f, 1, &other)) == FI_CLAIM_ROWS;)
        own_all(&f, 1, &other, FI_ROW_OK);
    CHECK_EQ(nap, LATE_NS);
    has_taken(&f, 1);
    fi_store_relaxed(&f.ring.worker_stats[0].since, fi_now_ns() - 4 * LATE_NS);
    for (uint32_t row = 1; row < claim.count; row++) {
        CHECK_EQ(next_claim(&f, 1, &other), FI_CLAIM_ROWS);
        CHECK(other.first == row && other.count == 1 && other.fetcher == 1);
        own_all(&f, 1, &other, FI_ROW_OK);
    }
    CHECK_EQ(next_claim(&f, 1, &other), CLAIM_SLEEP); /* 0.01 x 64 rows is none */
    CHECK_EQ(nap, LATE_NS);
    schedule(&f, ROWS);
    CHECK_EQ(next_claim(&f, 1, &other), FI_CLAIM_ROWS);
    CHECK(other.first == 0 && other.fetcher == 0);
    tear_down(&f);
}

/* Hedges that workers make of batches one after the other, as many as they may. */
static uint32_t hedges_of(fixture *f, uint32_t batches, bool win)
{
    fi_board *board = f->ring.board;
    uint32_t before = fi_load_relaxed(&board->hedged), number;
    for (uint32_t batch = 0; batch < batches; batch++) {
        fi_claim claim;
        schedule(f, ROWS);
        for (int kind; (kind = next_claim(f, 0, &claim)) != CLAIM_SLEEP;) {
            if (kind == FI_CLAIM_FINISH)
                fi_worker_ready(f->workers, &claim, 0);
            else
                own_all(f, 0, &claim, FI_ROW_OK);
        }
        take_ready(f, true);
        number = (uint32_t)(fi_load_relaxed(&board->hedges) / FI_ONE_HEDGE);
        board->hedges -= (uint64_t)number * FI_ONE_HEDGE;
        board->hedged += number;
        board->won += win ? number : 0;
    }
    return fi_load_relaxed(&board->hedged) - before;
}

static void test_hedges_are_few_where_the_first_fetch_always_wins(void)
{
    fixture f;
    set_up(&f, 0);
    fi_parent_set_hedge(&f.parent, 0.05);
    uint32_t all = (uint32_t)(100 * ROWS * 0.05); /* of 100 batches */
    uint32_t found = hedges_of(&f, 100, true);
    CHECK(found > all - 5 && found <= all);
    found = hedges_of(&f, 100, false);
    CHECK(found >= 4 && found < all / 10);
    CHECK(hedges_of(&f, 100, false) >= 1); /* or nobody would know that they win again */
    hedges_of(&f, 400, true);
    CHECK(hedges_of(&f, 100, true) > all - 5);
    tear_down(&f);
}

/* Worker w has `n` rows under way in one call of its dataset, for longer than is allowed. */
static void begin_slow_call(fixture *f, uint32_t w, uint32_t n, fi_claim *claim)
{
    int64_t index;
    f->workers[w].least = n;
    CHECK_EQ(next_claim(f, w, claim), FI_CLAIM_ROWS);
    CHECK(claim->first == 0 && claim->count == n);
    for (uint32_t row = 0; row < n; row++)
        CHECK(fi_row_promise(f->workers + w, claim, row, fi_now_ns(), &index));
    fi_store_relaxed(&f->ring.worker_stats[w].since, fi_now_ns() - 3 * (int64_t)n * LATE_NS - 1);
}

static void test_each_row_of_hung_calls_is_hedged(void)
{
    fixture f;
    fi_claim calls[2], claim;
    int64_t index;
    uint32_t won, finished = 0, hedged = 0;
    set_up(&f, 0);
    fi_parent_set_hedge(&f.parent, 1);
    for (uint32_t w = 0; w < WORKERS; w++)
        f.workers[w].hedges = true;
    schedule(&f, ROWS);
    schedule(&f, ROWS);
    begin_slow_call(&f, 0, ROWS, calls);
    begin_slow_call(&f, 1, ROWS, calls + 1);
    has_taken(&f, 2);
    for (int kind; (kind = next_claim(&f, 2, &claim)) != CLAIM_SLEEP || nap < FI_FOR_EVER;)
        if (kind == FI_CLAIM_FINISH) {
            fi_worker_ready(f.workers + 2, &claim, 0);
            finished++;
        } else if (kind != CLAIM_SLEEP) {
            CHECK_EQ(kind, FI_CLAIM_ROWS);
            CHECK(claim.fetcher != 2);
            CHECK(fi_row_promise(f.workers + 2, &claim, claim.first, fi_now_ns(), &index));
            CHECK(fi_row_win(f.workers + 2, &claim, claim.first));
            fi_row_done(f.workers + 2, &claim, claim.first, FI_ROW_OK);
            hedged++;
        }
    CHECK_EQ(hedged, 2 * ROWS);
    CHECK_EQ(finished, 2);
    CHECK_EQ(fi_parent_hedged(&f.parent, &won), 2 * ROWS);
    tear_down(&f);
}

/* A call that has lost a row to another worker has its other rows under way still: who sleeps must
 * wake by itself to look at them. */
static void test_a_call_that_lost_a_row_is_looked_at(void)
{
    for (uint32_t late = 0; late < 2; late++) { /* lost before, or after, the call had the row */
        fixture f;
        fi_claim call, other;
        int64_t index;
        set_up(&f, 0);
        fi_parent_set_hedge(&f.parent, 1);
        f.workers[0].hedges = f.workers[1].hedges = true;
        schedule(&f, 2);
        f.workers[0].least = 2;
        CHECK_EQ(next_claim(&f, 0, &call), FI_CLAIM_ROWS);
        CHECK_EQ(call.count, 2);
        other = call;
        other.fetcher = late ? 0 : 1;
        CHECK(fi_row_promise(f.workers, &call, 0, fi_now_ns(), &index));
        CHECK(!late || fi_row_promise(f.workers, &call, 1, fi_now_ns(), &index));
        CHECK(fi_row_promise(f.workers + 1, &other, 1, fi_now_ns(), &index));
        CHECK(fi_row_win(f.workers + 1, &other, 1));
        fi_row_done(f.workers + 1, &other, 1, FI_ROW_OK);
        CHECK(late || !fi_row_promise(f.workers, &call, 1, fi_now_ns(), &index));
        CHECK(!late || !fi_row_win(f.workers, &call, 1));
        has_taken(&f, 1);
        CHECK_EQ(next_claim(&f, 1, &other), CLAIM_SLEEP);
        CHECK(nap < FI_FOR_EVER);
        tear_down(&f);
    }
}

static void test_what_a_worker_does_now(void)
{
    fixture f;
    set_up(&f, 0);
    CHECK_EQ(fi_oldest_fetch(&f.ring), 0);
    fi_worker_stat_fetch_begins(f.ring.worker_stats + 2, 7);
    int64_t first = fi_oldest_fetch(&f.ring);
    CHECK(first > 0 && first <= fi_now_ns());
    fi_store_relaxed(&f.ring.worker_stats[1].since, first + 5);
    CHECK_EQ(fi_oldest_fetch(&f.ring), first);
    fi_worker_stat_fetch_ends(f.ring.worker_stats + 2);
    CHECK_EQ(fi_oldest_fetch(&f.ring), first + 5);
    CHECK(!fi_parent_is_asleep(&f.parent, 1));
    fi_store_relaxed(f.ring.bells + 1, 1);
    CHECK(fi_parent_is_asleep(&f.parent, 1));
    tear_down(&f);
}

int main(void)
{
    test_a_batch_moves();
    test_the_first_to_end_a_row_writes_it();
    test_a_worker_dies_whose_row_is_hedged();
    test_rows_are_taken_from_a_stuck_worker();
    test_rows_that_are_announced_only();
    test_a_stuck_fetch_holds_no_slot();
    test_rows_behind_a_slow_one_and_the_share_of_hedges();
    test_hedges_are_few_where_the_first_fetch_always_wins();
    test_each_row_of_hung_calls_is_hedged();
    test_a_call_that_lost_a_row_is_looked_at();
    test_what_a_worker_does_now();
    return 0;
}

/* Fuzz target: the ring in one thread, its steps in any order and its control area overwritten in
 * between. The parent's private records must stay sound whatever lies in shared memory, and once
 * nobody scribbles any more, every batch must come to an end: delivered, or dropped as broken. */
#include "../ring_fixture.h"

#include "fuzz.h"

typedef struct hand {
    fi_claim claim;
    int kind; /* of the claim in hand, or CLAIM_SLEEP for none */
    uint32_t row;
} hand;

typedef struct game {
    fixture f;
    hand hands[WORKERS];
    uint32_t leases[SLOTS];
    uint32_t leased;
    uint64_t control;
} game;

static void check_records(const game *g)
{
    const fi_parent *parent = &g->f.parent;
    uint32_t phases[6] = {0};
    bool seen[SLOTS] = {false};
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        CHECK(parent->slot[slot].phase <= FI_RETIRED);
        phases[parent->slot[slot].phase]++;
    }
    CHECK_EQ(phases[FI_FREE], parent->free_count);
    CHECK_EQ(phases[FI_DRAIN], parent->draining);
    CHECK_EQ(phases[FI_LEASED], parent->leased);
    CHECK_EQ(phases[FI_RETIRED], parent->retired);
    CHECK(phases[FI_FILL] <= parent->tail - parent->head); /* others were taken before the head */
    CHECK((phases[FI_FILL] == 0) == (parent->tail == parent->head));
    for (uint32_t i = 0; i < parent->free_count; i++) {
        uint32_t slot = parent->free_stack[i];
        CHECK(slot < SLOTS && !seen[slot] && parent->slot[slot].phase == FI_FREE);
        seen[slot] = true;
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        CHECK(parent->slot[slot].committed <= SLOT_BYTES);
}

/* A process that is gone, and another with its number. */
static void replace(game *g, uint32_t w, bool poison)
{
    recover(&g->f, w, poison);
    fi_worker_init(g->f.workers + w, &g->f.ring, w, -1);
    g->hands[w].kind = CLAIM_SLEEP;
}

static void claim(game *g, uint32_t w)
{
    hand *h = g->hands + w;
    fi_board *board = g->f.ring.board;
    /* A worker walks up to the tail. In this one thread nobody else would put it right. */
    if (atomic_load(&board->tail) - g->f.parent.head > 1000)
        atomic_store(&board->tail, g->f.parent.tail);
    h->kind = next_claim(&g->f, w, &h->claim);
    h->row = h->claim.first;
    if (h->kind == FI_CLAIM_STOP)
        replace(g, w, false);
    if (h->kind == FI_CLAIM_ROWS) {
        CHECK(h->claim.slot < SLOTS && h->claim.n <= ROWS && h->claim.count >= 1);
        CHECK(h->claim.first < h->claim.n && h->claim.count <= h->claim.n - h->claim.first);
    }
}

/* The worker's next step; `chosen` says what its row ends in. */
static void step(game *g, uint32_t w, uint8_t chosen)
{
    static const uint32_t codes[] = {FI_ROW_OK, FI_ROW_OK, FI_SPILL, FI_ERROR};
    hand *h = g->hands + w;
    uint64_t offset, need, have;
    if (h->kind == FI_CLAIM_ROWS && h->row < h->claim.first + h->claim.count) {
        uint32_t row = h->row++;
        if (fi_row_own(g->f.workers + w, &h->claim, row)) {
            if (fi_heap_take(&g->f.ring, h->claim.slot, chosen, &offset, &need, &have) == FI_OK) {
                CHECK(offset <= SLOT_BYTES && chosen <= SLOT_BYTES - offset);
                fi_entry_set(&g->f.ring, h->claim.slot, row, offset, chosen);
            }
            fi_row_done(g->f.workers + w, &h->claim, row, codes[chosen % 4]);
        }
    } else if (h->kind == FI_CLAIM_FINISH) {
        fi_worker_ready(g->f.workers + w, &h->claim, chosen);
        h->kind = CLAIM_SLEEP;
    } else {
        claim(g, w);
    }
}

/* The batch in a slot, or the oldest one. */
static void take(game *g, uint32_t slot, bool oldest, bool copied)
{
    fi_parent *parent = &g->f.parent;
    uint32_t flags, odd, row;
    uint64_t word, offset, bytes;
    if (oldest && fi_parent_ready(parent, &slot, &flags) != FI_OK)
        return;
    if (!oldest &&
        (parent->slot[slot].phase != FI_FILL || !fi_parent_is_ready(parent, slot, &flags)))
        return;
    CHECK(slot < SLOTS && flags < 16 && parent->slot[slot].phase == FI_FILL);
    if (fi_parent_check(parent, slot, &odd, &row, &word) != FI_OK) {
        CHECK(row < ROWS);
        fi_parent_drop(parent, slot);
        return;
    }
    CHECK(odd <= parent->slot[slot].n);
    CHECK(fi_parent_committed(parent, slot) <= SLOT_BYTES);
    CHECK(fi_slot_used(&g->f.ring, slot) <= SLOT_BYTES);
    fi_entry_get(&g->f.ring, slot, 0, &offset, &bytes);
    fi_parent_take(parent, slot, copied || g->leased == SLOTS);
    if (parent->slot[slot].phase == FI_LEASED)
        g->leases[g->leased++] = slot;
}

static void scribble(game *g, fuzz_input *in)
{
    uint64_t offset = fuzz_u32(in) % (g->control / 8) * 8, value = fuzz_u64(in);
    /* Most of the control area is notes and schemas; the parts that matter are at its start. */
    if (fuzz_u8(in) % 4)
        offset %= (uint64_t)((char *)(g->f.ring.entries + SLOTS * ROWS) - g->f.ring.base) / 8 * 8;
    _Atomic uint64_t *place = (_Atomic uint64_t *)(g->f.ring.base + offset);
    switch (fuzz_u8(in) % 5) {
    case 0: atomic_store(place, value); break;
    case 1: atomic_fetch_xor(place, UINT64_C(1) << (value & 63)); break;
    case 2: atomic_store(place, 0); break;
    case 3: atomic_store(place, UINT64_MAX); break;
    default: atomic_fetch_add(place, value % 17 - 8);
    }
}

/* A word that the protocol might have written, but did not. */
static void lie(game *g, fuzz_input *in)
{
    static const uint32_t codes[16] = {
        0,        FI_TODO,   FI_OWNED,   FI_CANCELLED,      FI_ROW_OK, FI_SPILL,
        FI_ERROR, FI_POISON, FI_FILLING, FI_FINISHING, FI_READY};
    uint32_t slot = fuzz_u8(in) % SLOTS, row = fuzz_u8(in) % ROWS, kind = fuzz_u8(in);
    uint64_t q = g->f.parent.slot[slot].q + fuzz_u8(in) % 3 - 1;
    uint64_t word = fi_word(q, fuzz_u8(in) % (WORKERS + 2), codes[kind % 16], 0);
    if (kind & 16)
        atomic_store(&g->f.ring.slots[slot].state, word);
    else
        atomic_store(fi_row_word(&g->f.ring, slot, row), word);
}

static void play(game *g, fuzz_input *in)
{
    fi_parent *parent = &g->f.parent;
    uint64_t need, have;
    uint8_t op = fuzz_u8(in), chosen = fuzz_u8(in);
    uint32_t w = chosen % WORKERS;
    switch (op % 16) {
    case 0:
    case 1:
        if (parent->free_count > 0)
            schedule(&g->f, 1 + chosen % (ROWS - 1));
        fi_parent_publish(parent);
        break;
    case 2:
    case 3:
    case 4:
    case 5: step(g, w, chosen / WORKERS); break;
    case 6: take(g, chosen >> 2 & 3, chosen & 2, chosen & 1); break;
    case 7:
        if (g->leased > 0)
            fi_returned_push(&parent->ring->returned, g->leases[--g->leased], false);
        break;
    case 8: collect(parent); break;
    case 9: fi_parent_reset(parent); break;
    case 10: replace(g, w, chosen & 128); break;
    case 11: fi_parent_restore_hints(parent); break;
    case 12:
        if (fi_parent_stalled(parent))
            fi_parent_give_up(parent);
        break;
    case 13:
        (void)fi_parent_commit(parent, chosen % SLOTS, chosen * 64, &need, &have);
        if (chosen & 4)
            fi_parent_decommit(parent, chosen % SLOTS, chosen * 16);
        break;
    case 14: lie(g, in); break;
    default: scribble(g, in);
    }
}

/* Nobody scribbles any more: all that is scheduled ends, within so many rounds. */
static void come_to_rest(game *g)
{
    fi_parent *parent = &g->f.parent;
    for (int round = 0; round < 4 * SLOTS; round++) {
        for (uint32_t w = 0; w < WORKERS; w++)
            do
                step(g, w, 0);
            while (g->hands[w].kind != CLAIM_SLEEP);
        for (uint32_t i = 0; i < SLOTS; i++)
            take(g, i, true, true);
        collect(parent);
        check_records(g);
        if (parent->head == parent->tail && parent->draining == 0)
            return;
        if (fi_parent_stalled(parent))
            fi_parent_give_up(parent);
        else
            fi_parent_restore_hints(parent);
    }
    CHECK(!"the ring never comes to rest");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    game g = {.leased = 0};
    fuzz_input in = {data, size};
    uint64_t total;
    set_up(&g.f, 0);
    CHECK_EQ(fi_ring_size(&g.f.ring.geometry, &g.control, &total), FI_OK);
    for (uint32_t w = 0; w < WORKERS; w++)
        g.hands[w].kind = CLAIM_SLEEP;
    while (in.left > 0) {
        play(&g, &in);
        check_records(&g);
    }
    come_to_rest(&g);
    tear_down(&g.f);
    return 0;
}

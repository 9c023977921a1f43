/* The slot ring as fi_ring_worker.c, fi_ring_parent.c and fi_ring_recovery.c build it, for the model checker Spin.
 *
 * One parent, W workers that may be killed between any two of their steps, S slots of up to B rows.
 * Step names (W1, S3, ...) are those of ../README.md and of the comments in the code; README.md
 * says which function each action stands for, what is merged into one step, and what is left out.
 * check.sh has the configurations that are checked, and the mistakes that have to be found.
 */

#ifndef S
#define S 2                     /* slots */
#endif
#ifndef B
#define B 2                     /* rows a slot has room for */
#endif
#ifndef W
#define W 2                     /* workers */
#endif
#ifndef BATCHES
#define BATCHES 2               /* batches of one generation */
#endif
#ifndef AHEAD
#define AHEAD 1                 /* batches scheduled beyond the one waited for */
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef REPLACED
#define REPLACED 0              /* dead workers that get a successor */
#endif
#ifndef RESETS
#define RESETS 0
#endif
#ifndef FROZEN
#define FROZEN 0                /* workers that stop for ever, and that no signal ends */
#endif
#ifndef EARLY
#define EARLY 0                 /* workers that are abandoned though they only are slow */
#endif
#ifndef TAKES
#define TAKES 0                 /* times that the rows which a living worker fetches are taken from it */
#endif
#ifndef HEDGES
#define HEDGES 0                /* rows that a worker fetches while another one fetches them */
#endif
#ifndef PROMISES
#define PROMISES 0              /* rows that worker 0 has others fetch, far away, while it goes on */
#endif
#ifndef STARTED
#define STARTED W               /* the others take the place of abandoned ones */
#endif
#if HEDGES > 0 || PROMISES > 0
#define ASIDE                   /* workers leave a turn for a row of another batch */
#endif
#ifndef LEASES
#define LEASES 1                /* slots that the consumer may hold; what exceeds it is copied */
#endif
#ifdef OVERTAKES                /* any batch that is READY is taken, not the head */
#define OVERTAKING true
#else
#define OVERTAKING false
#endif
#ifdef FOR_ONE                  /* each batch is for one worker, in turn */
#define is_offered(w) (only[s] == w)
#else
#define is_offered(w) true
#endif
#ifdef SPOILS                   /* this many words are overwritten, by a stray pointer */
#ifndef SILENCES
#define SILENCES 1              /* times that the parent's timer ends though workers are busy */
#endif
#endif

#define ANY 255                 /* pwait: the parent sleeps for any event */
#define NOBODY 15

mtype = { TODO, FETCH, OWNED, DONE, CANCELLED, FILLING, FINISHING, READY, JUNK };
mtype:phase = { FREE, FILL, DRAIN, LEASED };

/* ---- shared segment: one struct field per atomic word's part; q 0 is no sequence ---- */

typedef Word { byte q; byte owner; mtype code };

byte head = 1, tail = 1, redo;
bool stop;
byte map[S];
byte pwait;
bool bell[W];
byte claim_q[S], claim_next[S];
byte rows_of[S];                /* n */
#ifdef FOR_ONE
byte only[S];                   /* the only worker that is offered the rows */
#endif
Word state[S];
Word row[S * B];

byte index_of[S * B];           /* what a row's index belongs to */

/* Content of slots: a row is copied in two steps, so that a torn copy would show. */
byte front[S * B], back[S * B];
byte padded[S];

/* The parent keeps head and tail for itself; what workers see of them may be corrupt. */
#ifdef SPOILS
byte board_head = 1, board_tail = 1;
#define show_board() board_head = head; board_tail = tail
#else
#define board_head head
#define board_tail tail
#define show_board() skip
#endif

/* ---- kernel objects ---- */

bool event;                     /* the parent's bell */
byte pipe_bytes[W];                   /* bytes in a worker's pipe, where bells are pipes */
bool killed[W];                 /* what a pidfd tells */
bool gone[W];                   /* has left by itself */
bool alive[W];                  /* a process runs under this number */
bool recovered[W];              /* dead for good: this number is not used again */
bool frozen[W];
bool thaws[W];                  /* it ends then, without a further step: SIGKILL is pending */
bool abandoned[W];
byte number_of[W];              /* by process; a process and its number are the same, see */
                                /* MISTAKE_NUMBER_REUSED */

/* ---- private to the parent ---- */

mtype:phase phase[S];
byte q_of[S], n_of[S], slot_of[S];
bool corrupt[S];                /* given up: its batch is never delivered */
byte free_stack[S], n_free;
bool returned[S];               /* the stack of released leases */
byte n_leased, n_draining;
byte n_deaths, n_replaced, n_hedges;
bool finished;

#define NQ(q) ((q) % S)
#define AT(s, r) ((s) * B + (r))
#define row_is(s, r, Q, C) (row[AT(s, r)].q == Q && row[AT(s, r)].code == C)
#define state_is(s, Q, C) (state[s].q == Q && state[s].code == C)
#define is_owner(w, i) (row[i].owner == w && (row[i].code == OWNED || row[i].code == FETCH))
#define set_word(word, Q, O, C) word.q = Q; word.owner = O; word.code = C

/* A writer's right to its bytes (I1): the slot still serves this batch, and no process reads it. */
#define writable(s, Q) (q_of[s] == Q && (phase[s] == FILL || phase[s] == DRAIN))

/* A worker that sleeps looks now and then for a row to hedge. The limits to that, one hedge for each
 * row and a share of all, are left out: any one will do here. */
#define is_open(i) (row[i].code == FETCH || row[i].code == TODO)
#define can_hedge(i) (n_hedges < HEDGES && is_open((i) % (S * B)))
#define any_to_hedge (may_hedge && (can_hedge(0) || can_hedge(1) || can_hedge(2) || can_hedge(3)))
#if PROMISES > 0
#define may_hedge (w != 0)
#else
#define may_hedge true
#endif

#if PROMISES > 0
/* Promises of worker 0, until the answers come: in any order, and maybe too late. */
typedef Promise { byte q; byte s; byte r; byte n };
Promise promised[PROMISES];
byte n_promised;
#define has_answer (w == 0 && n_promised > 0)
#else
#define has_answer false
#endif

inline forget_promise(i) { promised[i].q = 0; promised[i].s = 0; promised[i].r = 0; promised[i].n = 0 }

/* ---- bells ---- */

inline ring_worker(v)           /* fi_bell_ring: a load, then a swap, then the wake-up */
{
    if
    :: bell[v] ->
        atomic {
            if
            :: bell[v] -> bell[v] = false; rung++
#ifdef PIPES
                ; pipe_bytes[v]++
#endif
            :: else
            fi
        }
    :: else
    fi
}

inline ring_workers(most)       /* after F4 */
{
    rung = 0; v = 0;
    do
    :: v < W && rung < most -> ring_worker(v); v++
    :: else -> break
    od;
    v = 0; rung = 0
}

inline ring_parent(Q)
{
    if
    :: pwait == ANY || pwait == Q ->
        atomic {
            if
            :: pwait != 0 -> pwait = 0; rings = true
            :: else
            fi
        };
        if
        :: rings -> rings = false; event = true
        :: else
        fi
    :: else
    fi
}

/* ---- worker ---- */

proctype Worker(byte me)
{
    byte w, current, seen, s, q, n, next, stop_at, r;
    bool rings;
#ifdef TWO_STEP
    byte got;
    bool is_aside;
#endif

born:
    {
        if
        :: atomic { alive[me] -> w = number_of[me] }
        :: atomic { finished && !alive[me] -> goto leave }  /* its number was not needed */
        fi;
turn:
#if HEDGES > 0
        if
        :: atomic {         /* W5a, of a row that another worker fetches, or has not begun */
            !stop && any_to_hedge ->
            if
            :: can_hedge(0) -> r = 0
            :: can_hedge(1) -> r = 1 % (S * B)
            :: can_hedge(2) -> r = 2 % (S * B)
            :: can_hedge(3) -> r = 3 % (S * B)
            fi;
            n_hedges++; is_aside = true;
            s = r / B; next = r % B; stop_at = next + 1;
            q = row[r].q;
            if
            :: row[r].code == TODO -> set_word(row[r], q, w, FETCH)
            :: else
            fi;
            r = 0
        }
        goto hedge
        :: skip
        fi;
#endif
#if PROMISES > 0
        if
        :: atomic {         /* an answer: W5b, of a row that was promised */
            !stop && has_answer ->
            if
            :: r = 0
            :: r = n_promised - 1
            fi;
            n_promised--; is_aside = true; got = promised[r].q;
            q = promised[r].q; s = promised[r].s; n = promised[r].n;
            next = promised[r].r; stop_at = next + 1;
            promised[r].q = promised[n_promised].q; promised[r].s = promised[n_promised].s;
            promised[r].n = promised[n_promised].n; promised[r].r = promised[n_promised].r;
            forget_promise(n_promised);
            r = 0
        }
        goto win
        :: w != 0 || n_promised < PROMISES || stop      /* workers far away have enough to do */
        fi;
#endif
        atomic {            /* W1 to W3: one look at the board */
            if
            :: stop -> goto leave
            :: else
            fi;
            if
#ifndef MISTAKE_NO_SWEEP
            :: redo != seen -> seen = redo; current = 0
#else
            :: redo != seen -> seen = redo
#endif
            :: else
            fi;
            if
            :: current < board_head -> current = board_head
            :: else
            fi;
            if
            :: current >= board_tail -> goto sleep
            :: else -> s = map[NQ(current)]
            fi
        }
claim:  atomic { q = claim_q[s]; next = claim_next[s] }       /* W4 */
        if
        :: q != current -> goto next_slot
        :: else
        fi;
        atomic {
            n = rows_of[s];
            if
            :: next >= n || !is_offered(w) -> goto check
            :: else -> stop_at = next + 1
#if defined(RANGES) || defined(FOR_ONE)
            :: next < n && is_offered(w) -> stop_at = n
#endif
            fi
        }
        atomic {
            if
            :: claim_q[s] == q && claim_next[s] == next -> claim_next[s] = stop_at
            :: else -> goto claim
            fi
        }
        do                  /* W5 */
        :: next < stop_at ->
#ifdef TWO_STEP
            atomic {        /* W5a */
                if
                :: row_is(s, next, q, TODO) -> set_word(row[AT(s, next)], q, w, FETCH)
                :: row_is(s, next, q, TODO) /* the word of a cheap row stays as it is */
                :: else -> next++; goto rows
                fi
            }
hedge:      atomic { got = index_of[AT(s, next)]; n = rows_of[s] }
#if PROMISES > 0
            atomic {
                if
                :: w == 0 ->
                    promised[n_promised].q = q; promised[n_promised].s = s;
                    promised[n_promised].n = n; promised[n_promised].r = next;
                    n_promised++; next++; got = 0;
                    goto rows
                :: else
                fi
            }
#endif
#ifndef MISTAKE_WRITTEN_UNOWNED
win:        atomic {        /* W5b, whoever else fetches the row */
                if
#if !defined(MISTAKE_WON_WITHOUT_SEQUENCE) && !defined(MISTAKE_ANSWER_WITHOUT_SEQUENCE)
                :: row[AT(s, next)].q == q && is_open(AT(s, next)) ->
#else
                :: is_open(AT(s, next)) ->
#endif
                    set_word(row[AT(s, next)], q, w, OWNED)
                :: else -> goto lost
                fi;
                assert(got == q); got = 0
            }
#endif
#else
            atomic {
                if
#ifndef MISTAKE_ROW_WITHOUT_SEQUENCE
                :: row_is(s, next, q, TODO) -> set_word(row[AT(s, next)], q, w, OWNED)
#else
                :: row[AT(s, next)].code == TODO -> set_word(row[AT(s, next)], q, w, OWNED)
#endif
                :: else -> next++; goto rows
                fi
            }
#endif
            d_step { assert(writable(s, q)); front[AT(s, next)] = q }
            d_step { assert(writable(s, q)); back[AT(s, next)] = q }
            atomic {
                set_word(row[AT(s, next)], q, NOBODY, DONE);
                next++
            }
#ifdef TWO_STEP
            goto rows;
lost:       atomic { next++; got = 0 }
#if PROMISES > 0
            if
            :: w == 0 && is_aside -> goto next_slot     /* whoever has the row does the check */
            :: else
            fi
#endif
#endif
rows:
#ifdef ASIDE
            if
#if !defined(MISTAKE_HEDGER_LEAVES) && !defined(MISTAKE_ANSWER_UNCHECKED)
            :: is_aside -> goto check
#else
            :: is_aside -> goto next_slot
#endif
            :: else
            fi
#else
            skip
#endif
        :: else -> break
        od;
#if PROMISES > 0
        if
        :: w == 0 -> goto turn
        :: else
        fi;
#endif
        goto claim;
check:  r = n;              /* W6, after F1 */
        do
        :: r > 0 && row_is(s, r - 1, q, DONE) -> r--
        :: r > 0 && !row_is(s, r - 1, q, DONE) -> goto after_check
        :: else -> break
        od;
#ifndef MISTAKE_FINISH_UNCLAIMED
        atomic {
            if
            :: state_is(s, q, FILLING) -> set_word(state[s], q, w, FINISHING)
            :: else -> goto after_check
            fi
        }
#else
        if
        :: state_is(s, q, FILLING)
        :: else -> goto after_check
        fi;
#endif
        d_step { assert(writable(s, q)); padded[s] = q }
#ifdef MISTAKE_RING_BEFORE_READY
        ring_parent(q);
#endif
        d_step {
            r = 0;
            do              /* I3 */
#ifndef SPOILS
            :: r < n -> assert(row_is(s, r, q, DONE)); r++
#else
            :: r < n -> r++
#endif
            :: else -> break
            od;
            r = 0;
            set_word(state[s], q, NOBODY, READY)
        }
#ifndef MISTAKE_RING_BEFORE_READY
        ring_parent(q);     /* after F2 */
#endif
after_check:
#ifndef MISTAKE_NO_DRAIN_RING
        if
        :: state_is(s, q, CANCELLED) -> ring_parent(q)                  /* W7 */
        :: else
        fi;
#endif
next_slot:
#ifdef ASIDE
        if
        :: is_aside -> is_aside = false; current-- /* it is where it was */
        :: else
        fi;
#endif
        atomic { current++; s = 0; q = 0; n = 0; next = 0; stop_at = 0; r = 0 } /* W8 */
        goto turn;
sleep:
#ifdef MISTAKE_RECHECK_BEFORE_BELL
        if
        :: redo != seen || board_tail > current || stop -> goto turn
        :: else
        fi;
        bell[w] = true;
#else
        bell[w] = true;     /* B1 */
        if                  /* B3, after F3 */
#ifndef MISTAKE_RECHECK_WITHOUT_REDO
        :: redo != seen || board_tail > current || stop ->
#else
        :: board_tail > current || stop ->
#endif
#ifdef PIPES
            atomic {
                if
                :: bell[w] -> bell[w] = false; goto turn
                :: else     /* the byte is under way */
                fi
            };
            atomic { pipe_bytes[w] > 0 -> pipe_bytes[w]-- }
#else
            bell[w] = false;
#endif
            goto turn
        :: else
        fi;
#endif
#ifdef PIPES
        atomic { pipe_bytes[w] > 0 -> pipe_bytes[w]-- };                       /* B4 */
#else
#ifdef ASIDE
        !bell[w] || any_to_hedge || has_answer;     /* B4, for a time */
#else
        !bell[w];           /* B4: the futex returns once it was cleared */
#endif
#endif
        bell[w] = false;
        goto turn;
leave:
        gone[me] = true
    } unless { killed[me] || frozen[me] };
    if
    :: frozen[me] && !killed[me] ->
        if
        :: atomic { abandoned[me] && thaws[me] -> killed[me] = true }
        :: finished -> goto over
        fi
    :: else
    fi;
    if
    :: killed[me] ->            /* a successor starts with nothing but its number */
        atomic {
            alive[me] = false;
            current = 0; seen = 0; s = 0; q = 0; n = 0; next = 0; stop_at = 0; r = 0;
            rings = false
#ifdef TWO_STEP
            ; got = 0; is_aside = false
#endif
#if PROMISES > 0
            ; do
            :: me == 0 && n_promised > 0 -> n_promised--; forget_promise(n_promised)
            :: else -> break
            od
#endif
        };
        do
        :: atomic { alive[me] && !killed[me] -> goto born }
        :: atomic { alive[me] && killed[me] -> alive[me] = false }    /* killed at birth */
        :: atomic { finished -> break }
        od
    :: else
    fi;
over: skip
}

inline count_living()
{
    living = 0; v = 0;
    do
    :: v < W -> living = living + (!killed[v] && !frozen[v]); v++
    :: else -> break
    od
}

/* Kills and freezes between any two steps, as long as a worker is left or will come. */
proctype Killer()
{
    byte v, living, n_frozen;
end:
    do
    :: atomic {
        !finished && n_deaths < DEATHS ->
        count_living();
        if
        :: living + REPLACED - n_replaced > 1 ->
            if
            :: alive[0] && !killed[0] && !gone[0] -> killed[0] = true
            :: alive[1] && !killed[1] && !gone[1] -> killed[1] = true
#if W > 2
            :: alive[2] && !killed[2] && !gone[2] -> killed[2] = true
#endif
            :: else
            fi;
            n_deaths++
        :: else -> n_deaths = DEATHS
        fi;
        v = 0; living = 0
    }
    :: atomic {
        !finished && n_frozen < FROZEN ->
        count_living();
        if
        :: living > 1 && alive[0] && !killed[0] && !gone[0] -> frozen[0] = true
        :: living > 1 && alive[1] && !killed[1] && !gone[1] -> frozen[1] = true
        :: else
        fi;
        if
        :: thaws[0] = true; thaws[1] = true
        :: skip
        fi;
        n_frozen++; v = 0; living = 0
    }
    :: atomic { finished || (n_deaths == DEATHS && n_frozen == FROZEN) -> break }
    od
}

#ifdef SPOILS
/* Overwrites a word, at any moment, by what the protocol does not write there: one of those that
 * are the truth, of which a flipped bit may leave the owner's valid, or (HINTS) a hint, which may
 * then hold anything. */
proctype Spoiler()
{
    byte n_spoils, s, r;
end:
    do
    :: atomic {
        !finished && n_spoils < SPOILS ->
        n_spoils++;
        s = 0;
        do
        :: s < S - 1 -> s++
        :: break
        od;
        r = s * B;
        do
        :: r < s * B + B - 1 -> r++
        :: break
        od;
        if
#ifndef HINTS
        :: set_word(row[r], 0, NOBODY, JUNK)
        :: set_word(state[s], 0, NOBODY, JUNK)
#if DEATHS == 0
        :: row[r].code == OWNED -> row[r].owner = (row[r].owner + 1) % W
        :: state[s].code == FINISHING -> state[s].owner = (state[s].owner + 1) % W
#endif
#else
        :: claim_q[s] = 0
        :: claim_next[s] = B
        :: claim_next[s] = 0
#if B > 1
        :: rows_of[s] = 1
#endif
        :: map[s] = (map[s] + 1) % S
        :: bell[0] = !bell[0]
        :: pwait = 0
        :: pwait = ANY
        :: board_head = board_tail
        :: board_tail = board_head
        :: board_tail++
        :: redo = redo + 2
#endif
        fi;
        s = 0; r = 0
    }
    :: atomic { finished || n_spoils == SPOILS -> break }
    od
}
#endif

/* ---- parent ---- */

inline make_free(s) { phase[s] = FREE; free_stack[n_free] = s; n_free++ }

/* A corrupt word may belong to a worker that still writes: the slot drains until all sleep. */
#ifndef MISTAKE_CORRUPT_IS_DRAINED
#define row_drained (row_is(s, r, q_of[s], DONE) || row_is(s, r, q_of[s], CANCELLED))
#define state_drained (state_is(s, q_of[s], CANCELLED) || state_is(s, q_of[s], READY))
#else
#define row_drained !row_is(s, r, q_of[s], OWNED)
#define state_drained !state_is(s, q_of[s], FINISHING)
#endif
#ifdef MISTAKE_FETCH_IS_DRAINED
#undef row_drained
#define row_drained !row_is(s, r, q_of[s], OWNED)
#endif

inline collect()                /* fi_parent_collect: one step */
{
    d_step {
        s = 0;
        do
        :: s < S ->
            if
            :: returned[s] ->
                returned[s] = false; n_leased--; make_free(s)
            :: else
            fi;
            if
            :: phase[s] == DRAIN ->
                r = 0;
                do
                :: r < n_of[s] && row_drained -> r++
                :: else -> break
                od;
                if
                :: r == n_of[s] && state_drained ->
                    n_draining--; make_free(s)
                :: else
                fi
            :: else
            fi;
            s++
        :: else -> break
        od;
        s = 0; r = 0
    }
}

/* A corrupt word may name an owner that sleeps, and stays in a slot that was given up. */
#ifdef SPOILS
#define owned_is_possible true
#else
#define owned_is_possible false
#endif

inline put(Q)                   /* S1 to S5 */
{
    atomic {
        n_free--; s = free_stack[n_free];                                    /* S1 */
        q_of[s] = Q; phase[s] = FILL; slot_of[NQ(Q)] = s; corrupt[s] = false;
#ifdef UNEQUAL
        if
        :: n_of[s] = 1
        :: n_of[s] = B
        fi;
#else
        n_of[s] = B;
#endif
        assert(owned_is_possible || state[s].code != FINISHING);       /* I4 */
        rows_of[s] = n_of[s];                                          /* S2 */
#ifdef FOR_ONE
        only[s] = Q % W;
#endif
        r = 0;
        do
        :: r < n_of[s] ->
            assert(owned_is_possible || row[AT(s, r)].code != OWNED);  /* I4 */
            index_of[AT(s, r)] = Q;
            set_word(row[AT(s, r)], Q, NOBODY, TODO); r++              /* S3 */
        :: else -> break
        od;
        r = 0;
        set_word(state[s], Q, NOBODY, FILLING)                         /* S4 */
    }
    d_step { claim_q[s] = Q; claim_next[s] = 0 }                       /* S5 */
}

inline schedule()               /* fi_parent_schedule */
{
#ifndef MISTAKE_PLACE_GIVEN_TWICE
    d_step {
        do                      /* fi_parent_next_slot: an overtaken batch keeps its place */
        :: phase[slot_of[NQ(tail)]] == FILL && NQ(q_of[slot_of[NQ(tail)]]) == NQ(tail) -> tail++
        :: else -> break
        od
    }
#endif
    put(tail);
#ifdef MISTAKE_RING_BEFORE_TAIL
    ring_workers(W);
#endif
    d_step { map[NQ(tail)] = s; tail++; show_board(); s = 0; planned++; offered = offered + B } /* S6, S7 */
}

inline top_up()
{
    do
    :: planned < BATCHES && planned - taken <= AHEAD && n_free > 0 -> schedule()
    :: else -> break
    od;
#ifndef MISTAKE_RING_BEFORE_TAIL
    if
#if defined(FOR_ONE) && !defined(MISTAKE_RING_BY_NUMBER)
    :: offered > 0 -> ring_workers(W)                                  /* S8 */
#else
    :: offered > 0 -> ring_workers(offered)                            /* S8 */
#endif
    :: else
    fi;
#endif
    offered = 0
}

#define is_ready(s) (phase[s] == FILL && (state_is(s, q_of[s], READY) || corrupt[s]))
#define head_ready (head != tail && is_ready(slot_of[NQ(head)]))
#define any_ready (is_ready(0) || is_ready(1 % S) || is_ready(S - 1))

inline move_head()
{
    do
    :: head < tail && !(phase[slot_of[NQ(head)]] == FILL && q_of[slot_of[NQ(head)]] == head) -> head++
    :: else -> break
    od;
    assert(head < tail || !(phase[0] == FILL || phase[1 % S] == FILL || phase[S - 1] == FILL));
    show_board()
}

/* R3 and R4: every hint back to the start. */
inline rewind()
{
#ifndef MISTAKE_NO_REWIND
    s = 0;
    do                                                                 /* R3 */
    :: s < S ->
        d_step {
            if
            :: phase[s] == FILL ->
                claim_q[s] = q_of[s]; claim_next[s] = 0; map[NQ(q_of[s])] = s
            :: else
            fi;
            s++
        }
    :: else -> break
    od;
    s = 0;
#endif
#ifndef MISTAKE_NO_REDO
    d_step { show_board(); redo++ }                                    /* R4 */
#endif
}

/* A living worker keeps the rows that it owns. */
#ifdef MISTAKE_OWNED_IS_TAKEN
#define can_return(w, i) is_owner(w, i)
#else
#define can_return(w, i) (is_owner(w, i) && (!lives || row[i].code == FETCH))
#endif

inline give_back(w)             /* R2 */
{
#ifdef MISTAKE_RETURNED_BY_STORE
    s = 0;
    do
    :: s < S ->
        if
        :: phase[s] == FILL && row_is(s, 0, q_of[s], FETCH) && is_owner(w, AT(s, 0)) ->
            set_word(row[AT(s, 0)], q_of[s], NOBODY, TODO)
        :: else
        fi;
        s++
    :: else -> break
    od;
#endif
    s = 0;
    do
    :: s < S ->
        d_step {                                                       /* R2 */
            if
            :: phase[s] == FILL || phase[s] == DRAIN ->
                r = 0;
                do
                :: r < n_of[s] ->
                    if
                    :: row[AT(s, r)].q == q_of[s] && can_return(w, AT(s, r)) ->
                        row[AT(s, r)].owner = NOBODY;
                        row[AT(s, r)].code = (phase[s] == FILL -> TODO : CANCELLED)
                    :: else
                    fi;
                    r++
                :: else -> break
                od;
                r = 0;
                if
                :: state_is(s, q_of[s], FINISHING) && state[s].owner == w && !lives ->
                    state[s].owner = NOBODY;
                    state[s].code = (phase[s] == FILL -> FILLING : CANCELLED)
                :: else
                fi
            :: else
            fi
        }
        s++
    :: else -> break
    od;
    s = 0
}

inline recover(x)               /* process x */
{
    give_back(number_of[x]);
    rewind();
    d_step { bell[number_of[x]] = false; pipe_bytes[number_of[x]] = 0 }      /* R5 */
    atomic {
        if
        :: n_replaced < REPLACED -> n_replaced++; killed[x] = false; alive[x] = true
        :: else -> recovered[x] = true
        fi
    }
    ring_workers(W)                                                    /* R6 */
}

inline take_back(x)             /* what process x fetches, and has not died of */
{
    lives = true;
    give_back(number_of[x]);
    lives = false;
    rewind();
    ring_workers(W)
}

#define finishes(w, i) (state[i].code == FINISHING && state[i].owner == w)
/* For slots of one row. */
#define holds(x, s) (phase[s] == FILL && (row[s].q == q_of[s] && is_owner(number_of[x], s) || \
    state[s].q == q_of[s] && finishes(number_of[x], s)))
#define is_drained(s) (phase[s] == DRAIN && (row_is(s, 0, q_of[s], CANCELLED) || \
    row_is(s, 0, q_of[s], DONE)) && state[s].q == q_of[s] && \
    (state[s].code == CANCELLED || state[s].code == READY))
#define has_room (n_free > 0 || is_drained(0) || is_drained(1 % S) || is_drained(S - 1))
#define holds_up(x) (frozen[x] && !killed[x] && (!abandoned[x] || \
    has_room && (holds(x, 0) || holds(x, 1 % S) || holds(x, S - 1))))

/* fi_parent_move, for each slot in which process x owns something: the batch goes into a free slot
 * with the same sequence. The old one drains when x has let go, or never. */
inline abandon(x)
{
    abandoned[x] = true;
    collect();
#ifdef MISTAKE_RETURNED_ALIVE
    give_back(number_of[x]);
#else
    u = 0;
    do
    :: u < S ->
        s = u;
        d_step {
            r = 0;
            do
            :: r < n_of[s] && !(row[AT(s, r)].q == q_of[s] && is_owner(number_of[x], AT(s, r))) -> r++
            :: else -> break
            od;
            is_held = phase[s] == FILL && n_free > 0 &&
                (r < n_of[s] || (state[s].q == q_of[s] && finishes(number_of[x], s)));
            r = 0
        }
        if
        :: is_held ->
            is_held = false;
            start_drain();
            put(q_of[u]);
            d_step { map[NQ(q_of[s])] = s; s = 0 }
        :: else
        fi;
        u++
    :: else -> break
    od;
    s = 0; u = 0;
#endif
#ifndef MISTAKE_MOVE_WITHOUT_REDO
    rewind();
#endif
#if STARTED < W
    atomic {
        if
        :: !alive[W - 1] && !killed[W - 1] ->
#ifdef MISTAKE_NUMBER_REUSED
            number_of[W - 1] = x;
#endif
            alive[W - 1] = true
        :: else
        fi
    }
#endif
    ring_workers(W)
}

/* Who only has promised to fetch a row has written nothing. */
#ifndef MISTAKE_FETCH_IS_DRAINED
#define is_unowned (row_is(s, r, q_of[s], TODO) || row_is(s, r, q_of[s], FETCH))
#else
#define is_unowned row_is(s, r, q_of[s], TODO)
#endif

inline start_drain()            /* of slot s */
{
#ifndef MISTAKE_STATE_NOT_CANCELLED
    atomic {                                                           /* X1 */
        if
        :: state_is(s, q_of[s], FILLING) -> set_word(state[s], q_of[s], NOBODY, CANCELLED)
        :: else
        fi
    }
#endif
    r = 0;
    do                                                                 /* X2 */
    :: r < n_of[s] ->
        atomic {
            if
            :: is_unowned -> set_word(row[AT(s, r)], q_of[s], NOBODY, CANCELLED)
            :: else
            fi;
            r++
        }
    :: else -> break
    od;
    r = 0;
    d_step { claim_q[s] = q_of[s]; claim_next[s] = n_of[s] }           /* X3 */
#if !defined(MISTAKE_FREE_AT_RESET) && !defined(MISTAKE_MOVED_IS_FREE)
    d_step { phase[s] = DRAIN; n_draining++ }                          /* X4 */
#else
    d_step { make_free(s) }
#endif
}

inline reset()                  /* fi_parent_reset */
{
    s = 0;
    do
    :: s < S && phase[s] == FILL -> start_drain(); s++
    :: s < S && phase[s] != FILL -> s++
    :: else -> break
    od;
    s = 0;
    d_step { head = tail; show_board(); planned = 0; offered = 0; taken = 0 }
}

#ifdef SPOILS
/* fi_parent_give_up: one step, for all workers sleep. */
inline give_up()
{
    d_step {
        s = 0;
        do
        :: s < S ->
            if
            :: phase[s] == FILL && !state_is(s, q_of[s], READY) -> corrupt[s] = true
            :: phase[s] == DRAIN -> n_draining--; make_free(s)
            :: else
            fi;
            s++
        :: else -> break
        od;
        s = 0
    }
}

/* Pool._look_at_hints, once nothing was heard for a while: fi_parent_restore_hints, or, if that has
 * not helped, fi_parent_give_up. */
inline look_at_hints()
{
    is_stalled = restored && (head != tail || n_draining > 0);
    u = 0;
    do                          /* fi_parent_stalled: one bell after the other */
    :: u < W && is_stalled -> is_stalled = bell[u]; u++
    :: else -> break
    od;
    u = 0;
    if
    :: is_stalled && !head_ready -> give_up()
    :: else ->
        restored = true;
        rewind();               /* fi_parent_restore_hints */
        u = 0;
        do                      /* fi_bell_force, after F4 */
        :: u < W -> bell[u] = false; u++
        :: else -> break
        od;
        u = 0
    fi;
    is_stalled = false
}
#endif

/* fi_parent_check */
#define row_good (row_is(s, r, q_of[s], DONE) && row[AT(s, r)].owner == NOBODY)

inline check()
{
    d_step {
        r = 0;
        do
        :: r < n_of[s] && row_good -> r++
        :: else -> break
        od;
        is_corrupt = r < n_of[s] || rows_of[s] != n_of[s] || corrupt[s];
        r = 0
    }
}

inline take()                   /* T5, of slot s */
{
    d_step {
        r = 0;
        do
        :: r < n_of[s] ->
            assert(front[AT(s, r)] == q_of[s] && back[AT(s, r)] == q_of[s]); /* I6 */
            r++
        :: else -> break
        od;
        r = 0;
        assert(phase[s] == FILL && (OVERTAKING || q_of[s] == head) && padded[s] == q_of[s])
    }
    atomic {
        taken++;
        if
        :: n_leased < LEASES -> phase[s] = LEASED; n_leased++
        :: make_free(s)                                                /* L5: copied */
        fi;
        move_head();
        s = 0
    }
}

/* fi_parent_drop: an error takes the place of the batch. */
inline drop()
{
#ifdef SPOILS
    if
    :: corrupt[s] -> d_step { make_free(s) }
    :: else ->
        start_drain();
        set_word(state[s], q_of[s], NOBODY, CANCELLED)
    fi;
    d_step { move_head(); taken++; s = 0 }
#else
    assert(false)
#endif
}

#define is_dead(u) (killed[u] && !alive[u] && !recovered[u])    /* its pidfd is readable */
#define a_death (is_dead(0) || is_dead(1) || is_dead(W - 1))

inline recover_dead()
{
    u = 0;
    do
    :: u < W ->
        if
        :: is_dead(u) -> recover(u)
        :: else
        fi;
        u++
    :: else -> break
    od;
    u = 0
}

/* The consumer drops a batch that it held: whenever, in whatever order (L3). */
inline release(x)
{
    atomic {
        phase[x] == LEASED && !returned[x] ->
        r2 = 0;
        do
        :: r2 < n_of[x] ->
            assert(front[AT(x, r2)] == q_of[x] && back[AT(x, r2)] == q_of[x]); r2++
        :: else -> break
        od;
        r2 = 0;
        assert(padded[x] == q_of[x]);
        returned[x] = true
    }
}

proctype Consumer()
{
    byte r2;
end:
    do
    :: release(0)
#if S > 1
    :: release(1)
#endif
#if S > 2
    :: release(2)
#endif
    od
}

active proctype Parent()
{
    byte s, r, u, v, rung, planned, taken, offered, n_resets;
    bool is_corrupt, is_held, lives;
    byte n_early, late = W;
#if TAKES > 0
    byte n_takes, taken_from = W;
#endif
#ifdef SPOILS
    byte n_silences;
    bool is_silent, is_stalled, restored;
#define FORGET restored = false
#else
#define FORGET skip
#endif

    atomic {
        s = S;
        do
        :: s > 0 -> s--; make_free(s); state[s].code = CANCELLED
        :: else -> break
        od;
        do
        :: r < S * B -> row[r].code = CANCELLED; r++
        :: else -> break
        od;
        r = 0;
        do
        :: u < W -> number_of[u] = u; alive[u] = u < STARTED; run Worker(u); u++
        :: else -> break
        od;
        u = 0;
        run Killer();
#ifdef SPOILS
        run Spoiler();
#endif
        run Consumer()
    }
    do
    :: taken < BATCHES ->
        collect();
        top_up();
look:   if
        :: OVERTAKING && any_ready || head_ready ->                    /* T1, T5 */
#ifdef OVERTAKES
            if
            :: is_ready(0) -> s = 0
            :: is_ready(1 % S) -> s = 1 % S
            :: is_ready(S - 1) -> s = S - 1
            fi;
#else
            s = slot_of[NQ(head)];
#endif
            check();
            if
            :: !is_corrupt -> take()
            :: is_corrupt -> is_corrupt = false; drop()
            fi;
            FORGET
        :: else ->
#ifdef MISTAKE_LOOK_BEFORE_PWAIT
            skip;
#endif
            pwait = (OVERTAKING || head == tail -> ANY : head);        /* T2 */
#ifndef MISTAKE_LOOK_BEFORE_PWAIT
            if                                                         /* T3, after F5 */
            :: OVERTAKING && any_ready || head_ready -> pwait = 0; goto look
            :: else
            fi;
            if
            :: head == tail ->
                collect();
                if
                :: n_free > 0 -> pwait = 0; goto again
                :: else
                fi
            :: else
            fi;
#endif
            if                                                         /* T4 */
            :: event
            :: a_death
            :: n_resets < RESETS                                       /* interrupted: Ctrl-C */
#if FROZEN > 0 || EARLY > 0
            /* A limit has passed, and some seconds since SIGKILL, which has not ended the worker. */
            :: atomic { holds_up(0) -> late = 0 }
            :: atomic { holds_up(1) -> late = 1 }
            :: atomic { n_early < EARLY && !killed[0] && !abandoned[0] -> n_early++; late = 0 }
            :: atomic { n_early < EARLY && !killed[1] && !abandoned[1] -> n_early++; late = 1 }
#endif
#if TAKES > 0
            :: atomic { n_takes < TAKES && alive[0] -> n_takes++; taken_from = 0 }
            :: atomic { n_takes < TAKES && alive[1] -> n_takes++; taken_from = 1 }
#endif
#ifdef SPOILS
            :: timeout -> is_silent = true                             /* no process moves any more */
            :: n_silences < SILENCES -> n_silences++; is_silent = true /* or a process is slow */
#endif
            fi;
            pwait = 0;
            event = false;
            recover_dead();
#if TAKES > 0
            if
            :: taken_from < W && !recovered[taken_from] -> take_back(taken_from)
            :: else
            fi;
            taken_from = W;
#endif
#if FROZEN > 0 || EARLY > 0
            if
            :: late < W && !recovered[late] && !killed[late] -> abandon(late)
            :: else
            fi;
            late = W;
#endif
#ifdef SPOILS
            if
            :: is_silent && !head_ready -> is_silent = false; look_at_hints()
            :: else -> is_silent = false
            fi
#endif
        fi;
again:  skip
    :: n_resets < RESETS -> n_resets++; reset()
    :: taken == BATCHES -> break
    od;
    stop = true;
    ring_workers(W);
    u = 0;
    do
    :: u < W ->
        if
        :: gone[u] || (killed[u] && !alive[u]) || frozen[u] || (u >= STARTED && !alive[u])
#ifdef SPOILS
        :: timeout -> killed[u] = true          /* finalize() kills who does not leave */
#endif
        fi;
        u++
    :: else -> break
    od;
    finished = true
}

ltl every_run_ends { <> finished }

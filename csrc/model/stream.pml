/* Streams of readers as fi_stream.c, _ring/stream.pyx and reader/_merge.py build them, for the model checker
 * Spin.
 *
 * R readers that may die between any two of their steps, E slots of B rows for each, one parent who
 * takes what there is, a consumer who drops what he was lent whenever he likes. Step names are
 * those of ../README.md and of the comments in the code; README.md says which function each action
 * stands for. check.sh has the configurations, and the mistakes that have to be found.
 */

#ifndef R
#define R 2                     /* readers */
#endif
#ifndef E
#define E 2                     /* slots of each */
#endif
#ifndef B
#define B 2                     /* rows of a block */
#endif
#ifndef SAMPLES
#define SAMPLES 3               /* that reader 0 has; the others have OTHERS */
#endif
#ifndef OTHERS
#define OTHERS 1
#endif
#ifndef CREDIT
#define CREDIT 2
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef KEPT
#define KEPT 2                  /* slots of each reader that are never lent; E - KEPT may be */
#endif

#define NO_SLOT 255
#define SAMPLES_OF(r) (r == 0 -> SAMPLES : OTHERS)

mtype = { CANCELLED, FILLING, READY };
mtype:phase = { AT_READER, IN_HAND, LENT };

/* ---- shared segment; q 0 is no sequence ---- */

typedef Filled { byte q; byte rows; bool closed; bool last };

byte credit = CREDIT;
bool stop;
byte map[R * E];
byte pwait;
bool bell[R];
mtype code[R * E];              /* of the slot word */
Filled filled[R * E];

/* Content of a row, the number of a sample: written in two steps, so that a torn row shows. */
byte front[R * E * B], back[R * E * B];

/* ---- kernel objects ---- */

bool event;                     /* the parent's bell */
bool killed[R];                 /* what a pidfd tells */
bool dead[R];                   /* takes no step any more */
bool gone[R];                   /* has left by itself */
byte published[R];              /* what it ever will have published, for the check at its death */

/* ---- private to the parent ---- */

mtype:phase phase[R * E];
byte source_q[R], source_slot[R], source_taken[R], away[R];
bool in_hand[R], ended[R];
byte taken_of[R];               /* samples */
byte first_of[R * E], rows_of[R * E];   /* what a lent slot was lent with */
bool returned[R * E], left[R * E];
byte ungranted;
bool finished;
byte n_deaths;

#define MAP(r, q) map[r * E + q % E]
#define AT(s, i) ((s) * B + (i))

/* ---- bells, as in ring.pml ---- */

inline ring_reader(v)
{
    if
    :: bell[v] -> bell[v] = false       /* load and swap: the parent is the only other writer */
    :: else
    fi
}

inline ring_all()               /* after F4 */
{
    v = 0;
    do
    :: v < R -> ring_reader(v); v++
    :: else -> break
    od;
    v = 0
}

inline ring_parent()            /* after F2 */
{
    if
    :: pwait != 0 ->
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

/* ---- reader ---- */

/* The first free slot (G2). One step: the parent changes these words one way only, to free. */
inline find_slot()
{
    s = w * E; found = NO_SLOT; busy = 0;
    do
    :: s < (w + 1) * E ->
        if
        :: code[s] == FILLING -> busy++
        :: code[s] != FILLING && code[s] != READY && found == NO_SLOT -> found = s
        :: else
        fi;
        s++
    :: else -> break
    od;
#ifdef LEAN
    if                          /* two blocks in flight have bytes enough */
    :: busy >= 2 -> found = NO_SLOT
    :: else
    fi;
#endif
    s = 0; busy = 0
}

inline publish(IS_CLOSED, IS_LAST)
{
    atomic {
        filled[slot].rows = rows;
        filled[slot].closed = IS_CLOSED;
        filled[slot].last = IS_LAST
    }
}

inline close_block(IS_LAST)     /* fi_reader_close */
{
    if
    :: IS_LAST -> d_step { credit = credit + own; own = 0 }
    :: else
    fi;
    publish(true, IS_LAST);                                            /* G3 */
    ring_parent();
    d_step { has_slot = false; is_open = false; slot = 0; rows = 0 }
}

inline open_block()             /* fi_reader_open */
{
    d_step {
        q++; rows = 0; is_open = true;
        assert(phase[slot] == AT_READER);
        code[slot] = FILLING
    }
    atomic {                                                           /* G1 */
        filled[slot].q = q; filled[slot].rows = 0;
        filled[slot].closed = false; filled[slot].last = false
    }
    MAP(w, q) = slot
}

proctype Reader(byte w)
{
    byte q, slot, rows, own, sample, s, found, busy;
    bool has_slot, is_open, rings, done;

    {
        skip;
next:   if                      /* SampleWriter.put, finish */
        :: sample == SAMPLES_OF(w) && is_open -> close_block(true); goto leave
        :: sample == SAMPLES_OF(w) && !is_open ->
            d_step { find_slot(); assert(found != NO_SLOT); slot = found; has_slot = true }
            open_block();
            close_block(true);
            goto leave
        :: sample < SAMPLES_OF(w) && is_open && rows == B -> close_block(false)
        :: else
        fi;
begin:  if                      /* fi_reader_begin */
        :: stop -> goto leave
        :: else
        fi;
        if
        :: !has_slot ->
            d_step {
                find_slot();
                if
                :: found != NO_SLOT -> slot = found; has_slot = true
                :: else
                fi
            }
        :: else
        fi;
        if
        :: has_slot && own == 0 ->
            atomic {            /* take_credit */
                if
                :: credit > 0 -> own = 1; credit--
#ifdef SHARES
                :: credit > 1 -> own = 2; credit = credit - 2
#endif
                :: credit == 0
                fi
            }
        :: else
        fi;
        if
        :: has_slot && own > 0 -> goto write
        :: else
        fi;
#ifndef MISTAKE_RECHECK_BEFORE_BELL
        bell[w] = true;         /* B1 */
#endif
        d_step {                /* B3, after F3 */
            found = NO_SLOT;
            if
            :: !has_slot -> find_slot()
            :: else
            fi;
#ifdef MISTAKE_RECHECK_WITHOUT_CREDIT
            done = stop || (!has_slot && found != NO_SLOT)
#else
            done = stop || (!has_slot && found != NO_SLOT) || (has_slot && credit > 0)
#endif
        }
#ifdef MISTAKE_RECHECK_BEFORE_BELL
        bell[w] = true;
#endif
        if
        :: done -> done = false
        :: !done -> !bell[w]    /* B4 */
        fi;
        bell[w] = false;
        goto begin;
write:  if
        :: !is_open -> open_block()
        :: else
        fi;
        d_step {
            assert(phase[slot] == AT_READER || (phase[slot] != AT_READER && source_q[w] == q &&
                in_hand[w] && source_taken[w] <= rows));
            front[AT(slot, rows)] = sample + 1
        }
#ifdef MISTAKE_PUBLISH_FIRST
        rows++; own--;
        publish(false, false);
        back[AT(slot, rows - 1)] = sample + 1;
        sample++;
        d_step { published[w] = sample }
#else
        back[AT(slot, rows)] = sample + 1;
        atomic {
            rows++; own--; sample++; published[w] = sample;
            filled[slot].rows = rows                                   /* G3 */
        }
#endif
        ring_parent();
        goto next;
leave:
        gone[w] = true
    } unless { killed[w] };
    if
    :: killed[w] -> dead[w] = true
    :: else
    fi
}

/* Kills between any two steps. */
proctype Killer()
{
end:
    do
    :: atomic {
        !finished && n_deaths < DEATHS ->
        if
        :: !killed[0] && !gone[0] -> killed[0] = true
        :: !killed[R - 1] && !gone[R - 1] -> killed[R - 1] = true
        :: else
        fi;
        n_deaths++
    }
    :: atomic { finished || n_deaths == DEATHS -> break }
    od
}

/* ---- parent ---- */

inline hand_back(x, C)          /* G2, then F4 */
{
    code[x] = C;
    ring_reader(x / E)
}

inline collect()                /* fi_stream_collect */
{
    u = 0;
    do
    :: u < R * E ->
        if
        :: returned[u] ->
            d_step {
                returned[u] = false; left[u] = false;
                away[u / E]--; phase[u] = AT_READER
            }
            hand_back(u, CANCELLED)
        :: else
        fi;
        u++
    :: else -> break
    od;
    u = 0
}

inline find_block(r)            /* G1: map, then filled */
{
    x = MAP(r, source_q[r]);
    if
    :: x / E == r && phase[x] == AT_READER ->
        d_step {
            if
            :: filled[x].q == source_q[r] ->
                source_slot[r] = x; source_taken[r] = 0; in_hand[r] = true;
                phase[x] = IN_HAND
            :: else
            fi
        }
    :: else
    fi;
    x = 0
}

/* fi_stream_ready: rows that can be taken, or the end of the block. */
inline look_at(r)
{
    n = 0; is_closed = false; is_last = false;
    if
    :: !ended[r] && !in_hand[r] -> find_block(r)
    :: else
    fi;
    if
    :: !ended[r] && in_hand[r] ->
        d_step {                                                       /* G3 */
            x = source_slot[r];
            assert(filled[x].q == source_q[r] && filled[x].rows >= source_taken[r]);
            n = filled[x].rows - source_taken[r];
            is_closed = filled[x].closed; is_last = filled[x].last;
            x = 0
        }
    :: else
    fi
}

/* take_of: some rows, perhaps all, and the block's end. */
inline take_of(r)
{
    look_at(r);
    if
    :: n > 0 || is_closed ->
        if                                                             /* fi_stream_lend */
        :: n > 0 && source_taken[r] == 0 && away[r] + KEPT < E ->
            d_step {
                x = source_slot[r]; phase[x] = LENT; away[r]++;
                first_of[x] = taken_of[r]; rows_of[x] = 0; x = 0
            }
        :: else
        fi;
        if
        :: n > 1 -> n = 1; is_closed = false                           /* as many as were wanted */
        :: else
        fi;
        d_step {
            x = source_slot[r]; y = 0;
            do
            :: y < n ->
                assert(front[AT(x, source_taken[r])] == taken_of[r] + 1);
                assert(back[AT(x, source_taken[r])] == taken_of[r] + 1);
                source_taken[r]++; taken_of[r]++; ungranted++; y++
            :: else -> break
            od;
            if
            :: phase[x] == LENT -> rows_of[x] = source_taken[r]
            :: else
            fi;
            x = 0; y = 0; any = true
        }
        if
        :: is_closed ->                                                /* fi_stream_leave */
            d_step {
                in_hand[r] = false; ended[r] = is_last; source_q[r]++;
                x = source_slot[r]
            }
            if
            :: phase[x] == IN_HAND ->
#ifdef MISTAKE_PHASE_LATE
                hand_back(x, CANCELLED);
                phase[x] = AT_READER
#else
                phase[x] = AT_READER;
                hand_back(x, CANCELLED)
#endif
            :: else ->
#ifdef MISTAKE_LENT_IS_FREE
                hand_back(x, CANCELLED);
#else
                hand_back(x, READY);
#endif
                left[x] = true
            fi;
            x = 0;
            if
            :: ended[r] -> ring_all()
            :: else
            fi
        :: else
        fi
    :: else
    fi;
    n = 0; is_closed = false; is_last = false
}

inline take_all()               /* take_samples, of each reader in turn */
{
    any = false; r = 0;
    do
    :: r < R -> take_of(r); r++
    :: else -> break
    od;
    r = 0
}

inline grant()                  /* fi_stream_grant */
{
    if
    :: ungranted > 0 ->
#ifdef MISTAKE_RING_BEFORE_CREDIT
        ring_all();
        d_step { credit = credit + ungranted; ungranted = 0 }
#else
        d_step { credit = credit + ungranted; ungranted = 0 }
        ring_all()
#endif
    :: else
    fi
}

/* The last view of a lent slot dies, once its block was left. */
inline release(x)
{
    atomic {
        phase[x] == LENT && left[x] && !returned[x] ->
        r2 = 0;
        do
        :: r2 < rows_of[x] ->
            assert(front[AT(x, r2)] == first_of[x] + r2 + 1);
            assert(back[AT(x, r2)] == first_of[x] + r2 + 1);
            r2++
        :: else -> break
        od;
        r2 = 0;
        returned[x] = true
    }
}

proctype Consumer()
{
    byte r2;
end:
    do
    :: release(0)
    :: release(1)
    :: release(E)
    :: release(E + 1)
#if E > 2
    :: release(2)
    :: release(E + 2)
#endif
    od
}

#define all_ended (ended[0] && ended[R - 1])
#define is_over(r) (dead[r] || gone[r])         /* its pidfd is readable */
#define an_end (is_over(0) && !is_fallen[0] || is_over(R - 1) && !is_fallen[R - 1])

active proctype Parent()
{
    byte r, u, v, x, y, n;
    bool is_closed, is_last, any;
    bool is_fallen[R];

    atomic {
        do
        :: u < R * E -> code[u] = CANCELLED; phase[u] = AT_READER; map[u] = NO_SLOT; u++
        :: else -> break
        od;
        u = 0;
        do
        :: u < R -> source_q[u] = 1; run Reader(u); u++
        :: else -> break
        od;
        u = 0;
        run Killer();
        run Consumer()
    }
    do
    :: r = 0;                   /* _look_at_deaths, then _ready: all that came before is due first */
        do
        :: r < R ->
            if
            :: is_over(r) -> is_fallen[r] = true
            :: else
            fi;
            if
            :: is_fallen[r] && !ended[r] ->
                look_at(r);
                if
                :: n == 0 && !is_closed ->
                    assert(taken_of[r] == published[r]);
                    goto over   /* WorkerDiedError */
                :: else
                fi
            :: else
            fi;
            r++
        :: else -> break
        od;
        r = 0; n = 0; is_closed = false; is_last = false;
        collect();
        take_all();
        if
        :: any
        :: !any && all_ended -> break
        :: !any && !all_ended ->
            grant();            /* all that was taken has been delivered */
            pwait = 1;
#ifndef MISTAKE_LOOK_BEFORE_PWAIT
            r = 0; any = false;                                        /* is_ready, after F5 */
            do
            :: r < R ->
                look_at(r);
                if
                :: n > 0 || is_closed -> any = true
                :: else
                fi;
                r++
            :: else -> break
            od;
            r = 0; n = 0; is_closed = false; is_last = false;
#endif
            if
            :: any
            :: !any ->
                if              /* fi_wait */
                :: event
                :: an_end
                /* A view that dies wakes no process: two slots are never lent. */
                fi
            fi;
            pwait = 0;
            event = false;
            any = false
        fi;
        if
        :: grant()              /* now, or later */
        :: skip
        fi
    od;
    r = 0;
    do                          /* nothing lost, nothing twice */
    :: r < R -> assert(taken_of[r] == SAMPLES_OF(r)); r++
    :: else -> break
    od;
over:
    stop = true;
    v = 0;
    ring_all();
    r = 0;
    do
    :: r < R -> gone[r] || dead[r]; r++
    :: else -> break
    od;
    finished = true
}

ltl every_run_ends { <> finished }

"""Litmus tests of the memory orders of ../README.md, under the C11 memory model:

    python csrc/model/orders.py [PAIR...]

Spin sees one order of all memory operations, x86 hides most missing orders, and ThreadSanitizer
sees no fence. So each pair of the table stands here once more, as a few reads and writes, and every
execution is enumerated that the model allows: C11 as repaired by Lahav, Vafeiadis, Kang, Hur and
Dreyer (Repairing Sequential Consistency in C/C++11, PLDI 2017), but with release sequences as in
C++20, and with loads that see later stores, as ARM does; both allow more. What must not happen must
happen in none; and it must happen in one as soon as any order, or fence, that the table names is
left out: so each of them is needed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

RELAXED, ACQUIRE, RELEASE = "relaxed", "acquire", "release"


@dataclass(frozen=True)
class Step:
    """One event: a read, a write, both at once (a swap or an exchange), or a seq_cst fence."""

    kind: str  # R, W, U, F
    place: str = ""
    order: str = RELAXED
    wanted: int | None = None  # the thread ends here if it sees another value; None: never
    value: int = 0  # written
    seen: int = 0  # read
    name: str = ""  # by which an order or a fence is left out
    may_fail: bool = False  # a compare-and-swap: where it fails it is a relaxed read

    @property
    def reads(self) -> bool:
        return self.kind in "RU"

    @property
    def writes(self) -> bool:
        return self.kind in "WU"

    @property
    def acquires(self) -> bool:
        return self.kind == "F" or (self.reads and self.order == ACQUIRE)

    @property
    def releases(self) -> bool:
        return self.kind == "F" or (self.writes and self.order == RELEASE)


def read(place: str, order: str = RELAXED, name: str = "", wanted: int | None = None) -> Step:
    return Step("R", place, order, wanted, name=name)


def write(place: str, value: int, order: str = RELAXED, name: str = "") -> Step:
    return Step("W", place, order, value=value, name=name)


def swap(place: str, wanted: int, value: int, order: str, name: str = "") -> Step:
    return Step("U", place, order, wanted, value, name=name, may_fail=True)


def exchange(place: str, wanted: int, value: int, order: str, name: str = "") -> Step:
    return Step("U", place, order, wanted, value, name=name)


def fence(name: str) -> Step:
    return Step("F", name=name)


Thread = tuple[Step, ...]
Values = dict[str, int]


@dataclass(frozen=True)
class Litmus:
    """Threads that run at once from `start`, what must not come out of it, and what prevents it."""

    threads: tuple[Thread, ...]
    start: Values
    is_bad: Callable[[Values, Values], bool]  # of what was read at last, and how memory ends
    needed: list[str]  # orders and fences without which it does come out


# ---- executions -----------------------------------------------------------------------------


def weakened(step: Step, left_out: str) -> Step | None:
    """The step without the order of that name; None for a fence that is left out."""
    if not left_out or step.name != left_out.partition(":")[0]:
        return step
    return None if step.kind == "F" else replace(step, order=RELAXED)


def traces(thread: Thread, values: dict[str, set[int]], left_out: str) -> list[list[Step]]:
    """Every course that a thread may take, reads giving any of the values that are written."""
    going: list[list[Step]] = [[]]
    ended = []
    for asked in thread:
        step = weakened(asked, left_out)
        if step is None:
            continue
        before, going = going, []
        for course in before:
            for seen in sorted(values[step.place]) if step.reads else [0]:
                done = replace(step, seen=seen)
                if step.wanted in (None, seen):
                    going.append([*course, done])
                elif step.may_fail:
                    ended.append([*course, replace(done, kind="R", order=RELAXED)])
                else:
                    ended.append([*course, done])
    return going + ended


class Relation:
    """A relation over n events, as rows of bits."""

    def __init__(self, size: int, pairs: Any = ()) -> None:
        self.rows = [0] * size
        for left, right in pairs:
            self.rows[left] |= 1 << right

    def __or__(self, other: Relation) -> Relation:
        result = Relation(len(self.rows))
        result.rows = [a | b for a, b in zip(self.rows, other.rows, strict=True)]
        return result

    def then(self, *others: Relation) -> Relation:
        result = self
        for other in others:
            joined = Relation(len(self.rows))
            for left, row in enumerate(result.rows):
                for middle, following in enumerate(other.rows):
                    if row >> middle & 1:
                        joined.rows[left] |= following
            result = joined
        return result

    def closed(self) -> Relation:
        result = Relation(len(self.rows))
        result.rows = list(self.rows)
        for middle in range(len(self.rows)):
            for left, row in enumerate(result.rows):
                if row >> middle & 1:
                    result.rows[left] |= result.rows[middle]
        return result

    def or_same(self) -> Relation:
        return self | Relation(len(self.rows), ((i, i) for i in range(len(self.rows))))

    def where(self, keeps: Callable[[int, int], bool]) -> Relation:
        size = range(len(self.rows))
        return Relation(
            len(self.rows),
            ((a, b) for a in size for b in size if self.rows[a] >> b & 1 and keeps(a, b)),
        )

    @property
    def has_loop(self) -> bool:
        return any(row >> i & 1 for i, row in enumerate(self.closed().rows))

    @property
    def is_reflexive_somewhere(self) -> bool:
        return any(row >> i & 1 for i, row in enumerate(self.rows))


def is_consistent(events: list[tuple[int, Step]], rf: dict[int, int], mo: Relation) -> bool:
    """The axioms of RC11: coherence, atomicity, and SC, here of fences alone."""
    size, steps = len(events), [step for _, step in events]

    def only(test: Callable[[Step], bool]) -> Relation:
        return Relation(size, ((i, i) for i, step in enumerate(steps) if test(step)))

    def same_place(a: int, b: int) -> bool:
        return bool(steps[a].place) and steps[a].place == steps[b].place

    sb = Relation(
        size,
        (
            (a, b)
            for a in range(size)
            for b in range(size)
            if (events[a][0] == events[b][0] and a < b) or (events[a][0] < 0 <= events[b][0])
        ),
    )
    rf_all = Relation(size, ((w, r) for r, w in rf.items()))
    rb = Relation(
        size,
        ((r, b) for r, w in rf.items() for b in range(size) if mo.rows[w] >> b & 1 and b != r),
    )
    if any(steps[r].kind == "U" and rb.then(mo).rows[r] >> r & 1 for r in rf):
        return False
    to_swap = rf_all.then(only(lambda step: step.kind == "U")).closed().or_same()
    fences = only(lambda step: step.kind == "F")
    before = only(lambda step: step.releases).then((fences.then(sb)).or_same())
    after = sb.then(fences).or_same().then(only(lambda step: step.acquires))
    sw = before.then(only(lambda step: step.writes), to_swap, rf_all, after)
    hb = (sb | sw).closed()
    eco = (rf_all | mo | rb).closed()
    if hb.then(eco.or_same()).is_reflexive_somewhere:
        return False
    elsewhere = sb.where(lambda a, b: not same_place(a, b))
    scb = sb | elsewhere.then(hb, elsewhere) | hb.where(same_place) | mo | rb
    psc = fences.then(hb.or_same(), scb, hb.or_same(), fences)
    psc |= fences.then(hb | hb.then(eco, hb), fences)
    return not psc.has_loop


def executions(test: Litmus, left_out: str = "") -> Iterator[tuple[Values, Values]]:
    """Values that the threads have read, and memory at the end, for each execution allowed."""
    values = {place: {value} for place, value in test.start.items()}
    while True:  # values that can be written depend on those that can be read
        courses = [traces(thread, values, left_out) for thread in test.threads]
        known = {place: set(some) for place, some in values.items()}
        for step in itertools.chain(*itertools.chain(*courses)):
            if step.writes:
                known[step.place].add(step.value)
        if known == values:
            break
        values = known
    begin = [(-1, write(place, value)) for place, value in test.start.items()]
    for chosen in itertools.product(*courses):
        events = begin + [(t, step) for t, steps in enumerate(chosen) for step in steps]
        seen = {step.place: step.seen for _, step in events if step.reads}
        for rf, mo, end in graphs(events, test.start):
            if is_consistent(events, rf, mo):
                yield seen, end


def graphs(events: list[tuple[int, Step]], start: dict[str, int]) -> Iterator[Any]:
    """Every way in which reads may read and writes to one place may follow each other."""
    steps = [step for _, step in events]
    reads = [i for i, step in enumerate(steps) if step.reads]
    sources = [
        [
            w
            for w, step in enumerate(steps)
            if w != r
            and step.writes
            and (step.place, step.value) == (steps[r].place, steps[r].seen)
        ]
        for r in reads
    ]
    orders = []
    for place in start:
        first, *others = (i for i, step in enumerate(steps) if step.writes and step.place == place)
        orders.append([(first, *rest) for rest in itertools.permutations(others)])
    for order in itertools.product(*orders):
        mo = Relation(len(steps), (p for line in order for p in itertools.combinations(line, 2)))
        end = {steps[line[-1]].place: steps[line[-1]].value for line in order}
        for source in itertools.product(*sources):
            yield dict(zip(reads, source, strict=True)), mo, end


# ---- the pairs of ../README.md --------------------------------------------------------------

FREE, TODO, OWNED, DONE = range(4)
FILLING, CANCELLED, READY = range(10, 13)

#: Parts of several pairs. A thread ends where a read or a swap with `wanted` sees something else.
FILL = (write("bytes", 1), write("row", DONE, RELEASE, "W5 done"))
FINISH = (
    read("row", ACQUIRE, "W6", DONE),
    read("bytes"),
    write("state", READY, RELEASE, "READY"),
)
FILL_AGAIN = (swap("row", TODO, OWNED, ACQUIRE, "W5"), write("bytes", 2))
OWNS = ["S3:release", "W5:acquire"]
FILLS = ["W5 done:release", "W6:acquire"]
RETURNS = ["push:release", "exchange:acquire"]


def schedule(*first: Step) -> Thread:
    return (*first, write("row", TODO, RELEASE, "S3"))


def end_row(mine: str, other: str) -> Thread:
    return (write(mine, DONE, RELEASE), fence("F1"), read(other, ACQUIRE))


def saw(**seen: int) -> Callable[[Values, Values], bool]:
    """All of that was read; a place that was not read counts as none of it."""
    return lambda read, _: all(read.get(place) == value for place, value in seen.items())


def published(pair: str, place: str, flag: str) -> Litmus:
    """One thread writes a place and then its flag; another one that sees the flag reads it."""
    return Litmus(
        (
            (write(place, 1), write(flag, 1, RELEASE, f"{pair} {flag}")),
            (read(flag, ACQUIRE, f"{pair} look", 1), read(place)),
        ),
        {place: 0, flag: 0},
        saw(**{place: 0}),
        [f"{pair} {flag}:release", f"{pair} look:acquire"],
    )


PAIRS = {
    "A1": Litmus(
        (schedule(write("index", 1)), (swap("row", TODO, OWNED, ACQUIRE, "W5"), read("index"))),
        {"index": 0, "row": FREE},
        saw(index=0),
        OWNS,
    ),
    "A2": Litmus((FILL, FINISH), {"bytes": 0, "row": OWNED, "state": FILLING}, saw(bytes=0), FILLS),
    "A3": Litmus(
        (FILL, FINISH, (read("state", ACQUIRE, "T1", READY), read("bytes"))),
        {"bytes": 0, "row": OWNED, "state": FILLING},
        saw(state=READY, bytes=0),
        [*FILLS, "READY:release", "T1:acquire"],
    ),
    "A5": Litmus(
        (FILL, schedule(read("row", ACQUIRE, "collect", DONE)), FILL_AGAIN),
        {"bytes": 0, "row": OWNED},
        lambda read, end: read["row"] == TODO and end["bytes"] == 1,
        ["W5 done:release", "collect:acquire", *OWNS],
    ),
    "lease": Litmus(
        (
            (read("bytes"), swap("returned", 0, 1, RELEASE, "push")),
            schedule(exchange("returned", 1, 0, ACQUIRE, "exchange")),
            FILL_AGAIN,
        ),
        {"bytes": 0, "returned": 0, "row": FREE},
        saw(bytes=2),
        [*RETURNS, *OWNS],
    ),
    "lease, two": Litmus(
        (
            (write("link", 1), swap("returned", 0, 1, RELEASE, "push")),
            (swap("returned", 1, 2, RELEASE),),
            (exchange("returned", 2, 0, ACQUIRE, "exchange"), read("link")),
        ),
        {"link": 0, "returned": 0},
        saw(link=0),
        RETURNS,
    ),
    "D1": Litmus(
        (end_row("one", "other"), end_row("other", "one")),
        {"one": OWNED, "other": OWNED},
        saw(one=OWNED, other=OWNED),
        ["F1"],
    ),
    "D2": Litmus(
        (
            (write("bell", 1), fence("F3"), read("tail")),
            (write("tail", 1, RELEASE), fence("F4"), read("bell")),
        ),
        {"bell": 0, "tail": 0},
        saw(tail=0, bell=0),
        ["F3", "F4"],
    ),
    "D3": Litmus(
        (
            (write("state", READY, RELEASE), fence("F2"), read("pwait")),
            (write("pwait", 1), fence("F5"), read("state", ACQUIRE)),
        ),
        {"state": FILLING, "pwait": 0},
        saw(pwait=0, state=FILLING),
        ["F2", "F5"],
    ),
    "D4": Litmus(
        (
            (
                write("row", DONE, RELEASE),
                fence("F1"),
                read("state", wanted=CANCELLED),
                read("pwait"),
            ),
            (
                write("state", CANCELLED),
                write("pwait", 1),
                fence("F5"),
                read("row", ACQUIRE),
            ),
        ),
        {"row": OWNED, "state": FILLING, "pwait": 0},
        lambda read, _: read["row"] == OWNED and not read.get("pwait"),
        ["F1", "F5"],
    ),
    "G1": published("G1", "filled", "map"),
    "G2": Litmus(
        (
            (read("bytes"), write("state", CANCELLED, RELEASE, "G2 state")),
            (read("state", ACQUIRE, "G2 look", CANCELLED), write("bytes", 2)),
        ),
        {"bytes": 0, "state": FILLING},
        saw(bytes=2),
        ["G2 state:release", "G2 look:acquire"],
    ),
    "G3": published("G3", "bytes", "filled"),
}


def happens(test: Litmus, left_out: str = "") -> tuple[bool, int]:
    """Whether what must not happen does, and how many executions there are."""
    bad = count = 0
    for seen, end in executions(test, left_out):
        count += 1
        bad += test.is_bad(seen, end)
    return bad > 0, count


def main(names: list[str]) -> int:
    status = 0
    for name in names or PAIRS:
        test = PAIRS[name]
        is_wrong, count = happens(test)
        useless = [what for what in test.needed if not happens(test, what)[0]]
        verdict = "FAILS" if is_wrong else f"does without {useless}" if useless else "holds"
        print(f"{name:10} {verdict}, {count} executions; needs {', '.join(test.needed)}")
        status |= is_wrong or bool(useless)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

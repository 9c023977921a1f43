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
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

RELAXED, ACQUIRE, RELEASE, BOTH = "relaxed", "acquire", "release", "acq_rel"


@dataclass(frozen=True)
class Step:
    """One event: a read, a write, both at once (a swap), or a seq_cst fence."""

    kind: str  # R, W, U, F
    place: str = ""
    order: str = RELAXED
    wanted: int | None = None  # of a swap; None: any value, an exchange
    value: int | None = None  # written
    seen: int | None = None  # read
    name: str = ""  # by which an order or a fence is left out

    @property
    def reads(self) -> bool:
        return self.kind in "RU"

    @property
    def writes(self) -> bool:
        return self.kind in "WU"

    @property
    def acquires(self) -> bool:
        return self.kind == "F" or (self.reads and self.order in (ACQUIRE, BOTH))

    @property
    def releases(self) -> bool:
        return self.kind == "F" or (self.writes and self.order in (RELEASE, BOTH))


def read(place: str, order: str = RELAXED, name: str = "") -> Step:
    return Step("R", place, order, name=name)


def write(place: str, value: int, order: str = RELAXED, name: str = "") -> Step:
    return Step("W", place, order, value=value, name=name)


def swap(place: str, wanted: int | None, value: int, order: str, name: str = "") -> Step:
    """A compare-and-swap, or with `wanted` None an exchange. What it yields is what it read; a swap
    that fails is a relaxed read."""
    return Step("U", place, order, wanted, value, name=name)


def fence(name: str) -> Step:
    return Step("F", name=name)


Thread = Callable[[dict[str, int]], Generator[Step, int, None]]


@dataclass(frozen=True)
class Litmus:
    """Threads that run at once from `start`, and what must not come out of it."""

    threads: tuple[Thread, ...]
    start: dict[str, int]
    is_bad: Callable[[dict[str, int], dict[str, int]], bool]  # of what was noted, and the end


# ---- executions -----------------------------------------------------------------------------


def weakened(step: Step, left_out: str) -> Step | None:
    """The step without the order of that name; None for a fence that is left out."""
    if not left_out or step.name != left_out.partition(":")[0]:
        return step
    if step.kind == "F":
        return None
    rest = {RELEASE: ACQUIRE, ACQUIRE: RELEASE}[left_out.partition(":")[2]]
    return replace(step, order=rest if step.order == BOTH else RELAXED)


def traces(thread: Thread, values: dict[str, set[int]], left_out: str) -> Iterator[Any]:
    """Every course that a thread may take, reads giving any of the values that are written."""
    pending: list[list[int]] = [[]]
    while pending:
        answers = pending.pop()
        noted: dict[str, int] = {}
        running, steps, given = thread(noted), [], iter(answers)
        answer: int | None = None
        while True:
            try:
                asked = running.send(answer) if steps or answer is not None else next(running)
            except StopIteration:
                yield steps, noted
                break
            answer = 0
            step = weakened(asked, left_out)
            if step is None:
                steps.append(Step("N"))  # nothing
                continue
            if step.reads:
                seen = next(given, None)
                if seen is None:
                    pending += [[*answers, value] for value in sorted(values[step.place])]
                    break
                answer = seen
                if step.kind == "U" and step.wanted not in (None, seen):
                    step = replace(step, kind="R", order=RELAXED, value=None)
                step = replace(step, seen=seen)
            steps.append(step)


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


def executions(test: Litmus, left_out: str = "") -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """What the threads have noted, and how memory ends, for each execution that is allowed."""
    values = {place: {value} for place, value in test.start.items()}
    while True:  # values that can be written depend on those that can be read
        courses = [list(traces(thread, values, left_out)) for thread in test.threads]
        known = {place: set(some) for place, some in values.items()}
        for steps, _ in itertools.chain(*courses):
            for step in steps:
                if step.writes:
                    known[step.place].add(step.value)
        if known == values:
            break
        values = known
    begin = [(-1, write(place, value)) for place, value in test.start.items()]
    for chosen in itertools.product(*courses):
        events = begin + [(t, step) for t, (steps, _) in enumerate(chosen) for step in steps]
        noted = {key: value for _, notes in chosen for key, value in notes.items()}
        for rf, mo, end in graphs(events, test.start):
            if is_consistent(events, rf, mo):
                yield noted, end


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


def a1(notes: dict[str, int]) -> Any:
    """The parent schedules a row, and its owner reads the index."""
    yield write("index", 1)
    yield write("row", TODO, RELEASE, "S3")


def own_and_read(notes: dict[str, int]) -> Any:
    if (yield swap("row", TODO, OWNED, ACQUIRE, "W5")) == TODO:
        notes["index"] = yield read("index")


def fill(notes: dict[str, int]) -> Any:
    yield write("bytes", 1)
    yield write("row", DONE, RELEASE, "W5 done")


def finish(notes: dict[str, int]) -> Any:
    if (yield read("row", ACQUIRE, "W6")) == DONE:
        notes["bytes"] = yield read("bytes")
        yield write("state", READY, RELEASE, "READY")


def take(notes: dict[str, int]) -> Any:
    if (yield read("state", ACQUIRE, "T1")) == READY:
        notes["taken"] = yield read("bytes")


def collect_drained(notes: dict[str, int]) -> Any:
    if (yield read("row", ACQUIRE, "collect")) == DONE:
        yield write("row", TODO, RELEASE, "S3")


def fill_again(notes: dict[str, int]) -> Any:
    if (yield swap("row", TODO, OWNED, ACQUIRE, "W5")) == TODO:
        notes["again"] = 1
        yield write("bytes", 2)


def use_and_release(notes: dict[str, int]) -> Any:
    notes["used"] = yield read("bytes")
    yield swap("returned", 0, 1, RELEASE, "push")


def collect_returned(notes: dict[str, int]) -> Any:
    if (yield swap("returned", None, 0, ACQUIRE, "exchange")) == 1:
        yield write("row", TODO, RELEASE, "S3")


def push_first(notes: dict[str, int]) -> Any:
    yield write("link", 1)
    yield swap("returned", 0, 1, RELEASE, "push")


def push_second(notes: dict[str, int]) -> Any:
    yield swap("returned", 1, 2, RELEASE)


def take_stack(notes: dict[str, int]) -> Any:
    if (yield swap("returned", None, 0, ACQUIRE, "exchange")) == 2:
        notes["link"] = yield read("link")


def end_row(mine: str, other: str) -> Thread:
    def thread(notes: dict[str, int]) -> Any:
        yield write(mine, DONE, RELEASE)
        yield fence("F1")
        notes[other] = yield read(other, ACQUIRE)

    return thread


def fall_asleep(notes: dict[str, int]) -> Any:
    yield write("bell", 1)
    yield fence("F3")
    notes["tail"] = yield read("tail")


def publish(notes: dict[str, int]) -> Any:
    yield write("tail", 1, RELEASE)
    yield fence("F4")
    notes["bell"] = yield read("bell")


def make_ready(notes: dict[str, int]) -> Any:
    yield write("state", READY, RELEASE)
    yield fence("F2")
    notes["pwait"] = yield read("pwait")


def announce_sleep(notes: dict[str, int]) -> Any:
    yield write("pwait", 1)
    yield fence("F5")
    notes["state"] = yield read("state", ACQUIRE)


def leave_draining(notes: dict[str, int]) -> Any:
    yield write("row", DONE, RELEASE)
    yield fence("F1")
    notes["rings"] = 0
    if (yield read("state")) == CANCELLED:
        notes["rings"] = yield read("pwait")


def reset_and_sleep(notes: dict[str, int]) -> Any:
    yield write("state", CANCELLED)
    yield write("pwait", 1)
    yield fence("F5")
    notes["row"] = yield read("row", ACQUIRE)


def open_block(notes: dict[str, int]) -> Any:
    yield write("filled", 1)
    yield write("map", 1, RELEASE, "G1 map")


def find_block(notes: dict[str, int]) -> Any:
    if (yield read("map", ACQUIRE, "G1 look")) == 1:
        notes["filled"] = yield read("filled")


def read_and_hand_back(notes: dict[str, int]) -> Any:
    notes["used"] = yield read("bytes")
    yield write("state", CANCELLED, RELEASE, "G2 state")


def fill_free_slot(notes: dict[str, int]) -> Any:
    if (yield read("state", ACQUIRE, "G2 look")) == CANCELLED:
        yield write("bytes", 2)


def publish_row(notes: dict[str, int]) -> Any:
    yield write("bytes", 1)
    yield write("filled", 1, RELEASE, "G3 filled")


def take_row(notes: dict[str, int]) -> Any:
    if (yield read("filled", ACQUIRE, "G3 look")) == 1:
        notes["bytes"] = yield read("bytes")


def stale(key: str) -> Callable[[dict[str, int], dict[str, int]], bool]:
    return lambda notes, _: notes.get(key) == 0


#: name: threads, start, what must not happen, what must not be left out
PAIRS: dict[str, tuple[Litmus, list[str]]] = {
    "A1": (
        Litmus((a1, own_and_read), {"index": 0, "row": FREE}, stale("index")),
        ["S3:release", "W5:acquire"],
    ),
    "A2": (
        Litmus((fill, finish), {"bytes": 0, "row": OWNED, "state": FILLING}, stale("bytes")),
        ["W5 done:release", "W6:acquire"],
    ),
    "A3": (
        Litmus((fill, finish, take), {"bytes": 0, "row": OWNED, "state": FILLING}, stale("taken")),
        ["W5 done:release", "W6:acquire", "READY:release", "T1:acquire"],
    ),
    "A5": (
        Litmus(
            (fill, collect_drained, fill_again),
            {"bytes": 0, "row": OWNED},
            lambda notes, end: "again" in notes and end["bytes"] == 1,
        ),
        ["W5 done:release", "collect:acquire", "S3:release", "W5:acquire"],
    ),
    "lease": (
        Litmus(
            (use_and_release, collect_returned, fill_again),
            {"bytes": 0, "returned": 0, "row": FREE},
            lambda notes, _: notes.get("used") == 2,
        ),
        ["push:release", "exchange:acquire", "S3:release", "W5:acquire"],
    ),
    "lease, two": (
        Litmus((push_first, push_second, take_stack), {"link": 0, "returned": 0}, stale("link")),
        ["push:release", "exchange:acquire"],
    ),
    "D1": (
        Litmus(
            (end_row("row 0", "row 1"), end_row("row 1", "row 0")),
            {"row 0": OWNED, "row 1": OWNED},
            lambda notes, _: notes["row 0"] == OWNED and notes["row 1"] == OWNED,
        ),
        ["F1"],
    ),
    "D2": (
        Litmus(
            (fall_asleep, publish),
            {"bell": 0, "tail": 0},
            lambda notes, _: notes["tail"] == 0 and notes["bell"] == 0,
        ),
        ["F3", "F4"],
    ),
    "D3": (
        Litmus(
            (make_ready, announce_sleep),
            {"state": FILLING, "pwait": 0},
            lambda notes, _: notes["pwait"] == 0 and notes["state"] == FILLING,
        ),
        ["F2", "F5"],
    ),
    "D4": (
        Litmus(
            (leave_draining, reset_and_sleep),
            {"row": OWNED, "state": FILLING, "pwait": 0},
            lambda notes, _: notes["rings"] == 0 and notes["row"] == OWNED,
        ),
        ["F1", "F5"],
    ),
    "G1": (
        Litmus((open_block, find_block), {"filled": 0, "map": 0}, stale("filled")),
        ["G1 map:release", "G1 look:acquire"],
    ),
    "G2": (
        Litmus(
            (read_and_hand_back, fill_free_slot),
            {"bytes": 0, "state": FILLING},
            lambda notes, _: notes["used"] == 2,
        ),
        ["G2 state:release", "G2 look:acquire"],
    ),
    "G3": (
        Litmus((publish_row, take_row), {"bytes": 0, "filled": 0}, stale("bytes")),
        ["G3 filled:release", "G3 look:acquire"],
    ),
}


def happens(test: Litmus, left_out: str = "") -> tuple[bool, int]:
    """Whether what must not happen does, and how many executions there are."""
    bad = count = 0
    for noted, end in executions(test, left_out):
        count += 1
        bad += test.is_bad(noted, end)
    return bad > 0, count


def main(names: list[str]) -> int:
    status = 0
    for name in names or PAIRS:
        test, needed = PAIRS[name]
        is_wrong, count = happens(test)
        useless = [what for what in needed if not happens(test, what)[0]]
        verdict = "FAILS" if is_wrong else f"does without {useless}" if useless else "holds"
        print(f"{name:10} {verdict}, {count} executions; needs {', '.join(needed)}")
        status |= is_wrong or bool(useless)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Reads the shards of a `StreamDataset` ahead, part by part, for the merge of their examples.

A turn is one reading of one shard: turn ``epoch * n_shards + place`` is that of the shard at a
place of the epoch's order. A turn's parts are read by one worker, one after another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastiter._fetch.shard_reader import Examples, ShardPart, ShardReader
from fastiter._order.example_context import keep_generators
from fastiter._order.plan import Plan, PlanQueue
from fastiter._plan.state import State
from fastiter._stats.autotune import MOST_PREFETCH
from fastiter._util.failures import Failure, annotate, load, raise_of_handler, reraise
from fastiter.errors import DatasetTimeoutError, WorkerDiedError

if TYPE_CHECKING:
    from fastiter.datasets.stream_dataset import StreamDataset

_LEFT_OUT: Any = object()  # in place of another rank's example
_LEAST = 32  # examples in a part: a request takes as long as some cheap ones

Lanes = tuple[tuple[int, int], ...]  #: turn, and the next example in it


class _Turn:
    """Examples that were read of a turn, from ``start`` on."""

    def __init__(self, start: int, states: list[tuple[int, Any]]) -> None:
        self.start = start
        self.rows: list[Any] = []
        self.end: int | None = None  #: how many examples the shard has
        self.failure: Failure | None = None  #: that ended it
        self.takes_all = False  #: whether other ranks' examples are read, too
        self.states = states  #: of the source: before which example, and the state

    @property
    def stop(self) -> int:
        return self.start + len(self.rows)


class ShardParts:
    """The parts that threads read, by number: a dataset for the iterator that reads."""

    def __init__(self, stream: StreamDataset) -> None:
        self.stream = stream
        self.reader = ShardReader(stream)
        self.asked: dict[int, ShardPart] = {}

    def __getitem__(self, number: int) -> Examples:
        return self.reader.read(self.asked[number])


class PartQueue(PlanQueue):
    """Plans which part the workers of an executor read next. ``parts`` is the dataset of threads,
    which read a turn one at a time; worker processes, which answer in turn, have none."""

    def __init__(
        self, store: PartStore, executor: Any, n_workers: int, parts: ShardParts | None
    ) -> None:
        super().__init__(State(0, 0, False, None, 1, None), 1, True)
        self._store = store
        self.executor = executor
        self._n_workers = n_workers
        self._parts = parts
        self._count = 0

    def advance(self, state: Any) -> Plan:
        """Plan the next part; without indices if nothing is to be read now."""
        asked = [plan.request for plan in self.plans if plan.indices is not None]
        part = self._store.next_part(asked, self._parts is None)
        if part is None:
            return Plan(None, state)
        number = self._count = self._count + 1
        worker = -1
        if self._parts is None:
            worker = part.number % self._n_workers
        else:
            self._parts.asked[number] = part
        return Plan(np.array([number], np.int64), state, None, part, worker, number=number)

    def take(self) -> tuple[ShardPart, Any]:
        """Have the workers read on, and wait for the oldest part."""
        self.plans[:] = [plan for plan in self.plans if plan.indices is not None]
        plan = self.peek()
        assert plan.indices is not None  # what is needed is asked for
        if plan.outcome is None:
            self.executor.make(self, plan)
        part, outcome = plan.request, plan.outcome
        self.deliver()
        if self._parts is not None:
            self._parts.asked.pop(int(plan.indices[0]), None)
        return part, outcome


class PartStore:
    """Examples that were read of the open turns, and of turns after them. ``rows`` are the examples
    that all ranks take in a step."""

    def __init__(self, stream: StreamDataset, rows: int) -> None:
        self.stream = stream
        self.queue: PartQueue | None = None  #: of the workers that read; None: the caller does
        self._step_rows = rows
        self.rows = max(_LEAST, -(-rows // min(stream.interleave, len(stream.shards))))
        #: the lanes that are open at the end of what is merged, and turns that are opened then
        self.merged_to: tuple[Lanes, range] = (), range(0)
        self._reader = ShardReader(stream)
        self._turns: dict[int, _Turn] = {}
        self._order = functools.lru_cache(maxsize=3)(stream.order)  # of an epoch
        self._needed = -1  # the turn that is waited for
        self._raised: set[int] = set()  # turns whose failure was raised
        self._most: dict[int, int] = {}  # by turn: examples in a part, where one could not be sent
        self.skips = False  #: whether shards may be left out that failed
        #: decides about a shard that failed: what to raise; None if the rest of it is left out
        self.decide: Callable[[int, Failure], Failure | None] = lambda number, failure: failure
        #: tells whether a shard was skipped in its turn
        self.has_failed: Callable[[int], bool] = lambda number: False
        #: tells which examples of a part are this rank's, as `ShardPart.keep`
        self.keep: Callable[[int, int, int], bytes | None] = lambda number, start, stop: None

    def parts_ahead(self, n_batches: int, n_workers: int) -> int:
        """Number of parts to read ahead for a number of batches: some for each worker."""
        n_rows = n_batches * self._step_rows
        return min(MOST_PREFETCH, max(2 * n_workers, -(-n_rows // self.rows)))

    def read_by(self, executor: Any, n_workers: int, parts: ShardParts | None = None) -> None:
        """Have the workers of an executor read the parts; threads by `ShardParts`."""
        self.queue = PartQueue(self, executor, n_workers, parts)

    def close(self) -> None:
        """End what reads in the caller."""
        self._reader.close()

    def clear(self, states: dict[int, tuple[int, Any]]) -> None:
        """Forget what was read, and go on where sources have these states."""
        self._turns = {number: _Turn(at, [(at, state)]) for number, (at, state) in states.items()}
        self._raised.clear()
        self.merged_to = (), range(0)
        if self.queue is not None:
            begun = self.queue.begun_work()
            self.queue.restart(self.queue.state)
            self.queue.executor.drop(begun)

    def trim(self, lanes: Lanes, following: int) -> None:
        """Forget what comes before these."""
        keep = dict(lanes)
        for number in [n for n in self._turns if n < following and n not in keep]:
            del self._turns[number]
        for number, position in lanes:
            turn = self._turns.setdefault(number, _Turn(position, []))
            if position > turn.start:
                # No handler runs between the two: examples would be taken for others.
                turn.start, turn.rows = position, turn.rows[position - turn.start :]
            while len(turn.states) > 1 and turn.states[1][0] <= position:
                del turn.states[0]

    def state_at(self, number: int, position: int) -> tuple[int, Any] | None:
        """The last state that a turn's source had before an example, and where that was."""
        turn = self._turns.get(number)
        known = [] if turn is None else [each for each in turn.states if each[0] <= position]
        return known[-1] if known else None

    # ---- what the merge asks

    def available(self, number: int, position: int) -> int:
        """Number of examples of a turn that are known to exist, from a position on."""
        lengths = self.stream.lengths
        if lengths is not None:
            return lengths[self.shard(number)] - position
        turn = self._turns.get(number)
        return 0 if turn is None or position < turn.start else max(0, turn.stop - position)

    def has(self, number: int, position: int) -> bool:
        """Whether a turn has an example at this position; waits until that is known. Raises what
        the shard has raised there, once."""
        if self.stream.lengths is not None:
            return self.available(number, position) > 0
        return self._read(number, position) is not None

    def examples(self, places: list[tuple[int, int]]) -> list[Any]:
        """The examples at these places; without those that a shard with a known length lacks."""
        found = []
        for number, position in places:
            turn = self._read(number, position)
            if turn is not None:
                found.append(turn.rows[position - turn.start])
        return found

    def _read(self, number: int, position: int) -> _Turn | None:
        """The turn when it has been read up to this example; None if it has ended before."""
        while True:
            turn = self._turns.get(number)
            if turn is None or position < turn.start:
                turn = self._turns[number] = _Turn(0, [])
            if position < turn.stop:
                if turn.rows[position - turn.start] is not _LEFT_OUT:
                    if position + 1 == turn.end and self.stream.lengths is not None:
                        self._tell(number)  # not later: no example is looked for after this one
                    return turn
                turn = self._turns[number] = _Turn(0, [])
                turn.takes_all = True
            if turn.end is None:
                self._read_on(number)
                continue
            self._tell(number)
            return None

    def _tell(self, number: int) -> None:
        """Raise what has ended a turn, or skip it, once."""
        failure = self._turns[number].failure
        if failure is not None and number not in self._raised:
            failure = self.decide(number, failure)
            self._raised.add(number)
            if failure is not None:
                reraise(failure)

    def _read_on(self, number: int) -> None:
        """Wait for one more part: without workers, of this turn."""
        if self.queue is None:
            part, read = self._part(number, self._turns[number].stop), self._reader.read
            seeded = self.stream.seeds is not None
            found = keep_generators(read, part) if seeded else read(part)
            if found.failure is not None and not self.skips:
                raise_of_handler(found.failure)  # after which the part is read again
            if not isinstance(found.failure, Exception | None):
                raise found.failure  # such as Ctrl-C
            self._add(part, found)
            return
        self._needed = number
        self._add(*self.queue.take())

    def _add(self, part: ShardPart, outcome: Any) -> None:
        turn = self._turns.setdefault(part.number, _Turn(part.start, []))
        if turn.end is not None or part.start != turn.stop:
            return  # it was asked for before the turn began anew
        facts = f"{self.stream.name(part.shard)}, example {{}}"
        if isinstance(outcome, Failure):
            error = outcome.error
            was_read = not isinstance(error, (WorkerDiedError, DatasetTimeoutError))
            if was_read and part.size > 1:  # one does not pickle: those before it come alone
                self._most[part.number] = part.size // 2
                return
            facts = facts.format(part.start if was_read else f"{part.start} or after")
            if isinstance(error, WorkerDiedError):
                outcome.error = _died(error, facts)
            else:
                annotate(error, facts)
            turn.end, turn.failure = turn.stop, outcome
            return
        found = outcome[0] if isinstance(outcome, list) else outcome
        rows: list[Any] = found.rows
        if part.keep is not None:
            wanted = iter(rows)
            rows = [next(wanted) if keep else _LEFT_OUT for keep in part.keep[: found.size]]
        if found.failure is not None:
            turn.failure = _failure_of(found.failure, facts.format(part.start + found.size))
        turn.rows += rows
        if found.is_end:
            turn.end = turn.stop
        elif found.state is not None:
            turn.states.append((turn.stop, found.state))

    # ---- what is read next

    def next_part(self, asked: list[ShardPart], many: bool) -> ShardPart | None:
        """The part to read after those that were asked for: of the open turn that is the least
        ahead, or the first one of a turn to come. With ``many``, a turn may have several parts
        that are being read."""
        busy = {part.number for part in asked}
        lanes, following = self.merged_to
        is_open, needed = dict(lanes), self._needed
        wanted = {**dict.fromkeys(following, 0), **is_open}
        if needed not in is_open and needed in self._turns:
            # The tail of a last step. Or the front is that of a merge before: with lengths, it goes
            # on without a word here.
            wanted[needed] = self._turns[needed].stop
        best: tuple[int, int, int, bool] | None = None
        for number, position in wanted.items():
            turn = self._turns.get(number)
            if (turn is not None and turn.end is not None) or (number in busy and not many):
                continue
            read = stop = position if turn is None else turn.stop
            for part in asked:
                if part.number == number and part.start == stop:
                    stop += part.size
            length = self._length(number)
            if length is not None and stop >= length:
                continue
            is_later = number in following and number != needed
            if is_later and stop:
                continue
            rank = (stop - position + is_later * self.rows, number, stop, stop > read)
            best = rank if best is None else min(best, rank)
        return None if best is None else self._part(*best[1:])

    def _part(self, number: int, start: int, is_ahead: bool = False) -> ShardPart:
        shard, length = self.shard(number), self._length(number)
        count = self._most.get(number, self.rows)
        keep = None
        if length is not None:
            count = min(count, length - start)
            if not self._turns.setdefault(number, _Turn(0, [])).takes_all:
                keep = self.keep(number, start, start + count)
        resume, fails = self.state_at(number, start), self.has_failed(number)
        return ShardPart(number, shard, start, count, length, resume, keep, fails, is_ahead)

    def _length(self, number: int) -> int | None:
        lengths = self.stream.lengths
        return None if lengths is None else lengths[self.shard(number)]

    def shard(self, number: int) -> int:
        epoch, place = divmod(number, len(self.stream.shards))
        return self._order(epoch)[place]


def _failure_of(error: Any, facts: str) -> Failure:
    """Exception of a shard, raised here or in a worker process, with its place."""
    if isinstance(error, tuple):
        return load(error, facts)
    failure = Failure.of(error, facts)
    annotate(failure.error, facts)
    return failure


def _died(error: WorkerDiedError, facts: str) -> WorkerDiedError:
    """The same of a part, of which the workers know a number only."""
    named = WorkerDiedError(f"{facts}: {error}")
    named.pid, named.exit_reason = error.pid, error.exit_reason
    return named

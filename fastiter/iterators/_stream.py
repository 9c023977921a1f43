"""The order of a `StreamDataset`'s examples, and its state.

Where a shard ends is known when it has been read so far; so a batch is planned when it is due, of
what was read ahead (`PartStore`). A plan has the places of its examples, from which the batch is
made. All of it follows from the state before: a call that is interrupted can be made again.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastiter._fetch.shard_reader import ShardSeeds
from fastiter._order.plan import Plan
from fastiter._plan.epochs import Planner, converter_seed, dataset_length
from fastiter._plan.record import unreadable
from fastiter._plan.state import Snapshot, State, natural
from fastiter._util.failures import Failure
from fastiter.iterators._skips import ShardPolicy
from fastiter.iterators._stream_parts import Lanes, PartStore

if TYPE_CHECKING:
    from fastiter._fetch.seeded import Seeding
    from fastiter._order.example_context import Seed
    from fastiter.datasets.stream_dataset import StreamDataset

_MOST_AHEAD = 4096  # steps that are planned to leave out other ranks' examples of a part


class StreamPlace(NamedTuple):
    """The begin of the window that has the next example."""

    lanes: Lanes = ()  #: turn and next example of each open shard; the first has its turn now
    n_opened: int = 0  #: shards of the epoch
    number: int = 0  #: of the window in the epoch
    offset: int = 0  #: of the next example in the window


def _place_of(state: State) -> StreamPlace:
    return state.order  # type: ignore[return-value]


class StreamPlanner(Planner):
    """Plans the batches of a stream.

    In a `State` of it, ``order`` is a `StreamPlace`, ``epoch_size`` counts the shards, ``position``
    those that have ended, and ``n_drawn - 1`` is the number of the epoch over all resets.
    """

    store: PartStore  #: set by the iterator, which has one of its own after each copy

    def __init__(self, stream: StreamDataset, **arguments: Any) -> None:
        super().__init__(
            self.initial(stream, 0, 0),
            order_sampler=None,
            dataset_len=functools.partial(dataset_length, stream),
            **arguments,
        )
        self.stream = stream
        self.sources: dict[int, tuple[int, Any]] = {}  # states of sources where it began
        self.policy: ShardPolicy | None = None  #: decides about shards that fail
        self._windows: dict[Any, Any] = {}  # the last ones, by where they begin
        self._look_ahead(self.state)

    @staticmethod
    def initial(stream: StreamDataset, number: int, step: int) -> State:
        """The state before an epoch of this number over all resets."""
        return State(0, 0, False, StreamPlace(), len(stream.shards), None, number + 1, None, step)

    def after_reset(self) -> State:
        """The state to go on from: before the epoch that follows, or one that was not begun."""
        state = self.state
        number = state.n_drawn - (state.order == StreamPlace())
        self.sources = {}
        return self.initial(self.stream, number, state.step)

    def restart(self, state: State, progress: Any = None, *_: Any) -> None:
        """Go on from ``state``, with `sources`."""
        super().restart(state, progress)
        self.store.clear(self.sources)
        self._windows.clear()
        self._look_ahead(state)

    # ---- what `Planner` asks

    kind = "sources"
    has_addresses = False

    def n_examples(self) -> int:
        return sum(self.stream.lengths) if self.stream.lengths else super().n_examples()

    def parts_for(self, seeding: Seeding | None) -> PartStore:
        stream = self.stream
        if seeding is not None:
            assert self.example_seed is not None
            stream = stream.seeded(ShardSeeds(self.example_seed, seeding, len(stream.shards)))
        return PartStore(stream, self.batch_size * self.num_ranks)

    def close(self) -> None:
        if "store" in self.__dict__:
            self.store.close()

    def attach(self, store: PartStore) -> None:
        self.store = store
        store.clear(self.sources)
        store.decide, store.has_failed = self._decide, lambda number: self._turn(number)[2]
        store.skips = self.policy is not None
        if self.num_ranks > 1 and self.stream.lengths is not None:
            store.keep = self._keep

    def examples_of(self, plan: Plan) -> list[Any]:
        places, n_valid = plan.request, plan.n_valid
        examples = self.store.examples(places[:n_valid])
        plan.n_valid_dropped = n_valid - len(examples)
        examples += self.store.examples(places[n_valid:])
        plan.n_dropped = len(plan.indices) - len(examples)
        plan.progress = self.progress  # shards may have failed
        return examples

    def seed_after_reset(self) -> Seed:
        return self.seed  # epochs go on counting

    def __getstate__(self) -> dict[str, Any]:
        given = super().__getstate__()
        self._note_sources()
        given.update(plans=[], sources=self.sources, _windows={}, _ahead=self.state, _marks={})
        given.pop("store", None)
        return given

    def _note_sources(self) -> None:
        if "store" not in self.__dict__:
            return  # a copy that was not read by yet
        lanes = _place_of(self.state).lanes
        found = ((number, self.store.state_at(number, at)) for number, at in lanes)
        self.sources = {number: state for number, state in found if state is not None}

    def _decide(self, number: int, failure: Failure) -> Failure | None:
        """`PartStore.decide`. A shard that is read again counts once in an epoch."""
        if self.policy is None:
            return failure
        shard, epoch, is_known = self._turn(number)
        if is_known:
            return None
        plan = Plan(np.array([shard]), self.state, origin=(epoch, 1, self.state.epoch_size))
        plan.progress, failure.row = self.progress, 0
        found = self.policy.resolve(plan, [failure])
        if isinstance(found, dict):
            raise TypeError(f"on_error returned a Replacement for shard {shard}: skip or raise it")
        if type(found) is Failure:
            return found
        self.progress = plan.progress
        return None

    def _turn(self, number: int) -> tuple[int, int, bool]:
        """Shard and epoch of a turn, and whether that shard was skipped in that epoch."""
        state, shard = self.state, self.store.shard(number)
        epoch = state.epoch + number // state.epoch_size - (state.n_drawn - 1)
        record = None if self.policy is None else self.progress.records.get(shard)
        return shard, epoch, record is not None and record.epoch == epoch

    # ---- batches

    def advance(self, state: State) -> Plan:
        """The plan of the batch after ``state``; without indices at the end of the iteration."""
        detail = state.epoch_detail
        if not self.repeat and state.epoch > 0:
            return Plan(None, state._replace(previous_epoch_detail=detail))
        place, epoch, number = _place_of(state), state.epoch, state.n_drawn - 1
        if not self._is_ahead:
            following = number * state.epoch_size + place.n_opened
            self.store.trim(place.lanes, following)
            for closed in {n for n in self._marks if n < following} - {*dict(place.lanes)}:
                del self._marks[closed]
        whole = self.batch_size * self.num_ranks
        is_endless = self.repeat and not self.drop_last
        # With fewer examples left than this, the step is the last one of its epoch.
        more = 1
        if not is_endless and (self.drop_last or self.tail == "drop"):
            more = whole if self.drop_last else self.num_ranks
        places: list[tuple[int, int]] = []
        is_new_epoch, began = False, place == StreamPlace()
        while True:
            found, place = self._take(number, place, whole - len(places))
            places += found
            if self._has(number, place, more):
                break
            if began and not found:
                raise ValueError(f"an epoch of all {state.epoch_size} shards has no example")
            share = self.batch_size if len(places) == whole else self.share(len(places))
            if not is_endless and not share and began:
                raise ValueError(
                    f"an epoch of {len(places)} examples has no full batch: batch_size is "
                    f"{self.batch_size}, for {self.num_ranks} rank(s)"
                )
            epoch, number, place = epoch + 1, number + 1, StreamPlace()
            is_new_epoch = began = True
            if not is_endless and not share:
                places = []  # what is left of an epoch that was begun with smaller batches
                state = state._replace(
                    position=0, epoch=epoch, is_new_epoch=True, order=place, n_drawn=number + 1
                )
                if not self.repeat:
                    return Plan(None, state._replace(previous_epoch_detail=state.epoch_detail))
            elif len(places) == whole or not is_endless:
                break
        position, size, step = place.n_opened - len(place.lanes), state.epoch_size, state.step
        after = State(
            position, epoch, is_new_epoch, place, size, detail, number + 1, None, step + 1
        )
        share = n_valid = self.batch_size
        if len(places) < whole:
            share = n_valid = self.share(len(places))
            if self.tail == "mask":
                n_valid = max(0, min(share, len(places) - self.rank * share))
            places += self._fill(number - 1, share * self.num_ranks - len(places))
        places = places[self.rank * share : (self.rank + 1) * share]
        shards = np.array([self.store.shard(turn) for turn, _ in places], np.int64)
        seeds, origin = None, (state.epoch, len(places), 1)
        if self.example_seed is not None:  # the converter's, which is called here
            own = converter_seed(self.example_seed, step, self.rank)
            seeds = bytes(8 * len(places)) + own
        return Plan(
            shards, after, None, places, origin=origin, number=step, n_valid=n_valid, seeds=seeds
        )

    def _fill(self, number: int, count: int) -> list[tuple[int, int]]:
        """An epoch's first examples, over and over."""
        filled: list[tuple[int, int]] = []
        while len(filled) < count:
            filled += self._take(number, StreamPlace(), count - len(filled))[0]
        return filled

    # ---- with lengths: which examples are this rank's

    def _look_ahead(self, state: State) -> None:
        """Forget what was found out, and begin anew."""
        self._ahead = state
        self._marks: dict[int, bytearray] = {}
        self._is_ahead = False  # whether a batch is planned only to mark its examples

    def _keep(self, turn: int, start: int, stop: int) -> bytes | None:
        """This rank's examples of a part; None if finding them would take long."""
        most = self._ahead.step + _MOST_AHEAD
        while not self._is_decided(turn, stop):
            if self._ahead.step == most:
                return None
            self._is_ahead = True
            try:
                plan = self.advance(self._ahead)
            finally:
                self._is_ahead = False
            if plan.indices is None:
                break
            for number, at in plan.request:
                if number not in self._marks:
                    lengths = self.stream.lengths
                    assert lengths is not None
                    self._marks[number] = bytearray(lengths[self.store.shard(number)])
                self._marks[number][at] = 1
            self._ahead = plan.state
        return bytes(self._marks.get(turn, bytes(stop))[start:stop])

    def _is_decided(self, turn: int, stop: int) -> bool:
        number, place = self._ahead.n_drawn - 1, _place_of(self._ahead)
        lanes = dict(place.lanes)
        if turn in lanes:
            return lanes[turn] >= stop
        return turn < number * self._ahead.epoch_size + place.n_opened

    # ---- the order

    def _take(
        self, number: int, place: StreamPlace, count: int
    ) -> tuple[list[tuple[int, int]], StreamPlace]:
        """The next examples of an epoch, fewer at its end, and the place after them."""
        window = self.stream.window
        if window == 1:
            places, lanes, n_opened = self._walk(number, place.lanes, place.n_opened, count)
            return places, StreamPlace(lanes, n_opened)
        found: list[tuple[int, int]] = []
        while len(found) < count:
            places, after = self._shuffled(number, place)
            offset = min(len(places), place.offset + count - len(found))
            found += places[place.offset : offset]
            if offset < len(places):
                return found, place._replace(offset=offset)
            if len(places) < window:
                return found, after._replace(offset=0)
            place = after
        return found, place

    def _shuffled(
        self, number: int, place: StreamPlace
    ) -> tuple[list[tuple[int, int]], StreamPlace]:
        """The examples of a place's window, and the place after it."""
        key = number, place._replace(offset=0)
        if key not in self._windows:
            places, lanes, n_opened = self._walk(number, *place[:2], self.stream.window)
            order = self.stream.window_order(number, place.number, len(places))
            while len(self._windows) > 2:
                self._windows.pop(next(iter(self._windows)), None)
            shuffled = [places[i] for i in order]
            self._windows[key] = shuffled, StreamPlace(lanes, n_opened, place.number + 1)
        return self._windows[key]  # type: ignore[no-any-return]

    def _has(self, number: int, place: StreamPlace, count: int) -> bool:
        """Whether an epoch has at least this number of examples left."""
        if place.offset:
            places, after = self._shuffled(number, place)
            count, place = count - (len(places) - place.offset), after
        return count <= 0 or len(self._walk(number, *place[:2], count)[0]) == count

    def _walk(
        self, number: int, lanes: Lanes, n_opened: int, count: int
    ) -> tuple[list[tuple[int, int]], Lanes, int]:
        """The next examples of an epoch before their window is shuffled: one of each open shard in
        turn. Waits until they were read."""
        store, n_shards = self.store, len(self.stream.shards)
        first, most = number * n_shards, min(self.stream.interleave, n_shards)
        turns = deque(lanes)
        while len(turns) < most and n_opened < n_shards:
            turns.append((first + n_opened, 0))
            n_opened += 1
        found: list[tuple[int, int]] = []
        while len(found) < count and turns:
            # Whole rounds of what is there, and else one example.
            n = min((store.available(*each) for each in turns), default=0)
            n = min(n, (count - len(found)) // len(turns))
            if n > 0:
                rounds = (zip(itertools.repeat(t), range(at, at + n)) for t, at in turns)
                found += itertools.chain.from_iterable(zip(*rounds, strict=True))
                turns = deque((turn, at + n) for turn, at in turns)
                continue
            if not self._is_ahead:
                stop = n_shards + most if self.repeat else n_shards
                following = range(first + n_opened, first + min(stop, n_opened + most))
                store.merged_to = tuple(turns), following
            turn, at = turns.popleft()
            if store.has(turn, at):
                found.append((turn, at))
                turns.append((turn, at + 1))
            elif n_opened < n_shards:
                turns.appendleft((first + n_opened, 0))
                n_opened += 1
        return found, tuple(turns), n_opened

    # ---- snapshots

    def go_on_from(self, snapshot: Snapshot) -> None:
        if snapshot.sources is not None:
            self.sources = snapshot.sources
        super().go_on_from(snapshot)

    def saved_place(self) -> dict[str, Any]:
        state = self.state
        place = _place_of(state)
        first = (state.n_drawn - 1) * state.epoch_size
        self._note_sources()
        return {
            **self._facts(),
            "number": state.n_drawn - 1,
            "opened": place.n_opened,
            "window_number": place.number,
            "offset": place.offset,
            "lanes": [[turn - first, at] for turn, at in place.lanes],
            "sources": [[turn - first, at, of] for turn, (at, of) in self.sources.items()],
        }

    def _facts(self) -> dict[str, Any]:
        """Facts from which order and examples follow."""
        stream, seed = self.stream, self.example_seed
        facts = {
            "n_shards": len(stream.shards),
            "shards": stream.digest,
            "seed": None if stream.words is None else list(stream.words),
            "window": stream.window,
            "interleave": stream.interleave,
        }
        return facts if seed is None else {**facts, "seed_examples": list(seed)}

    def loaded_place(self, record: Mapping[str, Any]) -> tuple[State, Any]:
        stored, facts = record.get("stream"), self._facts()
        if not isinstance(stored, Mapping):
            raise unreadable("stream", TypeError(f"{stored!r:.80}"))
        for name in {**facts, "seed_examples": None}:
            theirs, ours = stored.get(name), facts.get(name)
            if theirs != ours:
                raise ValueError(
                    f"the snapshot was saved with another stream: its {name} is {theirs!r}, here "
                    f"it is {ours!r}"
                )
        n_shards = len(self.stream.shards)
        try:
            names = ("number", "opened", "window_number", "offset")
            number, opened, window, offset = (natural(stored[name]) for name in names)
            step = natural(record["step"])
            first = number * n_shards
            lanes = tuple((first + natural(turn), natural(at)) for turn, at in stored["lanes"])
            sources = {
                first + natural(turn): (natural(at), of) for turn, at, of in stored["sources"]
            }
            if opened > n_shards or any(turn >= first + opened for turn, _ in lanes):
                raise ValueError(f"{opened} opened shards, of {n_shards}")
            if not offset < self.stream.window or len(dict(lanes)) != len(lanes):
                raise ValueError(f"offset {offset}, lanes {lanes}")
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable("stream", error) from error
        place = StreamPlace(lanes, opened, window, offset)
        position = opened - len(lanes)
        state = State(position, 0, False, place, n_shards, None, number + 1, None, step)
        return state, sources

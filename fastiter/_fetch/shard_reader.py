"""Reads parts of shards, in the process or thread that makes the request."""

from __future__ import annotations

import io
import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastiter._fetch.dataset_access import is_stateful
from fastiter._util.failures import STOPS

if TYPE_CHECKING:
    from fastiter._fetch.seeded import Seeding
    from fastiter._order.example_context import Seed

_MOST_ENDS = 1000  # turns whose end is kept: far more than have parts ahead


class ShardPart(NamedTuple):
    """Consecutive examples of a shard."""

    number: int  #: of the shard's turn, over all epochs
    shard: int
    start: int
    size: int
    length: int | None  #: of the shard, if known
    resume: tuple[int, Any] | None  #: an example before the part, and the source's state there
    keep: bytes | None = None  #: for each example, whether it is wanted; None: all are
    fails: bool = False  #: whether the shard may fail before the part, which reading it tells
    is_ahead: bool = False  #: whether the part before it was not read when this one was asked for


class Examples(NamedTuple):
    """Examples that were read of a part."""

    rows: list[Any]  #: those that are wanted
    size: int  #: how many there were, with the others
    is_end: bool  #: whether the shard has no more
    state: Any  #: of the source after them; None if it has none
    failure: Any  #: exception of the shard after them, or None


class ShardSeeds(NamedTuple):
    """Seeds the global generators for each example of a shard, by seed, epoch, shard and place."""

    seed: Seed
    seeding: Seeding
    n_shards: int

    def before(self, part: ShardPart, start: int, count: int) -> Iterator[None]:
        """Seed before each of some examples; the shard is opened before the one at -1."""
        from fastiter._order import permutation

        facts = part.number // self.n_shards, part.shard
        epochs, shards = (np.full(count, fact, dtype=np.int64) for fact in facts)
        places = np.arange(start + 2, start + 2 + count, dtype=np.int64)
        for seed in permutation.example_seeds(self.seed, epochs, shards, places).tolist():
            yield self.seeding(seed)


class _OpenShard:
    def __init__(self, opened: Any, part: ShardPart, seeds: ShardSeeds | None) -> None:
        self._opened = opened
        self._part, self._seeds = part, seeds
        self._stateful: Any = opened if is_stateful(opened) else None
        self._items: Any = None
        self.position = 0
        start = 0 if part.fails else part.start
        if self._stateful is not None:
            if part.resume is not None:
                self.position, state = part.resume
                opened.load_state_dict(state)
        elif start and hasattr(opened, "seek") and not hasattr(opened, "read"):
            opened.seek(start)
            self.position = start
        elif not part.fails and isinstance(opened, (Sequence, np.ndarray)):
            self._items = opened
        self._examples: Iterator[Any] | None = None if self._items is not None else iter(opened)

    def take(self, count: int, rows: list[Any]) -> None:
        """Append the next examples to ``rows``; fewer at the end."""
        following = self._examples
        if following is None:
            following = map(self._items.__getitem__, range(self.position, len(self._items)))
        before = len(rows)
        examples: Iterator[Any] = itertools.islice(following, count)
        if self._seeds is not None:
            seeds = self._seeds.before(self._part, self.position, count)
            examples = (example for _, example in zip(seeds, following, strict=False))
        try:
            rows.extend(examples)  # keeps those before an exception
        finally:
            self.position += len(rows) - before

    def skip(self, count: int) -> None:
        """Go on without the next examples."""
        if self._examples is None:
            self.position = min(self.position + count, len(self._items))
            return
        stop = self.position + count
        while (n := min(256, stop - self.position)) > 0:
            dropped: list[Any] = []
            self.take(n, dropped)
            if len(dropped) < n:
                break

    def close(self) -> None:
        """Close a file or generator; other objects may belong to the program."""
        for each in (self._examples, self._opened):
            if isinstance(each, (io.IOBase, Generator)):
                each.close()

    def state(self) -> Any:
        return None if self._stateful is None else self._stateful.state_dict()


class ShardReader:
    """Reads parts of the shards of a `StreamDataset`. A shard stays open for its next part.

    An answer does not depend on earlier ones: a reader that was replaced, or gets a request for the
    same part again, opens the shard anew.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._seeds = stream, stream.seeds
        self._most = 2 * stream.interleave + 1  # shards that stay open
        self._sources: dict[int, _OpenShard] = {}
        # Where turns have ended or failed: parts behind that are asked for ahead of it.
        self._ends: dict[int, int] = {}

    def read(self, part: ShardPart) -> Examples:
        """Read a part. The result holds an exception of the shard; `STOPS` pass."""
        end = self._ends.pop(part.number, None)
        if end is not None and part.is_ahead and part.start >= end:
            self._ends[part.number] = end
            return Examples([], 0, True, None, None)
        source = self._sources.pop(part.number, None)  # which an interrupt leaves unusable
        rows: list[Any] = []
        count = 0
        try:
            if source is not None and source.position != part.start:
                source.close()
                source = None
            if source is None:
                source = self._opened(part)
            if source.position == part.start:
                for keep, group in itertools.groupby(part.keep or itertools.repeat(1, part.size)):
                    n = sum(1 for _ in group)
                    if keep:
                        source.take(n, rows)
                    else:
                        source.skip(n)
            count = max(0, source.position - part.start)
            is_end = count < part.size
            self._check_length(part, source, is_end)
            state = None if is_end else source.state()
        except STOPS:
            raise
        except BaseException as error:
            if source is not None:
                count = min(part.size, max(0, source.position - part.start))
                source.close()
            self._ends[part.number] = part.start + count
            return Examples(rows, count, True, None, error)
        if is_end:
            source.close()
            self._ends[part.number] = part.start + count
        else:
            self._sources[part.number] = source
            while len(self._sources) > self._most:
                self._sources.pop(next(iter(self._sources))).close()
        return Examples(rows, count, is_end, state, None)

    def close(self) -> None:
        """Close all shards. Later reads open them anew."""
        while self._sources:
            self._sources.popitem()[1].close()

    def _opened(self, part: ShardPart) -> _OpenShard:
        if len(self._ends) > _MOST_ENDS:
            self._ends.clear()
        if self._seeds is not None:
            next(self._seeds.before(part, -1, 1))
        opened = self._stream.open_shard(self._stream.shards[part.shard])
        source = _OpenShard(opened, part, self._seeds)
        source.skip(part.start - source.position)
        return source

    def _check_length(self, part: ShardPart, source: _OpenShard, is_end: bool) -> None:
        """Raise ValueError if a shard with a known length has another one."""
        if part.length is None or (not is_end and source.position < part.length):
            return
        more: list[Any] = []
        if source.position == part.length and not is_end:
            source.take(1, more)
        if more or source.position < part.length:
            count = "more" if more else f"only {source.position}"
            raise ValueError(f"the shard has {count} examples, but lengths= says {part.length}")

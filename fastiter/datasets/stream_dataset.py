"""Shards whose examples come one after another."""

from __future__ import annotations

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fastiter._fetch.shard_reader import ShardSeeds
from fastiter._order.permutation import example_words, fast_permutation, seed_words
from fastiter._util.arguments import checked_int, iterated

__all__ = ["StreamDataset"]


class StreamDataset:
    """Examples of shards that can only be read from the front: archives, logs, tables.

    An iterator opens the shards, reads them in its workers, and merges their examples into one
    order, which follows from the arguments here alone: not from the kind of iterator, the number of
    workers or ranks, or the batch size. An epoch has each example of each shard once.

    In an epoch the shards are shuffled, if there is a seed. The first ``interleave`` of them are
    open, and give an example each in turn; when a shard has ended, the next shard takes its
    place. Then each ``window`` examples are shuffled among themselves.

    Parameters
    ----------
    shards : sequence
        Arguments of ``open_shard``, one for each shard: file names, for example. Equal entries are
        a ValueError.
    open_shard : callable
        ``open_shard(shard)`` gives the examples of a shard, the same ones each time: an iterable,
        or a generator. To resume inside a shard, the first of these that the reader supports is
        used: ``state_dict()`` and ``load_state_dict(state)``, whose state must describe the
        examples already returned; ``seek(n)``, called before the iteration, which goes to example n
        (the ``seek`` of files, which counts bytes, and of other objects with ``read`` is not used);
        indices of a sequence or an array. Otherwise the examples before are read again.
        ``open_shard`` has to pickle where worker processes are not forked.
    seed : int, sequence of int or numpy.random.SeedSequence, optional
        Seed that shuffles shards and windows, in each epoch anew. None: the order given.
    window : int
        Number of examples that are shuffled among themselves, all in memory. 1: no shuffling.
    lengths : sequence of int, optional
        Number of examples of each shard. A shard with another number is then an error.
    interleave : int
        Most shards that are read at a time. More workers than this have little to do.

    Examples
    --------
    >>> texts = {"a": "fast", "b": "data"}
    >>> stream = StreamDataset(["a", "b"], texts.__getitem__, interleave=2)
    >>> "".join(sum(SerialIterator(stream, 3, repeat=False), []))
    'fdaastta'
    """

    #: of an iterator with ``seed_examples``, in a copy of its own
    seeds: ShardSeeds | None = None

    def __init__(
        self,
        shards: Iterable[Any],
        open_shard: Callable[[Any], Iterable[Any]],
        *,
        seed: int | Sequence[int] | np.random.SeedSequence | None = None,
        window: int = 1,
        lengths: Iterable[int] | None = None,
        interleave: int = 1,
    ) -> None:
        if isinstance(shards, (str, bytes)):
            raise TypeError(f"shards must be a sequence of shards, not {shards!r:.80}")
        self.shards = list(iterated("shards", "a sequence of shards", shards))
        if not self.shards:
            raise ValueError("shards must have at least one shard, but is empty")
        names = [_name_of(shard) for shard in self.shards]
        twice, count = Counter(names).most_common(1)[0]
        if count > 1:
            raise ValueError(f"shards must differ, but {twice:.200} comes more than once")
        text = "".join(re.sub(" at 0x[0-9a-fA-F]+", "", f"{name}\0") for name in names)
        #: differs for different lists of shards, and is the same in each run
        self.digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        if not callable(open_shard):
            raise TypeError(f"open_shard must be callable, not {open_shard!r}")
        self.open_shard = open_shard
        self.words = None if seed is None else seed_words(seed)
        self.window = checked_int("window", window)
        self.interleave = checked_int("interleave", interleave)
        if seed is None and self.window > 1:
            raise ValueError(f"window={window} shuffles, which needs a seed: set seed=")
        self.lengths: list[int] | None = None
        if lengths is not None:
            lengths = iterated("lengths", "a sequence of integers", lengths)
            self.lengths = [checked_int("lengths", length, minimum=0) for length in lengths]
            if len(self.lengths) != len(self.shards):
                raise ValueError(
                    f"lengths must have an entry for each of {len(self.shards)} shards, not "
                    f"{len(self.lengths)}"
                )
            if not any(self.lengths):
                raise ValueError("lengths must not all be 0: an epoch would have no example")

    def __len__(self) -> int:
        raise TypeError("a StreamDataset has no length: its shards are read until they end")

    def seeded(self, seeds: ShardSeeds) -> StreamDataset:
        """A copy whose readers seed the global generators."""
        other = copy.copy(self)
        other.seeds = seeds
        return other

    def name(self, shard: int) -> str:
        """Name of a shard in messages."""
        return f"shard {self.shards[shard]!r:.200}"

    def order(self, epoch: int) -> list[int]:
        """The shards in the order of an epoch."""
        if self.words is None:
            return list(range(len(self.shards)))
        return list(fast_permutation(len(self.shards), self.words, epoch, 1).tolist())

    def window_order(self, epoch: int, number: int, length: int) -> list[int]:
        """The order of a window of an epoch."""
        assert self.words is not None
        first, second = example_words(self.words, epoch, number)[:2].tolist()
        return list(fast_permutation(length, (first, second), 0, 1).tolist())


def _name_of(shard: Any) -> str:
    """Text that differs for different shards. The ``repr`` of large arrays would omit parts."""
    if isinstance(shard, (list, tuple)):
        return f"{type(shard).__name__}({', '.join(map(_name_of, shard))})"
    if isinstance(shard, dict):
        return _name_of(list(shard.items()))
    if isinstance(shard, np.memmap):
        return f"{shard.filename!r} {shard.offset} {shard.dtype} {shard.shape} {shard.strides}"
    if not hasattr(shard, "__array__"):
        return repr(shard)
    try:
        array = np.asarray(shard)
    except Exception:  # of a tensor of a type that NumPy lacks, or on a GPU
        return repr(shard)
    if array.dtype.hasobject:
        return f"{type(shard).__name__}{array.shape}{_name_of(array.ravel().tolist())}"
    content = hashlib.blake2b(array.tobytes(), digest_size=16)
    return f"{array.dtype} {array.shape} {content.hexdigest()}"


def shard_counts(dataset: Any) -> dict[str, int]:
    """Numbers of a `StreamDataset` that statistics have; none of another dataset."""
    if not isinstance(dataset, StreamDataset):
        return {}
    n_shards = len(dataset.shards)
    return {"interleave": min(dataset.interleave, n_shards), "n_shards": n_shards}

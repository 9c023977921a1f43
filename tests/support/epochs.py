"""The epoch rule once more, in closed form: what every iterator is checked against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """One batch, and the iterator's attributes after it."""

    indices: list[int]
    position: int
    epoch: int
    is_new_epoch: bool
    detail: float
    previous_detail: float


def steps(orders: Iterator[Sequence[int]], batch_size: int, repeat: bool) -> Iterator[Step]:
    """Batches over the epochs' orders, one after the other, all of the same size.

    With ``repeat`` the epochs form one stream, cut into batches; without, only the first counts.
    """
    stream = [int(i) for i in next(orders)]
    size = len(stream)
    taken = 0
    previous = 0.0
    while repeat or taken < size:
        while repeat and len(stream) < taken + batch_size:
            stream += [int(i) for i in next(orders)]
        stop = taken + batch_size if repeat else min(taken + batch_size, size)
        detail = stop // size + stop % size / size
        is_new_epoch = stop // size > taken // size
        indices = stream[taken:stop]
        yield Step(indices, stop % size, stop // size, is_new_epoch, detail, previous)
        taken, previous = stop, detail


def sampler_calls(size: int, batch_size: int, n_batches: int) -> list[int]:
    """Positions at which a repeating iterator asks its sampler, for each epoch completed."""
    calls = [0]  # for the first epoch
    for batch in range(n_batches):
        start, stop = batch * batch_size, (batch + 1) * batch_size
        completed = stop // size - start // size
        calls += [start % size, *[0] * (completed - 1)] if completed else []
    return calls

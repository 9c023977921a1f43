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


class Row(NamedTuple):
    """An example in a batch."""

    epoch: int
    index: int
    is_valid: bool = True


def shared_steps(
    orders: Sequence[Sequence[int]],
    batch_size: int,
    num_ranks: int,
    *,
    repeat: bool,
    drop_last: bool = False,
    tail: str = "pad",
    position: int = 0,
) -> Iterator[tuple[list[list[Row]], tuple[int, int]]]:
    """Each step's batches, one for each rank, with position and epoch after it. The orders are of
    one length; it begins at a position of the first one, and ends with the last."""
    epochs = [[Row(epoch, int(i)) for i in order] for epoch, order in enumerate(orders)]
    whole, size = batch_size * num_ranks, len(orders[0])
    if repeat and not drop_last:
        epochs = [[row for rows in epochs for row in rows]]
    for rows in epochs if repeat else epochs[:1]:
        while position < len(rows):
            step = rows[position : position + whole]
            share = batch_size
            position += whole
            rest = len(rows) - position
            if rest < 0:
                share = len(step) // num_ranks if tail == "drop" else -(-len(step) // num_ranks)
                share *= not drop_last
            elif 0 < rest < whole and (drop_last or (tail == "drop" and rest < num_ranks)):
                position = len(rows)  # nothing comes after this step
            fill = [row._replace(is_valid=tail != "mask") for row in rows]
            while len(step) < share * num_ranks:
                step += fill
            batches = [step[r * share : (r + 1) * share] for r in range(num_ranks)]
            if share:
                epoch = step[0].epoch
                ends = position >= len(rows)
                after = (0, epoch + 1) if ends else (position, epoch)
                if len(rows) > size:  # the stream of all epochs
                    after = position % size, position // size
                yield batches, after
        position = 0

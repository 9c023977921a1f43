"""Decorators of readers that run in the thread that iterates.

Each decorator checks its arguments and returns a `functools.partial` of a generator function: so
nothing is read before the iteration begins, each call of the result is a pass of its own, and the
result can be pickled if its parts can.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from fastiter.reader._opening import Reader, checked_count, opened, require_readers

_END = object()


class ComposeNotAligned(ValueError):
    """The readers given to `compose` do not yield the same number of samples."""


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """Group samples into batches, which are lists.

    Parameters
    ----------
    reader : callable
    batch_size : int
        Samples of a batch.
    drop_last : bool
        Whether to leave out the last batch if it is shorter.
    """
    require_readers((reader,))
    try:
        batch_size = int(batch_size)  # also a str or a fraction, as Paddle accepts them
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(f"batch_size must be an integer, not {batch_size!r}: {error}") from None
    batch_size = checked_count("batch_size", batch_size, minimum=1)
    return partial(_batch, reader, batch_size, bool(drop_last))


def _batch(reader: Reader, batch_size: int, drop_last: bool) -> Iterator[list[Any]]:
    with opened(reader) as (samples,):
        while group := list(islice(samples, batch_size)):
            if len(group) == batch_size or not drop_last:
                yield group


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """Apply a function to the samples of several readers, one of each at a time.

    Parameters
    ----------
    func : callable
        Function of one sample of each reader.
    *readers : callable
        The shortest one ends the pass.
    """
    require_readers(readers)
    return partial(_map_readers, func, *readers)


def _map_readers(func: Callable[..., Any], *readers: Reader) -> Iterator[Any]:
    with opened(*readers) as passes:
        for samples in zip(*passes, strict=False):
            yield func(*samples)


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Shuffle samples block by block.

    Parameters
    ----------
    reader : callable
    buf_size : int
        Samples that are read and shuffled at a time, by Python's `random`: its state determines the
        order. 0 and 1 keep the order.
    """
    require_readers((reader,))
    buf_size = checked_count("buf_size", buf_size, minimum=0)
    return partial(_shuffle, reader, max(1, buf_size))


def _shuffle(reader: Reader, buf_size: int) -> Iterator[Any]:
    with opened(reader) as (samples,):
        while block := list(islice(samples, buf_size)):
            random.shuffle(block)
            block.reverse()
            while block:  # pop, so that no reference to a delivered sample stays here
                yield block.pop()


def chain(*readers: Reader) -> Reader:
    """Concatenate readers.

    Parameters
    ----------
    *readers : callable
        Readers, each opened when the reader before it has ended.
    """
    require_readers(readers)
    return partial(_chain, *readers)


def _chain(*readers: Reader) -> Iterator[Any]:
    for reader in readers:
        with opened(reader) as (samples,):
            yield from samples


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Join one sample of each reader to a tuple.

    A sample that is a tuple contributes its items; any other sample is one item.

    Parameters
    ----------
    *readers : callable
    check_alignment : bool
        Whether all readers must end together. If they do not, `ComposeNotAligned` is raised after
        the last sample that all have. False: the shortest one ends the pass.
    """
    require_readers(readers)
    return partial(_compose, *readers, check_alignment=bool(check_alignment))


def _compose(*readers: Reader, check_alignment: bool) -> Iterator[tuple[Any, ...]]:
    with opened(*readers) as passes:
        number = 0
        while passes:
            samples = []
            for samples_of_one in passes:
                samples.append(next(samples_of_one, _END))
                if samples[-1] is _END and not check_alignment:
                    return
            ended = [place for place, sample in enumerate(samples) if sample is _END]
            if len(ended) == len(passes):
                return
            if ended:
                raise ComposeNotAligned(
                    f"of {len(passes)} readers given to compose, readers {ended} ended after "
                    f"{number} samples and the others did not; with check_alignment=False the "
                    "shortest reader ends the pass"
                )
            joined: list[Any] = []
            for sample in samples:
                joined += sample if isinstance(sample, tuple) else (sample,)
            del samples, sample
            number += 1
            yield tuple(joined)


def firstn(reader: Reader, n: int) -> Reader:
    """Take the first samples of a reader.

    Parameters
    ----------
    reader : callable
    n : int
        The most samples to take; no more are read.
    """
    require_readers((reader,))
    return partial(_firstn, reader, checked_count("n", n, minimum=0))


def _firstn(reader: Reader, n: int) -> Iterator[Any]:
    with opened(reader) as (samples,):
        yield from islice(samples, n)

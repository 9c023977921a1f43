"""The `multiprocess_reader` decorator: readers that run in processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fastiter.iterators._arguments import checked_context
from fastiter.reader._opening import Reader, checked_count, require_readers

#: Samples in flight if `queue_size` sets no limit: more than any memory holds.
_NO_LIMIT = 1 << 40


def multiprocess_reader(
    readers: Iterable[Reader],
    use_pipe: bool = True,
    queue_size: int = 1000,
    *,
    context: Any = None,
) -> Reader:
    """Run each reader in a process of its own, and merge their samples.

    Samples arrive as they become ready; samples of one reader keep their order. A sample is any
    object that can be pickled, except None. It keeps its type, and its arrays may be kept and
    written to. Arrays travel through shared memory; if samples are alike, they arrive as views of
    it.

    Each pass starts new processes at its first sample. They end with the pass: at its end, if the
    loop leaves it early, at an error, when the interpreter exits, and when the program is killed.

    Parameters
    ----------
    readers : list or tuple of callables
        Readers, at least one.
    use_pipe : bool
        Argument without effect: both ways of the original use the same shared memory here, with the
        same guarantees.
    queue_size : int
        The most samples of all readers that are in flight: read and not yet delivered. Each reader
        may hold one more. 0 sets no limit. In any case, samples in shared memory take up to 8 MiB
        for each reader, or two samples if they are larger.
    context : str or multiprocessing context, optional
        Start method of the processes: "fork", "spawn" or "forkserver"; by default the method of
        `multiprocessing`. "safe": the same, except that a fork server replaces a fork that
        may be unsafe. Under fork, readers may be any callables; else they must be picklable (with
        cloudpickle installed, lambdas and closures are).

    Returns
    -------
    callable
        A reader of all samples. It raises the exception of a reader, with its own type and the
        worker's traceback, after that reader's samples; ValueError for a sample that is None;
        `WorkerDiedError` if a reader's process died; `DatasetError` for exceptions that cannot be
        pickled, and `SystemExit`.

    Raises
    ------
    TypeError
        If one of the readers cannot be called.
    ValueError
        If there is no reader, or `queue_size` is negative.
    """
    try:
        readers = tuple(readers)
    except TypeError as error:
        raise TypeError(f"readers must be a list of callables: {error}") from error
    if not readers:
        raise ValueError("readers is empty, expected at least one reader")
    require_readers(readers)
    if isinstance(queue_size, bool):  # code for the original passes use_pipe as the third argument
        queue_size = int(queue_size)
    queue_size = min(checked_count("queue_size", queue_size, minimum=0) or _NO_LIMIT, _NO_LIMIT)
    return partial(_merged, readers, queue_size, checked_context(context))


def _merged(readers: tuple[Reader, ...], queue_size: int, context: Any) -> Iterator[Any]:
    # Imported late: only passes with processes need these.
    from fastiter._workers.start_method import Caller, choose
    from fastiter.reader._group import ReaderGroup

    caller = Caller(early="next()", instead="use threads (xmap_readers)")
    group = ReaderGroup(readers, queue_size, choose(context, caller))
    try:
        while (samples := group.take()) is not None:
            count = len(samples)
            samples.reverse()
            while len(samples) > 1:  # pop, so that no reference to a delivered sample stays here
                yield samples.pop()
            group.grant(count)
            yield samples.pop()
    finally:
        group.close()

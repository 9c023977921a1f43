"""Readers run in processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fastiter.iterators._arguments import checked_context
from fastiter.reader._arguments import checked_count
from fastiter.reader._opening import Reader, require_readers

#: Samples in flight where `queue_size` sets no limit: more than any memory holds.
_NO_LIMIT = 1 << 40


def multiprocess_reader(
    readers: Iterable[Reader],
    use_pipe: bool = True,
    queue_size: int = 1000,
    *,
    context: Any = None,
) -> Reader:
    """Runs each reader in a process of its own, and merges their samples.

    Samples arrive as they are ready, those of one reader in its order. Any object that can be
    pickled is a sample, but None: it arrives as what it was, arrays as arrays of their own that may
    be kept and written to. Arrays travel through shared memory; those of samples that are alike are
    views of it.

    Each pass starts fresh processes, at its first sample. They end with the pass: at its end, when
    it is left early, at an error, when the interpreter exits, and when the program is killed.

    Parameters
    ----------
    readers : list or tuple of callables
        At least one.
    use_pipe : bool
        Both ways of the original are served by the same shared memory, with the same guarantees:
        it makes no difference.
    queue_size : int
        Samples that are in flight at most, of all readers together: read, and not yet delivered.
        Each reader may have one more in hand. 0 sets no limit to their number. Beside it, samples
        in shared memory take up to 8 MiB for each reader, or two samples where they are larger.
    context : str or multiprocessing context, optional
        How processes are started: "fork", "spawn" or "forkserver"; by default as
        `multiprocessing` does it, but where a fork is unsafe. Under fork, readers may be anything;
        else they must be picklable (with cloudpickle installed, lambdas and closures are).

    Returns
    -------
    callable
        A reader of all samples. It raises what a reader raised, as its own type with the worker's
        traceback, after that reader's samples; ValueError for a sample that is None;
        `WorkerDiedError` if a reader's process died; `DatasetError` for what cannot travel.

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
    # What processes need is imported when there are some.
    from fastiter._workers.start_method import choose
    from fastiter.reader._merge import Merge

    merge = Merge(readers, queue_size, choose(context))
    try:
        while (samples := merge.take()) is not None:
            count = len(samples)
            samples.reverse()
            while len(samples) > 1:  # from its end, so that nobody here keeps what was handed out
                yield samples.pop()
            merge.grant(count)
            yield samples.pop()
    finally:
        merge.close()

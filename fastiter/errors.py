"""Exceptions and warnings of fastiter.

All of them carry their text as the only argument, so that they pickle, copy and travel
between processes unchanged.
"""

from __future__ import annotations

__all__ = [
    "DatasetError",
    "OverwrittenError",
    "SkipLimitError",
    "TimeoutWarning",
    "WorkerDiedError",
    "WorkerTraceback",
]


class DatasetError(RuntimeError):
    """A dataset failed in a worker with something that cannot be raised again as itself.

    Subclasses of ``Exception`` arrive as their own type. This one stands for the rest:
    ``SystemExit``, ``KeyboardInterrupt``, ``GeneratorExit`` and other ``BaseException`` types,
    and exceptions or examples that cannot be pickled or loaded again. The text names the
    original type, the dataset index, the worker, the epoch and the batch, and holds the
    worker's traceback. The iterator stays usable: the next call goes on after the failed batch.
    """


class OverwrittenError(RuntimeError):
    """Shared memory holds what fastiter has never written there.

    Somebody, most likely native code in a worker with a wild pointer, has overwritten the
    bookkeeping of the iterator or what an example was packed into. The batch is given up; the
    iterator stays usable: the next call goes on after it.
    """


class SkipLimitError(RuntimeError):
    """More examples have failed in an epoch than ``skip_limit`` allows, or all of an epoch.

    Its cause is the exception of the last of them. The iterator stays usable: the next call goes
    on after the batch, and the next failure in the same epoch raises again.
    """


class WorkerDiedError(RuntimeError):
    """Worker processes died again and again on the same dataset index or converter call.

    The text names the index, the signal or exit code, and likely causes. A single death is no
    error: another worker does the dead one's rows.
    """


class TimeoutWarning(RuntimeWarning):
    """A worker has been busy with one thing for longer than ``dataset_timeout`` seconds.

    With an example, the converter, loading the dataset or its own start; or none has done anything
    for so long, as when they are stopped.

    Raised as an exception under ``warnings.simplefilter('error')``; the batch is not lost then:
    the next call waits for it again.
    """


class WorkerTraceback(Exception):
    """The cause of an exception that came from a worker: which row, and the traceback there.

    Never raised by itself. It stands as ``__cause__`` of the dataset's own exception, so that a
    printed traceback shows the worker's part first.
    """

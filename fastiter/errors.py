"""Exceptions and warnings of fastiter.

Their text is their only argument, so that they can be pickled, copied and sent between processes
unchanged.
"""

from __future__ import annotations

__all__ = [
    "DatasetError",
    "DatasetTimeoutError",
    "ImageError",
    "OverwrittenError",
    "SkipLimitError",
    "TimeoutWarning",
    "WorkerDiedError",
    "WorkerTraceback",
]


class DatasetError(RuntimeError):
    """A dataset raised an exception in a worker that cannot be raised again with its own type.

    Subclasses of ``Exception`` keep their type. This one replaces the others: ``SystemExit``,
    ``KeyboardInterrupt``, ``GeneratorExit`` and other ``BaseException`` types, and exceptions or
    examples that cannot be pickled or unpickled. The text names the original type, the dataset
    index, the worker, the epoch and the batch, and contains the worker's traceback. The iterator
    stays usable: the next call continues after the failed batch.
    """


class DatasetTimeoutError(TimeoutError):
    """A dataset or a converter took longer than ``dataset_timeout``, in each of several attempts.

    With ``on_timeout='retry'``. An index is fetched ``1 + n_retries`` times, a converter is called
    once for a batch, and a worker loads the dataset ``1 + n_retries`` times. The iterator stays
    usable: the next call continues after the batch, or tries again to load the dataset.

    Attributes
    ----------
    index : int, other key of a sampler, or None
        The dataset index, or key; None for the converter, loading, and the start of a worker.
    seconds : float
        Seconds that the last attempt took until it was ended.
    attempts : int
        Number of attempts.
    stack : str
        The Python stack of the worker, a process or a thread, at the end of the last attempt.
    """

    index: object = None
    seconds: float = 0.0
    attempts: int = 0
    stack: str = ""

    @classmethod
    def of(
        cls, text: str, index: object, seconds: float, attempts: int, stack: str
    ) -> DatasetTimeoutError:
        """Make an error with these attributes."""
        error = cls(f"{text} The last attempt was ended after {seconds:.2f} s, here:\n{stack}")
        error.index, error.seconds = index, seconds
        error.attempts, error.stack = attempts, stack
        return error


class ImageError(OSError):
    """The file or the bytes of an image cannot be read or decoded.

    Attributes
    ----------
    path : str or None
        The file; None if there were only bytes.
    reason : str
        Text that says what is wrong.
    """

    path: str | None = None
    reason: str = ""

    @classmethod
    def of(cls, path: str | None, reason: str) -> ImageError:
        """Make an error with these attributes."""
        error = cls(f"{path or 'the data'} cannot be read as an image: {reason}")
        error.path, error.reason = path, reason
        return error


class OverwrittenError(RuntimeError):
    """Shared memory contains data that fastiter has not written.

    Other code, most likely native code in a worker with a wild pointer, has overwritten control
    data of the iterator or a packed example. The batch is lost; the iterator stays usable: the next
    call continues after it.
    """


class SkipLimitError(RuntimeError):
    """More examples have failed in an epoch than ``skip_limit`` allows, or all of an epoch.

    Its cause is the exception of the last example that failed. The iterator stays usable: the next
    call continues after the batch, and the next failure in the same epoch raises this error again.
    """


class WorkerDiedError(RuntimeError):
    """Worker processes died repeatedly on the same dataset index or converter call.

    The text names the index, the signal or exit code, and likely causes. One crash raises nothing;
    another worker fetches the rows again.

    Attributes
    ----------
    pid : int
        Process number of the last worker that died; 0 if it is not known.
    exit_reason : str
        Text that says how this worker ended, as ``'was killed by SIGSEGV'``.
    """

    pid = 0
    exit_reason = "died"


class TimeoutWarning(RuntimeWarning):
    """A worker has spent more than ``dataset_timeout`` seconds on one example or step.

    The step is the converter, loading the dataset, or the worker's start. The warning also says if
    no worker has done anything for this time, for example because they are stopped.

    Under ``warnings.simplefilter('error')`` it is raised as an exception. The batch is not lost
    then: the next call waits for it again.
    """


class WorkerTraceback(Exception):
    """The cause of an exception of a worker: which row failed, and the traceback there.

    It is never raised by itself. As ``__cause__`` of the dataset's exception it makes a printed
    traceback show the worker's part first.
    """

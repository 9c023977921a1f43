"""Failures: exceptions that belong to a batch, on their way to the ``next()`` that raises them.

`Failure.of` makes a `Failure` of a live exception; `dump` in a worker process and `load` here make
one of the worker's exception. It then is a value like any other: code that makes a batch returns
the batch or a `Failure`. `reraise` raises it, once.

An exception refers to its traceback, the traceback to frames and their callers, and some of these
have the failure in a variable. So `reraise` empties the failure, and `Failure.clear` where nothing
is raised. Otherwise the exception would be part of a reference cycle, and what the frames hold
would stay until a garbage collection.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from fastiter._clib import status
from fastiter.errors import DatasetError, WorkerTraceback

#: Exceptions by which a dataset stops its program, instead of reporting a broken example.
STOPS = (GeneratorExit, KeyboardInterrupt, SystemExit)

#: Where this process runs, if that is another machine: follows its number in messages.
place = ""

_THREAD_MARK = ", worker thread "  # in each note that `annotate` adds for a thread
_MOST_TEXT = 32 << 10  # characters
_MOST_EXCEPTION_BYTES = 1 << 20
_FINAL = "_fastiter_is_final"
_SUM = struct.Struct("<Q")


class RowCountError(ValueError):
    """A dataset returned another number of examples than requested."""


class Failure:
    """An exception that belongs to a batch, until it is raised."""

    __slots__ = ("error", "facts", "is_skippable", "kind", "row")

    def __init__(
        self, error: Any, facts: str = "", row: int = -1, is_skippable: bool = False
    ) -> None:
        self.kind: type[BaseException] = type(error)  # what the dataset raised, or a base of it
        self.error = error  # what `next()` raises
        self.facts = facts  # which example or step failed, and where; see `annotate`
        self.row = row  # of the batch; -1 for the batch as a whole
        self.is_skippable = is_skippable  # whether `on_error` decides about the row

    @classmethod
    def of(cls, error: BaseException, facts: str = "", row: int = -1) -> Failure:
        """Make a failure of any exception, or of another one that ``next()`` may raise for it."""
        raised = error
        if isinstance(error, StopIteration):
            raised = RuntimeError(_stopped_text(error))
        elif not isinstance(error, Exception):
            # SystemExit would end the caller's program because of one example.
            raised = DatasetError(f"{error!r} was raised ({facts})")
        if raised is not error:
            raised.__cause__ = error
        return cls(raised, facts, row, is_skippable(error))

    def clear(self) -> None:
        """Let go of the exception, which is not raised."""
        self.error = None


class AllSkipped(Failure):
    """Every example of a batch was skipped; ``error`` is the last one's. It is never raised."""


class FailurePolicy(Protocol):
    """Decides about the failed rows of a batch; see `fastiter.iterators._skips`."""

    def resolve(self, plan: Any, failures: Sequence[Failure]) -> dict[int, Any] | Failure:
        """Return the examples that replace failed rows (the other failed rows are dropped), or the
        failure of the batch."""


def merged(
    examples: Sequence[Any], failures: Sequence[Failure], replaced: dict[int, Any]
) -> list[Any]:
    """The examples of a batch in their order: those that have not failed, and replacements."""
    failed = {failure.row for failure in failures}
    rows = (row for row in range(len(examples) + len(failed)) if row not in failed)
    found = {**dict(zip(rows, examples, strict=True)), **replaced}
    return [found[row] for row in sorted(found)]


def is_skippable(error: BaseException) -> bool:
    """Whether an exception of a dataset concerns one example, which may be skipped."""
    return not (isinstance(error, (*STOPS, RowCountError)) or getattr(error, _FINAL, False))


def never_skipped(error: BaseException) -> BaseException:
    """Have an exception, raised in the place of an example's, concern no example."""
    with contextlib.suppress(Exception):  # its class may refuse attributes
        setattr(error, _FINAL, True)
    return error


def capture(function: Callable[..., Any], *args: Any) -> Any:
    """Return the function's result, or a `Failure` if it raises an ``Exception``."""
    try:
        return function(*args)
    except Exception as error:
        return failure_of(error)


def failure_of(error: Exception) -> Failure:
    """The `Failure` of a batch; see `raise_of_handler`."""
    raise_of_handler(error)
    return Failure.of(error)


def raise_of_handler(error: BaseException) -> None:
    """Raise what a handler of a signal has raised while a batch was made. The batch has not failed:
    the next call makes it again."""
    if threading.current_thread() is threading.main_thread():  # where handlers run
        handlers = map(signal.getsignal, signal.valid_signals())
        codes = {_code_of(handler) for handler in handlers if callable(handler)}
        if any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise error


def _code_of(handler: Any) -> Any:
    function = getattr(handler, "func", handler)  # of a partial
    if not hasattr(function, "__code__"):
        function = getattr(function, "__func__", type(function).__call__)
    return getattr(function, "__code__", None)


def reraise(failure: Failure) -> NoReturn:
    """Raise the exception of a failure, and empty the failure."""
    error, failure.error = failure.error, None
    try:
        raise error
    finally:
        del error


def annotate(error: BaseException, facts: str, remote: str = "") -> None:
    """Add the known facts about its origin to an exception.

    ``facts``, the row and the worker, become a note, in place of one from an earlier fetch by a
    thread. Python 3.10, which has no notes, gets them as the cause unless there is one. ``remote``,
    the traceback in a worker process, becomes the cause.
    """
    with contextlib.suppress(Exception):  # the exception's class may refuse notes
        has_notes = hasattr(error, "add_note")
        is_free = error.__cause__ is None or isinstance(error.__cause__, WorkerTraceback)
        if remote or (is_free and not has_notes):
            cause = WorkerTraceback(f"{facts}\n{remote}" if remote else facts)
            # Not by assignment: a class may refuse attributes, as frozen data classes do.
            BaseException.__setattr__(error, "__cause__", cause)
        if has_notes:
            notes = getattr(error, "__notes__", [])
            notes[:] = [note for note in notes if _THREAD_MARK not in note]
            error.add_note(facts)


def summary_of(error: BaseException) -> str:
    """Type and text of an exception, whatever its own methods do."""
    try:
        message = str(error)
    except Exception:
        message = "<its __str__ raised>"
    name = type(error).__qualname__
    if type(error).__module__ not in ("builtins", "__main__"):
        name = f"{type(error).__module__}.{name}"
    return _cut(f"{name}: {message}" if message else name)


def _stopped_text(error: StopIteration) -> str:
    # PEP 479: a StopIteration that leaves a generator must not end the caller's loop.
    text = str(error)
    is_long = "\n" in text  # torch's loader puts the worker's traceback there
    return (
        f"{type(error).__name__ if is_long else repr(error)} was raised by the dataset or the "
        "converter while a batch was made, most likely by a next() on an iterator that has ended; "
        "to end an epoch, say so by the dataset's length"
    ) + (f"\n{text}" if is_long else "")


def _cut(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


# ---- from a worker process to the parent ---------------------------------------------------------

#: pickle of the exception (None: it cannot be loaded, or is no Exception), type and message,
#: traceback, process, `is_skippable`, pickle of `known_class` (None: the exception is there)
Dumped = tuple[bytes | None, str, str, str, bool, bytes | None]


def known_class(error: BaseException) -> type[BaseException]:
    """The class of an exception, or the nearest base that the parent can load; `DatasetError` in
    place of ``Exception``, and for what is no ``Exception``."""
    for kind in type(error).__mro__:
        with contextlib.suppress(Exception):
            if pickle.loads(pickle.dumps(kind)) is kind:
                is_own = kind is not Exception and issubclass(kind, Exception)
                return kind if is_own else DatasetError
    return DatasetError


def dump(error: BaseException) -> Dumped:
    """Describe an exception so that `load` always works; called in the worker."""
    summary = text = summary_of(error)
    with contextlib.suppress(Exception):
        text = _cut("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    sent = RuntimeError(_stopped_text(error)) if isinstance(error, StopIteration) else error
    pickled = kind = None
    if isinstance(sent, Exception):
        with contextlib.suppress(BaseException):  # of a user's __reduce__ or __init__
            packed = pickle.dumps(sent)
            if type(pickle.loads(packed)) is type(sent) and len(packed) <= _MOST_EXCEPTION_BYTES:
                pickled = packed
    if pickled is None:
        kind = pickle.dumps(known_class(sent))
    return pickled, summary, text, f"{os.getpid()}{place}", is_skippable(error), kind


def load(dumped: tuple[Any, ...], facts: str, row: int = -1) -> Failure:
    """Make a failure of a result of `dump`; of the number of bytes that were missing for one, or of
    nothing, where it could not be made.

    The exception is of its own type if that can be loaded here too, else a `DatasetError`.
    """
    if len(dumped) == 1:
        text = (
            f"no memory or address space in a worker to report an exception ({facts}): {dumped[0]} "
            "bytes needed in its slot; reduce batch_size or the examples, or raise RLIMIT_AS"
        )
        return Failure(MemoryError(text), facts, row, True)
    if not dumped:
        text = f"an exception in a worker left no reason ({facts}): describing it raised another"
        return Failure(DatasetError(text), facts, row, True)
    pickled, summary, text, pid, skippable, kind = dumped
    facts = f"{facts}, worker process {pid}"
    error: Any = None
    if pickled is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(pickled)
    if not isinstance(error, Exception) or isinstance(error, StopIteration):
        error = DatasetError(f"{summary} ({facts})")
    annotate(error, facts, text)
    failure = Failure(error, facts, row, skippable)
    if kind is not None:
        with contextlib.suppress(Exception):
            failure.kind = pickle.loads(kind)
    return failure


def dump_start_error(error: BaseException) -> bytes:
    """As `dump`, as bytes that fit into the place for a worker's start error."""
    dumped = dump(error)
    packed = pickle.dumps(dumped)
    if len(packed) > status.START_ERROR_BYTES - _SUM.size:
        _, summary, text, *rest = dumped
        packed = pickle.dumps((None, summary[:4000], text[-8000:], *rest))  # 4 bytes a character
    return _SUM.pack(status.checksum(packed, 0, len(packed), 0)) + packed


def load_start_error(packed: bytes, facts: str) -> Failure | None:
    """As `load`; None if there is no start error, or it was overwritten."""
    head, body = packed[: _SUM.size], packed[_SUM.size :]
    if len(head) < _SUM.size or _SUM.unpack(head)[0] != status.checksum(body, 0, len(body), 0):
        return None
    return load(pickle.loads(body), facts)

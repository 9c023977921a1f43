"""From a READY slot to what ``next()`` returns: rows read, columns handed out, errors raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastiter import _ring, _views
from fastiter._feed import Scheduled
from fastiter._finish import ConcatFinisher, Finisher
from fastiter._transport import Failure, exception_of, unpack
from fastiter.errors import DatasetError, OverwrittenError, WorkerDiedError


class Odd(NamedTuple):
    """The rows of a batch that are not in its columns."""

    examples: dict[int, Any]  # spilled ones, loaded
    error: Exception | None  # of the first row that has one


def read_odd(
    ring: _ring.ParentEnd,
    lease: _ring.Lease,
    slot: int,
    record: Scheduled,
    codes: Sequence[tuple[int, int]],
    deaths: dict[tuple[int, int], str],
    copied: bool,
) -> Odd:
    """Loads what lies beside the columns.

    Parameters
    ----------
    codes : (row, code) of the odd rows, ascending.
    deaths : how the workers ended that row (q, row) has killed.
    copied : load private copies, since the slot will be free at once.
    """
    examples: dict[int, Any] = {}
    for row, code in codes:
        index = record.indices[row]
        facts = f"dataset index {index}, {record.label}"
        if code == _ring.ROW_POISON:
            end = deaths.get((record.q, row), "died")
            return Odd(examples, poisoned(f"dataset index {index}", end, record.label))
        offset, size = ring.entry(slot, row)
        try:
            part = lease.part(offset, size)
            if code == _ring.ROW_ERROR:
                seed = lease.seed(row, _ring.PACKED_ERROR)
                return Odd(examples, _row_error(part, seed, facts))
            seed = lease.seed(row, _ring.PACKED_EXAMPLE)
            examples[row] = unpack(memoryview(bytearray(part)) if copied else part, seed)
        except OverwrittenError as error:
            return Odd(examples, error)
        except Exception as error:
            raised = DatasetError(f"an example cannot be loaded in the parent: {error!r} ({facts})")
            raised.__cause__ = error
            return Odd(examples, raised)
    return Odd(examples, None)


def _row_error(part: memoryview, seed: int, facts: str) -> Exception:
    if part.nbytes == 0:
        return DatasetError(f"the dataset failed, and no memory was left for the reason ({facts})")
    failure = Failure(*unpack(memoryview(bytearray(part)), seed))
    return exception_of(failure, f"{facts}, worker process {failure.pid}")


def poisoned(what: str, end: str, label: str) -> WorkerDiedError:
    return WorkerDiedError(
        f"{what} has killed every worker that touched it; the last one {end} ({label}). Likely "
        "causes: out of memory (SIGKILL), a crash in native code (SIGSEGV, SIGBUS, SIGABRT), or a "
        "call of os._exit in the dataset"
    )


def assemble(
    lease: _ring.Lease,
    record: Scheduled,
    flags: int,
    result: memoryview | None,
    odd: dict[int, Any],
    finisher: Finisher | None,
    copied: bool,
) -> Any:
    """The batch: the converter's result where there is a converter, else the list of examples."""
    if flags & _ring.CONVERTER_ERROR and result is not None:
        seed = lease.seed(_ring.WHOLE_BATCH, _ring.PACKED_FAILURE)
        failure = Failure(*unpack(memoryview(bytearray(result)), seed))
        raise exception_of(failure, f"converter, {record.label}, worker process {failure.pid}")
    if flags & _ring.CONVERTED_OBJECT and result is not None:
        seed = lease.seed(_ring.WHOLE_BATCH, _ring.PACKED_RESULT)
        return unpack(memoryview(bytearray(result)) if copied else result, seed)
    return from_rows(lease, odd, finisher, copied)


def from_rows(
    lease: _ring.Lease, odd: dict[int, Any], finisher: Finisher | None, copied: bool
) -> Any:
    """The batch, made of its rows."""
    schema = lease.schema
    if isinstance(finisher, ConcatFinisher) and schema and not odd and finisher.suits(schema):
        columns = _views.columns(schema, lease, lease.converted, copied or finisher.copy)
        if columns is not None:
            return finisher.complete(columns, schema, lease)
    if schema is None:
        examples = [odd[row] for row in range(lease.rows)]
    else:
        examples = _views.read(schema, lease, copied, odd)
    return examples if finisher is None else finisher.convert(examples)

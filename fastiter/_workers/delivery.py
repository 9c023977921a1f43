"""From a READY slot to what ``next()`` returns: rows read, columns handed out, errors raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastiter._clib import ring_words
from fastiter._collate.numpy_fallback import Indices
from fastiter._order.plan import Plan
from fastiter._ring import lease as _lease
from fastiter._ring import parent_ring, views
from fastiter._ring.scheduler import Scheduled
from fastiter._ring.serialization import Failure, exception_of, unpack
from fastiter._util.failures import FailurePolicy, NothingLeft, RowFailure
from fastiter._workers.batch_converter import BatchConverter, ConcatConverter
from fastiter._workers.crash_counts import CrashCounts
from fastiter.errors import DatasetError, OverwrittenError, WorkerDiedError


class Irregular(NamedTuple):
    """The rows of a batch that are not in its columns."""

    examples: dict[int, Any]  # spilled ones, loaded
    failures: list[RowFailure]


def read_irregular(
    ring: parent_ring.ParentRing,
    lease: _lease.Lease,
    slot: int,
    record: Scheduled,
    codes: Sequence[tuple[int, int]],
    deaths: CrashCounts,
    copied: bool,
    tolerates: bool,
) -> Irregular:
    """Loads what lies beside the columns.

    Parameters
    ----------
    codes : (row, code) of the irregular rows, ascending.
    deaths : how the workers ended that rows have killed.
    copied : load private copies, since the slot will be free at once.
    tolerates : False: the first failure is enough.
    """
    examples: dict[int, Any] = {}
    failures: list[RowFailure] = []
    for row, code in codes:
        facts = f"dataset index {record.indices[row]}, {record.label}"
        failure = None
        if code == ring_words.ROW_POISON:
            end = deaths.end_of_row(record.q, row)
            died = crash_error(f"dataset index {record.indices[row]}", end, record.label)
            failure = RowFailure(row, died, True)
        elif code == ring_words.ROW_ERROR:
            failure = _failure(ring, lease, slot, row, facts)
        else:
            try:
                part = lease.part(*ring.entry(slot, row))
                seed = lease.seed(row, ring_words.PACKED_EXAMPLE)
                try:
                    examples[row] = unpack(memoryview(bytearray(part)) if copied else part, seed)
                except OverwrittenError:
                    raise
                except Exception as error:
                    failure = RowFailure(row, _unloadable(error, facts), True)
            except OverwrittenError as error:
                failure = RowFailure(row, error, False)
        if failure is not None:
            failures.append(failure)
            if not tolerates:
                break
    return Irregular(examples, failures)


def _failure(
    ring: parent_ring.ParentRing, lease: _lease.Lease, slot: int, row: int, facts: str
) -> RowFailure:
    """What the worker has left of a row's exception."""
    try:
        part = lease.part(*ring.entry(slot, row))
        if part.nbytes == 0:
            text = (
                "the dataset failed, and left no reason: there was no memory for it, or its "
                f"exception cannot be told ({facts})"
            )
            return RowFailure(row, DatasetError(text), True)
        seed = lease.seed(row, ring_words.PACKED_ERROR)
        failure = Failure(*unpack(memoryview(bytearray(part)), seed))
    except OverwrittenError as error:
        return RowFailure(row, error, False)
    except Exception as error:
        return RowFailure(row, _unloadable(error, facts), True)
    raised = exception_of(failure, f"{facts}, worker process {failure.pid}")
    return RowFailure(row, raised, failure.is_skippable)


def _unloadable(error: Exception, facts: str) -> Exception:
    raised = DatasetError(f"an example cannot be loaded in the parent: {error!r} ({facts})")
    raised.__cause__ = error
    return raised


def drop_failed(
    policy: FailurePolicy,
    plan: Plan,
    lease: _lease.Lease,
    irregular: Irregular,
    codes: Sequence[tuple[int, int]],
) -> tuple[dict[int, Any], bool]:
    """Drops the rows that the policy wants dropped from a batch that is taken.

    Returns
    -------
    dict of int to object
        Examples beside the columns, by the numbers that rows have now.
    bool
        Whether what the batch_converter has left is of these rows.

    Raises
    ------
    NothingLeft
        If no row is left.
    Exception
        What the policy wants raised.
    """
    stand_ins = policy.resolve(plan, irregular.failures)
    dropped = {failure.row for failure in irregular.failures}.difference(stand_ins)
    rows = [row for row in range(lease.rows) if row not in dropped]
    if not rows:
        raise NothingLeft from irregular.failures[-1].error
    without = {row for row, code in codes if code in (ring_words.ROW_ERROR, ring_words.ROW_POISON)}
    is_finished = dropped == without
    views.compact_rows(lease.schema, lease, rows)
    beside = {**irregular.examples, **stand_ins}
    examples = {place: beside[row] for place, row in enumerate(rows) if row in beside}
    return examples, is_finished


def crash_error(what: str, end: str, label: str) -> WorkerDiedError:
    return WorkerDiedError(
        f"{what} has killed every worker that touched it; the last one {end} ({label}). Likely "
        "causes: out of memory (SIGKILL), a crash in native code (SIGSEGV, SIGBUS, SIGABRT), or a "
        "call of os._exit in the dataset"
    )


def assemble(
    lease: _lease.Lease,
    record: Scheduled,
    flags: int,
    result: memoryview | None,
    irregular: dict[int, Any],
    batch_converter: BatchConverter | None,
    copied: bool,
) -> Any:
    """The batch: the converter's result where there is a converter, else the list of examples."""
    if flags & ring_words.CONVERTER_ERROR and result is not None:
        seed = lease.seed(ring_words.WHOLE_BATCH, ring_words.PACKED_FAILURE)
        failure = Failure(*unpack(memoryview(bytearray(result)), seed))
        raise exception_of(failure, f"converter, {record.label}, worker process {failure.pid}")
    if flags & ring_words.CONVERTED_OBJECT and result is not None:
        seed = lease.seed(ring_words.WHOLE_BATCH, ring_words.PACKED_RESULT)
        return unpack(memoryview(bytearray(result)) if copied else result, seed)
    return from_rows(lease, record.indices, irregular, batch_converter, copied)


def from_rows(
    lease: _lease.Lease,
    indices: Indices,
    irregular: dict[int, Any],
    batch_converter: BatchConverter | None,
    copied: bool,
) -> Any:
    """The batch, made of its rows, whose dataset indices messages tell."""
    schema = lease.schema
    if (
        isinstance(batch_converter, ConcatConverter)
        and schema
        and not irregular
        and batch_converter.matches(schema)
    ):
        columns = views.columns(schema, lease, lease.converted, copied or batch_converter.copy)
        if columns is not None:
            return batch_converter.add_lengths(columns, schema, lease)
    if schema is None:
        examples = [irregular[row] for row in range(lease.rows)]
    else:
        examples = views.read(schema, lease, copied, irregular)
    if batch_converter is None:
        return examples
    if lease.places is not None:  # rows were dropped
        indices = [indices[place] for place in lease.places]
    return batch_converter.convert(examples, indices)

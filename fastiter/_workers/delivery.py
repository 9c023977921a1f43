"""From a READY slot to what ``next()`` returns: rows read, columns handed out, failures loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastiter._clib import status
from fastiter._order.plan import Plan
from fastiter._ring import row_reader
from fastiter._ring.lease import Lease
from fastiter._util.failures import Failure, capture, load, raise_of_handler
from fastiter._workers.batch_converter import BatchConverter
from fastiter._workers.crash_counts import CrashCounts, Exit
from fastiter._workers.process import Overrun
from fastiter.errors import DatasetError, DatasetTimeoutError, OverwrittenError, WorkerDiedError

CONVERTED_HERE = "converter, in the parent"  # facts of such a failure


def read_irregular(
    lease: Lease,
    plan: Plan,
    codes: Sequence[tuple[int, int]],
    crash_counts: CrashCounts,
    tolerates: bool,
) -> tuple[dict[int, Any], list[Failure]]:
    """Load the rows that are not in the columns, given by `codes`, (row, code), ascending. Unless
    the batch `tolerates` failures, the first failure ends it. Returns the examples, by row, and the
    failures."""
    examples: dict[int, Any] = {}
    failures: list[Failure] = []
    for row, code in codes:
        what = plan.name_of(row)
        facts = f"{what}, {plan.label}"
        try:
            if code == status.ROW_POISON:
                end = crash_counts.last_exit(plan.q, row)
                died = crash_error(what, end, plan.label, plan.index_of(row))
                failures.append(Failure(died, facts, row, is_skippable=True))
            elif code == status.ROW_ERROR:
                failures.append(load(lease.load(row, status.PACKED_ERROR, True), facts, row))
            else:
                examples[row] = lease.load(row, status.PACKED_EXAMPLE, lease.is_copied)
        except OverwrittenError as error:
            failures.append(Failure(error, facts, row))
        except Exception as error:
            raise_of_handler(error)
            text = f"an example cannot be loaded in the parent: {error!r} ({facts})"
            failures.append(Failure(DatasetError(text), facts, row, is_skippable=True))
            failures[-1].error.__cause__ = error
        if failures and not tolerates:
            break
    return examples, failures


def drop_failed(
    lease: Lease,
    spilled: dict[int, Any],
    failures: list[Failure],
    replaced: dict[int, Any],
    codes: Sequence[tuple[int, int]],
) -> tuple[dict[int, Any], bool]:
    """Drop the failed rows that are not replaced from a batch that is taken.

    Returns the examples that are not in the columns, by the numbers that rows have now, and whether
    the batch converter's result in the slot is of these rows.
    """
    dropped = {failure.row for failure in failures}.difference(replaced)
    rows = [row for row in range(lease.rows) if row not in dropped]
    without = {row for row, code in codes if code in (status.ROW_ERROR, status.ROW_POISON)}
    row_reader.compact_rows(lease, rows)
    beside = {**spilled, **replaced}
    examples = {place: beside[row] for place, row in enumerate(rows) if row in beside}
    return examples, dropped == without


def crash_error(what: str, end: Exit | Overrun, label: str, index: Any = None) -> Exception:
    """Return the error of an index, or a converter call, that kills worker after worker, or takes
    too long each time."""
    if isinstance(end, Overrun):
        return DatasetTimeoutError.of(
            f"{what} took longer than dataset_timeout={end.limit} s in {end.attempts} of "
            f"{end.attempts} attempts ({label}). Repair the dataset or the converter, raise "
            "dataset_timeout or n_retries, or skip such examples (on_error='skip').",
            index,
            end.seconds,
            end.attempts,
            end.stack,
        )
    error = WorkerDiedError(
        f"{what} has killed every worker that touched it; the last one {end.reason} ({label}). "
        "Likely causes: out of memory (SIGKILL), a crash in native code (SIGSEGV, SIGBUS, "
        "SIGABRT), or a call of os._exit in the dataset"
    )
    error.pid, error.exit_reason = end
    return error


def assemble(
    lease: Lease,
    plan: Plan,
    irregular: dict[int, Any],
    batch_converter: BatchConverter | None,
) -> Any:
    """Return the batch (the converter's result, or the list of examples), or its `Failure`."""
    if lease.flags & status.CONVERTER_ERROR:
        dumped = lease.load(status.WHOLE_BATCH, status.PACKED_FAILURE, True)
        return load(dumped, f"converter, {plan.label}")
    if lease.flags & status.CONVERTED_OBJECT:
        return lease.load(status.WHOLE_BATCH, status.PACKED_RESULT, lease.is_copied)
    return from_rows(lease, plan, irregular, batch_converter)


def from_rows(
    lease: Lease,
    plan: Plan,
    irregular: dict[int, Any],
    batch_converter: BatchConverter | None,
) -> Any:
    """Make the batch of its rows. Messages name their indices, or keys."""
    if batch_converter is not None and lease.schema and not irregular:
        batch = batch_converter.from_columns(lease)
        if batch is not None:
            return batch
    if lease.schema is None:
        examples = [irregular[row] for row in range(lease.rows)]
    else:
        examples = row_reader.read(lease, lease.is_copied, irregular)
    if batch_converter is None:
        return examples
    indices: Any = plan.indices if plan.keys is None else plan.keys
    if lease.places is not None:  # rows were dropped
        indices = [indices[place] for place in lease.places]
    batch = capture(batch_converter.convert, examples, indices)
    if type(batch) is Failure:
        batch.facts = CONVERTED_HERE
    return batch

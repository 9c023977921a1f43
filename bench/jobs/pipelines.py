"""Pipelines: every candidate on the same dataset, under the same checks, in turns."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bench.harness.candidates import CANDIDATES, Candidate
from bench.harness.interpreters import Interpreter
from bench.harness.limit import compile_memcpy
from bench.harness.remote import CandidateError, Remote
from bench.harness.rows import Row
from bench.harness.workloads import WORKLOADS

ROUNDS, SECONDS = 5, 0.25
QUICK_ROUNDS, QUICK_SECONDS = 3, 0.2
QUICK_WORKLOADS = ("W1", "W2")  # if none is named
MIN_BATCHES = 8
IDLE_SECONDS = 0.1
OPENING_SLICES = 3  # length of the first warm-up, in slices


@dataclass(frozen=True)
class Settings:
    """Length and number of measurements; `seconds` is the length of one timed slice."""

    rounds: int
    seconds: float
    root: str


def rows_of(
    workload: str,
    interpreters: dict[str, Interpreter],
    twins: dict[str, Interpreter],
    main_only: bool,
) -> list[Row]:
    """The rows of a workload, skipped ones included.

    Parameters
    ----------
    workload : str
        Its name.
    interpreters : dict
        Per chosen family, the interpreter that runs its candidates.
    twins : dict
        Per peer that runs under another interpreter than fastiter does: fastiter under that one. It
        adds the row ``fastiter.mp@PEER``, so that the ratio to this peer is taken within one
        interpreter and one NumPy.
    main_only : bool
        Leave out the candidates that a quick run does not need.
    """
    rows = [Row("limit", "fetch + copy + consume, see bench/harness/limit.py", "limit", None)]
    only = WORKLOADS[workload].only or CANDIDATES
    for candidate in CANDIDATES.values():
        if candidate.name not in only:
            continue
        if candidate.family in interpreters and (candidate.main or not main_only):
            rows.append(_row(candidate, candidate.name, interpreters[candidate.family]))
        if candidate.name == "fastiter.mp":
            for peer, interpreter in twins.items():
                rows.append(_row(candidate, f"{candidate.name}@{peer}", interpreter))
    return rows


def _row(candidate: Candidate, name: str, interpreter: Interpreter) -> Row:
    row = Row(name, candidate.title, candidate.family, interpreter)
    if interpreter.reason is not None:
        row.status, row.reason = "skipped", interpreter.reason
    return row


class Measurement:
    """One workload: the processes of its rows, from their start to `close`."""

    def __init__(self, workload: str, rows: list[Row], settings: Settings) -> None:
        self._workload = workload
        self._rows = rows
        self._settings = settings
        self._remotes: dict[str, Remote] = {}

    def close(self) -> None:
        """Ends all processes."""
        for remote in self._remotes.values():
            remote.end()

    def start(self) -> None:
        """Starts all processes, which make their datasets side by side, then opens each loader."""
        for row in self._rows:
            if row.ok:
                self._launch(row)
        self._each(self._rows, lambda row, remote: remote.started())
        seconds = OPENING_SLICES * self._settings.seconds

        def open_(row: Row, remote: Remote) -> None:
            row.facts["pss_before"] = remote.memory()
            row.facts |= remote.ask("open", watched=True, seconds=seconds)

        self._each(self._rows, open_)

    def _launch(self, row: Row) -> None:
        candidate, _, _ = row.name.partition("@")
        python, arguments = sys.executable, []
        if row.interpreter is not None:
            python = row.interpreter.path
        else:
            try:
                arguments = [compile_memcpy()]
            except (OSError, subprocess.CalledProcessError) as error:
                row.status, row.reason = "skipped", f"no compiler for the memcpy program: {error}"
                return
        self._remotes[row.name] = Remote(
            python,
            self._settings.root,
            "bench.harness.runner",
            candidate,
            self._workload,
            *arguments,
        )

    def round(self, number: int) -> None:
        """A slice of every candidate, in an order that changes with the round."""
        order = list(self._rows)
        random.Random(number).shuffle(order)
        seconds = self._settings.seconds
        self._each(
            order,
            lambda row, remote: row.slices.append(
                remote.ask("run", seconds=seconds, min_batches=MIN_BATCHES)
            ),
        )

    def finish(self) -> None:
        """Measurements that must not disturb the timed slices: idle CPU, memory, closing."""
        seconds = self._settings.seconds

        def look(row: Row, remote: Remote) -> None:
            row.facts["idle_cores"] = remote.idle_cores(IDLE_SECONDS)
            remote.ask("consume", watched=True, seconds=seconds)
            row.facts["pss_added"] = remote.peak - row.facts["pss_before"]
            row.facts |= remote.ask("close")

        self._each(self._rows, look)

    def _each(self, rows: list[Row], act: Callable[[Row, Remote], Any]) -> None:
        """Does `act` for the rows still good; one that fails keeps the reason, not its process."""
        for row in rows:
            if not row.ok:
                continue
            try:
                act(row, self._remotes[row.name])
            except CandidateError as error:
                row.status, row.reason = error.kind, error.reason
                self._remotes.pop(row.name).end()


def measure(workload: str, rows: list[Row], settings: Settings, say: Callable[[str], None]) -> None:
    """Measures `workload` for `rows`, filling them in; `say` is told how far it is."""
    with closing(Measurement(workload, rows, settings)) as measurement:
        say("starting")
        measurement.start()
        for number in range(settings.rounds):
            say(f"round {number + 1} of {settings.rounds}")
            measurement.round(number)
        say("memory")
        measurement.finish()

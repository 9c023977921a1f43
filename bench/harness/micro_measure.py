"""Runs the jobs of micro-benchmarks: a process per library, candidates in turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from bench.harness.interpreters import Interpreter
from bench.harness.micro import Case
from bench.harness.remote import CandidateError, Remote
from bench.harness.rows import Row

ROUNDS, SECONDS = 5, 0.05
QUICK_ROUNDS, QUICK_SECONDS = 3, 0.02
LONGEST, QUICK_LONGEST = 15.0, 3.0  # seconds of a case's rounds together, if a call takes long
OPEN_LIMIT = 180.0


@dataclass(frozen=True)
class MicroSettings:
    """Length and number of measurements; `seconds` is the length of one timed slice.

    With `fixed`, a case has `rounds` rounds, however long they take.
    """

    rounds: int
    fixed: bool
    seconds: float
    root: str
    quick: bool


def rows_of(
    case: Case, interpreters: dict[str, Interpreter], twins: dict[str, Interpreter]
) -> list[Row]:
    """The rows of a case, limit first; candidates of libraries that were not chosen are left out.

    As in the pipelines, a peer under another interpreter adds the row ``fastiter@PEER``, and the
    same for each other row of ours that a goal names; but not where processes are started, which
    takes long and depends little on the interpreter.
    """
    names = sorted(case.candidates, key=lambda name: name != "limit")
    families = {name.partition(".")[0] for name in names}
    ours = {"fastiter", *(goal.ours for goal in case.goals)}
    rows = []
    for name in names:
        family = name.partition(".")[0]
        # What is written with NumPy alone, the limit too, runs under fastiter's interpreter.
        interpreter = interpreters.get("fastiter" if family == "limit" else family)
        if interpreter is None:
            continue
        rows.append(_row(name, family, interpreter))
        if name in ours and not case.processes:
            rows += [
                _row(f"{name}@{peer}", family, twins[peer]) for peer in twins if peer in families
            ]
    return rows


def _row(name: str, family: str, interpreter: Interpreter) -> Row:
    row = Row(name, "", family, interpreter)
    if interpreter.reason is not None:
        row.status, row.reason = "skipped", interpreter.reason
    return row


class Job:
    """A job's processes, started when first needed, from construction to `close`."""

    def __init__(self, job: ModuleType, settings: MicroSettings) -> None:
        self._name = job.__name__.rpartition(".")[2]
        self._settings = settings
        self._remotes: dict[tuple[str, str], Remote] = {}

    def close(self) -> None:
        """Ends all processes."""
        for remote in self._remotes.values():
            remote.end()

    def measure(self, case: Case, rows: list[Row], say: Callable[[str], None]) -> None:
        """Measures `case`, filling in `rows`."""
        seconds = self._settings.seconds * case.share
        self._rows = rows
        say("starting")
        self._launch(rows)
        self._open(case)
        rounds = self._settings.rounds
        if not self._settings.fixed:
            calls = sum(row.facts["call_s"] for row in rows if row.ok)
            longest, fewest = (QUICK_LONGEST, 1) if self._settings.quick else (LONGEST, 2)
            rounds = min(rounds, max(fewest, int(longest / max(calls, 1e-9))))
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            order = list(rows)
            random.Random(number).shuffle(order)
            for row in order:
                self._slice(row, seconds, last=number == rounds - 1)
        for key in {self._key(row) for row in rows if row.ok}:
            try:
                self._remotes[key].ask("close")
            except CandidateError as error:
                self._lost(key, error)

    def _key(self, row: Row) -> tuple[str, str]:
        """The process that runs a row: one per library and interpreter."""
        assert row.interpreter is not None
        return row.family, row.interpreter.path

    def _launch(self, rows: list[Row]) -> None:
        starting = {}
        for row in rows:
            key = self._key(row)
            if row.ok and key not in self._remotes:
                quick = str(int(self._settings.quick))
                remote = Remote(
                    key[1], self._settings.root, "bench.harness.micro_runner", self._name, quick
                )
                self._remotes[key] = starting[key] = remote
        for key, remote in starting.items():
            try:
                remote.started()
            except CandidateError as error:
                self._lost(key, error)

    def _lost(self, key: tuple[str, str], error: CandidateError) -> None:
        """A process that ended or hangs takes its rows of this case with it; it starts anew."""
        for row in self._rows:
            if row.ok and self._key(row) == key:
                row.status, row.reason = error.kind, error.reason
        self._remotes.pop(key).end()

    def _open(self, case: Case) -> None:
        """Opens and checks all candidates; refused rows drop out.

        The libraries' processes do it side by side, unless each starts more of them: their memory
        is looked at meanwhile, and many copies of a large dataset might not fit.
        """
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self._rows:
            if row.ok:
                groups.setdefault(self._key(row), []).append(row)

        def put(key: tuple[str, str]) -> None:
            names = [row.name.partition("@")[0] for row in groups[key]]
            self._remotes[key].put("open", case=case.name, candidates=names)

        if not case.processes:
            for key in groups:
                put(key)
        for key, group in groups.items():
            if case.processes:
                put(key)
            try:
                answer = self._remotes[key].take(OPEN_LIMIT)
            except CandidateError as error:
                self._lost(key, error)
                continue
            for row in group:
                name = row.name.partition("@")[0]
                if name in answer["refused"]:
                    row.status, row.reason = answer["refused"][name]
                else:
                    row.facts |= answer["facts"][name]

    def _slice(self, row: Row, seconds: float, last: bool) -> None:
        if not row.ok:
            return
        name, key = row.name.partition("@")[0], self._key(row)
        try:
            answer = self._remotes[key].ask("run", candidate=name, seconds=seconds, last=last)
        except CandidateError as error:
            self._lost(key, error)
            return
        if "refused" in answer:
            row.status, row.reason = answer["refused"]
        else:
            row.slices.append(answer)

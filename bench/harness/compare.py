"""``python -m bench compare A B``: what of B is slower than A, or takes more memory.

Both are JSON files of ``--json``. A row counts as slower when

* every round of B is slower than every round of A: with five rounds each, chance alone does that in
  less than one case of a hundred; and
* the median is slower by more than 5 %, after the machine's own drift is taken out: the median
  change of what did not change, the limit and the peers of the same version, in the same case.

The same holds for faster. Memory counts when it grew by more than a tenth and by more than 5 MB.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

SLOWER = 0.95
MORE_MEMORY, MEMORY_NOISE = 1.1, 5e6


@dataclass(frozen=True)
class Change:
    """What became of one row from A to B.

    Attributes
    ----------
    speed : float
        Rate of B over rate of A.
    drift : float
        The same of the unchanged rows of the case; 1 where there are none.
    apart : bool
        Whether all rounds of one lie above all rounds of the other.
    memory : float, float
        Bytes that the row's loader added, in A and in B.
    """

    where: str
    speed: float
    drift: float
    apart: bool
    memory: tuple[float, float]

    @property
    def verdicts(self) -> list[str]:
        """Of "slower", "faster" and "more memory"."""
        verdicts = []
        if self.apart and self.speed < SLOWER * min(1.0, self.drift):
            verdicts.append("slower")
        elif self.apart and SLOWER * self.speed > max(1.0, self.drift):
            verdicts.append("faster")
        before, after = self.memory
        if after > max(MORE_MEMORY * before, before + MEMORY_NOISE):
            verdicts.append("more memory")
        return verdicts


def load(path: str) -> dict[str, Any]:
    """A results file. Raises ValueError for anything else."""
    document = json.loads(Path(path).read_text())
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise ValueError(f"{path}: expected a results file of python -m bench --json, schema 1")
    return document


def _rows(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, dict[str, Any]]]]:
    """Job, case, and the rows that are ok by name."""
    for job, content in document["jobs"].items():
        for case, result in content["cases"].items():
            yield job, case, {row["name"]: row for row in result["rows"] if row["status"] == "ok"}


def _speed(before: dict[str, Any], after: dict[str, Any]) -> float:
    return after["rate"] / before["rate"]


def _unchanged(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a row runs the same code in both files: not ours, and of the same versions."""
    same = all(before.get(key) == after.get(key) for key in ("version", "python", "numpy"))
    return same and before["name"].partition(".")[0].partition("@")[0] != "fastiter"


def changes(a: dict[str, Any], b: dict[str, Any]) -> list[Change]:
    """Every row of fastiter that both files have."""
    old = {(job, case): rows for job, case, rows in _rows(a)}
    found = []
    for job, case, rows in _rows(b):
        pairs = [
            (old[job, case][name], row)
            for name, row in rows.items()
            if name in old.get((job, case), {})
        ]
        still = [_speed(*pair) for pair in pairs if _unchanged(*pair)]
        drift = median(still) if still else 1.0
        for before, after in pairs:
            if before["name"].partition(".")[0].partition("@")[0] != "fastiter":
                continue
            first, second = ([one["rate"] for one in row["slices"]] for row in (before, after))
            apart = max(second) < min(first) or min(second) > max(first)
            memory = (before.get("pss_added", 0), after.get("pss_added", 0))
            where = f"{job}, {case}, {after['name']}"
            found.append(Change(where, _speed(before, after), drift, apart, memory))
    return found


def main(arguments: list[str]) -> int:
    """1 if anything is slower or takes more memory, like diff."""
    parser = argparse.ArgumentParser(
        prog="python -m bench compare", description="what of B is slower than A beyond the noise"
    )
    parser.add_argument("a", metavar="A", help="a file of --json")
    parser.add_argument("b", metavar="B", help="a later one")
    parsed = parser.parse_args(arguments)
    try:
        a, b = load(parsed.a), load(parsed.b)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for key in ("cpu", "cores"):
        if a["machine"][key] != b["machine"][key]:
            print(f"not the same machine: {a['machine'][key]} and {b['machine'][key]}")
    found = changes(a, b)
    worse = 0
    for change in found:
        for verdict in change.verdicts:
            worse += verdict != "faster"
            if verdict == "more memory":
                before, after = (f"{value / 1e6:,.0f}" for value in change.memory)
                print(f"{verdict}: {change.where}: {before} -> {after} MB")
            else:
                drift = f"what did not change: {change.drift:.2f}x"
                print(f"{verdict}: {change.where}: {change.speed:.2f}x ({drift})")
    print(f"{len(found)} rows of fastiter in both, {worse} worse")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

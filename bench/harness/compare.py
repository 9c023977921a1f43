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
from pathlib import Path
from statistics import median
from typing import Any

SLOWER = 0.95
MORE_MEMORY, MEMORY_NOISE = 1.1, 5e6


def load(path: str) -> dict[str, Any]:
    """A results file. Raises ValueError for anything else."""
    document = json.loads(Path(path).read_text())
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise ValueError(f"{path}: expected a results file of python -m bench --json, schema 1")
    return document


def _cases(document: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """By job and case, the rows that are ok by name."""
    return {
        f"{job}, {case}": {row["name"]: row for row in result["rows"] if row["status"] == "ok"}
        for job, content in document["jobs"].items()
        for case, result in content["cases"].items()
    }


def _is_ours(row: dict[str, Any]) -> bool:
    return row["name"].partition(".")[0].partition("@")[0] == "fastiter"


def _verdicts(case: str, before: dict[str, Any], after: dict[str, Any], drift: float) -> list[str]:
    """Changes of a row: slower, faster, or more memory."""
    found, where = [], f"{case}, {after['name']}"
    speed = after["rate"] / before["rate"]
    first, second = ([one["rate"] for one in row["slices"]] for row in (before, after))
    text = f"{speed:.2f}x (what did not change: {drift:.2f}x)"
    if max(second) < min(first) and speed < SLOWER * min(1.0, drift):
        found.append(f"slower: {where}: {text}")
    elif min(second) > max(first) and SLOWER * speed > max(1.0, drift):
        found.append(f"faster: {where}: {text}")
    old, new = (row.get("pss_added", 0) for row in (before, after))
    if new > max(MORE_MEMORY * old, old + MEMORY_NOISE):
        found.append(f"more memory: {where}: {old / 1e6:,.0f} -> {new / 1e6:,.0f} MB")
    return found


def compare(a: dict[str, Any], b: dict[str, Any]) -> tuple[int, list[str]]:
    """The number of rows of fastiter that both files have, and their changes."""
    count, found, old = 0, [], _cases(a)
    for case, rows in _cases(b).items():
        pairs = [(old[case][name], rows[name]) for name in rows if name in old.get(case, {})]
        # What runs the same code in both files: not ours, and of the same versions.
        still = [
            after["rate"] / before["rate"]
            for before, after in pairs
            if not _is_ours(before)
            and all(before.get(key) == after.get(key) for key in ("version", "python", "numpy"))
        ]
        drift = median(still) if still else 1.0
        for before, after in pairs:
            if _is_ours(before):
                count += 1
                found += _verdicts(case, before, after, drift)
    return count, found


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
    count, found = compare(a, b)
    worse = sum(not line.startswith("faster") for line in found)
    print("\n".join([*found, f"{count} rows of fastiter in both, {worse} worse"]))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

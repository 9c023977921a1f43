"""What `MultiprocessIterator` is to reach, as ratios within one run, and what it reached.

A goal counts as met from nine tenths of it on: the rest is the noise of a shared machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bench.pipelines import Row

MET_FROM = 0.9


@dataclass(frozen=True)
class Goal:
    """At least `ratio` times the best row of `other`.

    Attributes
    ----------
    other : str
        A row and its variants (``torch.mp``, ``torch.mp-numpy``: the best one counts), or
        ``best peer``: the best row of all peers.
    ours : str
        The row of fastiter, or ``fastiter``: the best of them.
    """

    other: str
    ratio: float
    ours: str = "fastiter.mp"


PIPELINES = {
    "W1": (
        Goal("torch.mp", 16),
        Goal("chainer.mp", 6),
        Goal("limit", 0.70),
        Goal("best peer", 1.0, ours="fastiter"),
    ),
    "W2": (Goal("torch.mp", 12), Goal("chainer.mp", 35), Goal("best peer", 1.5)),
    "W3": (Goal("torch.mp", 2), Goal("chainer.mp", 1.3), Goal("limit", 0.85)),
    "W4": (Goal("torch.mp", 15), Goal("chainer.mp", 40), Goal("best peer", 1.4)),
    "W5": (Goal("torch.mp", 15), Goal("chainer.mp", 30), Goal("best peer", 1.6)),
    "W6": (Goal("torch.mp", 11), Goal("chainer.mp", 5), Goal("best peer", 1.9)),
    "W7": (Goal("limit", 0.99),),
}
# The list of examples, then concat_examples, against the goals of the iterator with a converter.
LIST_SHARE = {"W1": 0.8, "W2": 0.5, "W3": 0.8, "W4": 0.5, "W5": 0.5, "W6": 0.8, "W7": 0.8}


def best(rows: Iterable[Row]) -> Row | None:
    """The fastest row that is ok."""
    return max((row for row in rows if row.ok), key=lambda row: row.rate, default=None)


def matching(rows: list[Row], other: str) -> list[Row]:
    """The rows that a goal compares with."""
    if other == "best peer":
        return [row for row in rows if row.family not in ("limit", "fastiter")]
    return [row for row in rows if row.name == other or row.name.startswith(f"{other}-")]


def ours_for(rows: list[Row], name: str, other: Row) -> Row | None:
    """Our row `name`, under the interpreter of `other` where it was measured there."""
    by_name = {row.name: row for row in rows if row.ok}
    return by_name.get(f"{name}@{other.family}", by_name.get(name))


def judge(workload: str, rows: list[Row]) -> list[dict[str, Any]]:
    """Each goal of `workload` with what was reached; none where figures are missing."""
    verdicts = []
    for goal in PIPELINES.get(workload, ()):
        other = best(matching(rows, goal.other))
        if other is None:
            continue
        candidates = [(goal.ours, goal.ratio)]
        if goal.ours == "fastiter.mp":
            candidates.append(("fastiter.mp-list", goal.ratio * LIST_SHARE[workload]))
        for name, wanted in candidates:
            if name == "fastiter":
                ours = best(row for row in rows if row.family == "fastiter" and "@" not in row.name)
            else:
                ours = ours_for(rows, name, other)
            if ours is None:
                continue
            reached = ours.rate / other.rate
            verdicts.append(
                {
                    "ours": ours.name,
                    "other": other.name,
                    "wanted": round(wanted, 3),
                    "reached": reached,
                    "met": reached >= MET_FROM * wanted,
                }
            )
    return verdicts

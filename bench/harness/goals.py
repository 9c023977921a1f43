"""Goals of fastiter, as ratios within one run, and the ratios that it reached.

One that is missed by less than a tenth says so: that much is the noise of a shared machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.rows import Row

NOISE = 0.9  # of a goal, from which on it may be noise that it was missed


@dataclass(frozen=True)
class Goal:
    """At least `ratio` times as good as the best row of `other`.

    `other` is a row and its variants (``torch.mp``, ``torch.mp-numpy``; ``torch``: all of torch's;
    the best one counts), or ``best peer``: the best row of all peers.
    """

    other: str
    ratio: float
    ours: str = "fastiter"  # with ".*" behind it the best that begins so
    figure: str = "rate"  # better when more, every other figure when less
    without: str = ""  # a variant of `other` that is shown but sets no goal


@dataclass(frozen=True)
class AtMost:
    """A figure of our row that is to be `value` or less, in its own unit: ``seconds`` (per call),
    ``p95_ratio`` (95th percentile over median), ``ns_per_item``, ``cpu_us_per_example``,
    ``pss_added`` (bytes), or one that the candidate measured itself."""

    figure: str
    value: float
    ours: str = "fastiter"


def _pipeline(*goals: Goal, list_share: float) -> tuple[Goal, ...]:
    """`goals`, and those of ``fastiter.mp`` once more for the rows without a converter."""
    lists = [
        replace(goal, ratio=list_share * goal.ratio, ours="fastiter.mp-list")
        for goal in goals
        if goal.ours == "fastiter.mp"
    ]
    return (*goals, *lists)


def _mp(other: str, ratio: float) -> Goal:
    return Goal(other, ratio, "fastiter.mp")


def _torch(ratio: float) -> Goal:
    """Against torch as it ships, in the better of its two ways to share tensors: the goals were set
    by that figure. The row with a collate function of one's own, which makes no tensors, is shown.
    """
    return Goal("torch.mp", ratio, "fastiter.mp", without="torch.mp-numpy")


def _loader(ratio: float, *, level: bool = True) -> list[Goal]:
    """Of the loader for torch: `ratio` times torch, and with `level` as fast as `as_torch`."""
    ours, torch = "fastiter.mp-torch-loader", []
    if ratio:
        torch = [Goal("torch.mp", ratio, ours, without="torch.mp-numpy")]
    return [*torch, Goal("fastiter.mp-as-torch", 0.9, ours)] if level else torch


PIPELINES = {
    "W1": _pipeline(
        _torch(16),
        _mp("chainer.mp", 6),
        _mp("limit", 0.70),
        Goal("best peer", 1.0, "fastiter.*"),
        *_loader(12),
        list_share=0.8,
    ),
    "W2": _pipeline(
        _torch(12), _mp("chainer.mp", 35), _mp("best peer", 1.5), *_loader(12), list_share=0.5
    ),
    "W3": _pipeline(
        _torch(2),
        _mp("chainer.mp", 1.3),
        _mp("limit", 0.85),
        *_loader(2, level=False),
        list_share=0.8,
    ),
    "W4": _pipeline(
        _torch(15), _mp("chainer.mp", 40), _mp("best peer", 1.4), *_loader(0), list_share=0.5
    ),
    "W5": _pipeline(
        _torch(15), _mp("chainer.mp", 30), _mp("best peer", 1.6), *_loader(12), list_share=0.5
    ),
    "W6": _pipeline(
        _torch(11), _mp("chainer.mp", 5), _mp("best peer", 1.9), *_loader(0), list_share=0.8
    ),
    "W7": _pipeline(_mp("limit", 0.99), list_share=0.8),
    "W9": tuple(_loader(10, level=False)),
}


def value(row: Row, figure: str) -> float | None:
    """A figure of a row that is ok, also those that follow from others; None where it has none."""
    if figure == "ns_per_item":
        return 1e9 / row.rate
    if figure == "p95_ratio":
        p95, seconds = row.figure("p95"), row.figure("seconds")
        return p95 / seconds if p95 and seconds else None
    return row.figure(figure)


def best(rows: Iterable[Row], figure: str = "rate") -> Row | None:
    """The best row that is ok and has this figure."""
    having = [(value(row, figure), row) for row in rows if row.ok]
    known = [(found, row) for found, row in having if found is not None]
    choose = max if figure == "rate" else min
    return choose(known, key=lambda pair: pair[0])[1] if known else None


def matching(rows: list[Row], other: str) -> list[Row]:
    """The rows that a goal compares with."""
    if other == "best peer":
        return [row for row in rows if row.family not in ("limit", "fastiter")]
    return [
        row for row in rows if row.name == other or row.name.startswith((f"{other}-", f"{other}."))
    ]


def ours_for(
    rows: list[Row], name: str, other: Row | None = None, figure: str = "rate"
) -> Row | None:
    """Our row `name`, under the interpreter of `other` where it was measured there."""
    if name.endswith(".*"):
        stem = name[:-2]
        return best(
            (
                row
                for row in rows
                if "@" not in row.name and (row.name == stem or row.name.startswith(f"{stem}."))
            ),
            figure,
        )
    by_name = {row.name: row for row in rows if row.ok}
    if other is None:
        return by_name.get(name)
    return by_name.get(f"{name}@{other.family}", by_name.get(name))


def judge(goals: Iterable[Goal | AtMost], rows: list[Row]) -> list[dict[str, Any]]:
    """Each of `goals` with what was reached; those whose figures are missing are left out."""
    return [verdict for goal in goals if (verdict := _judge(goal, rows)) is not None]


def _judge(goal: Goal | AtMost, rows: list[Row]) -> dict[str, Any] | None:
    other, figure = None, goal.figure
    if isinstance(goal, Goal):
        others = [row for row in matching(rows, goal.other) if row.name != goal.without]
        other = best(others, figure)
        if other is None:
            return None
    ours = ours_for(rows, goal.ours, other, figure)
    reached = value(ours, figure) if ours is not None else None
    if ours is None or reached is None:
        return None
    verdict = {"ours": ours.name, "figure": figure, "other": other and other.name}
    if isinstance(goal, AtMost):
        share = goal.value / reached if reached else 1.0
        return {**verdict, "wanted": goal.value, "reached": reached, "share": share}
    theirs = value(other, figure) if other is not None else None
    if theirs is None or min(reached, theirs) <= 0:  # as memory, where the system freed some
        return None
    reached = reached / theirs if figure == "rate" else theirs / reached
    share = reached / goal.ratio
    return {**verdict, "wanted": round(goal.ratio, 3), "reached": reached, "share": share}


def sentence(verdict: dict[str, Any]) -> str:
    """A verdict as a line for people."""
    share = verdict["share"]
    met = "met" if share >= 1 else "missed, within the noise" if share >= NOISE else "NOT met"
    ours, figure, other = verdict["ours"], verdict["figure"], verdict["other"]
    if other is None:
        return f"{ours} {figure} <= {verdict['wanted']:g}: {verdict['reached']:.3g}, {met}"
    what = "" if figure == "rate" else f" {figure},"
    return f"{ours} >= {verdict['wanted']:g}x {other}:{what} {verdict['reached']:.2f}x, {met}"

"""The chart of ``profile``: throughput against workers with the limit, and a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastiter._cli.profile.report import Measured
from fastiter._cli.profile.trials import Kind, Settings

_COLOURS = {"processes": "#1764ab", "threads": "#d9730d", "serial": "#6b6b6b"}
_LIMIT = "#b3261e"
_EVENTS = {  # an event that lies inside of another comes after it
    "next()": ("#e8b04a", "loop is in next()"),
    "loop": ("#7b4ba0", "loop's own work"),
    "fetch": ("#1764ab", "in the dataset"),
    "write": ("#49a36b", "writing"),
    "finish": ("#3aa6b9", "padding, converter"),
    "wait": ("#dddddd", "waiting: for work, for a batch"),
}
_MOST_WORKERS = 16
_BATCHES_SHOWN = 5
_LEGEND = {"frameon": False, "fontsize": 8, "loc": "center left", "bbox_to_anchor": (1.0, 0.5)}


def draw(measured: Measured, path: Path) -> str:
    """Save the chart as a PNG; return where, or why not."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "not drawn: matplotlib is not installed (pip install matplotlib)"
    best = measured.best.settings
    heights = [4.0]
    if measured.trace is not None:
        heights.append(1.3 + 0.28 * min(best.workers, _MOST_WORKERS))
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    throughput, *timelines = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)
    _throughput(throughput[0], measured)
    if measured.trace is not None:
        _timeline(timelines[0][0], measured.trace.events(), best.name)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        return f"not drawn: {error}"
    return str(path)


def _throughput(axes: Any, measured: Measured) -> None:
    best = measured.best
    lines: dict[Kind, dict[int, float]] = {"processes": {}, "threads": {}}
    for trials in measured.tried:
        kind, workers = trials.settings.kind, trials.settings.workers
        if kind != "serial" and trials.rates:
            lines[kind][workers] = max(trials.rate, lines[kind].get(workers, 0.0))
        elif trials.rates:
            style = {"color": _COLOURS[kind], "linewidth": 1.2, "zorder": 1}
            axes.axhline(trials.rate, label=trials.settings.name, **style)
    for kind, line in lines.items():
        if line:
            points = zip(*sorted(line.items()), strict=True)
            axes.plot(*points, "o-", color=_COLOURS[kind], label=Settings(kind).name)
    tried = sorted({*lines["processes"], *lines["threads"], 1})
    numbers = range(1, tried[-1] + 1)
    size, step = measured.measured_batch_size, measured.step
    most = size / step if step else float("inf")
    limit = [min(most, measured.limits.rate(n)) for n in numbers]
    axes.plot(numbers, limit, "--", color=_LIMIT, linewidth=1.2, label="limit of this machine")
    ring = {"markersize": 14, "fillstyle": "none", "color": "black", "linestyle": "none"}
    axes.plot([max(1, best.settings.workers)], [best.rate], "o", label="best", **ring)
    # A limit far above everything would squeeze the lines together.
    top = max(trials.rate for trials in measured.tried)
    axes.set_ylim(0, 1.12 * max(top, min(max(limit), 2 * top)))
    title = f"{measured.name}, batches of {size}" + (f", steps of {step:g} s" if step else "")
    axes.set(xlabel="workers", ylabel="examples/s", title=title)
    if tried[-1] > 8:
        axes.set_xscale("log", base=2)
    axes.set_xticks(tried, labels=list(map(str, tried)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(**_LEGEND)


def _timeline(axes: Any, events: list[dict[str, Any]], name: str) -> None:
    """Some of the last batches: a lane for each worker, and one for the loop.

    The very last batch is left out: the trace lacks what workers are doing when it is delivered.
    """
    spans = [event for event in events if event["ph"] == "X"]
    ends = [span["ts"] + span["dur"] for span in spans if span["name"] == "next()"]
    start, stop = ends[-2 - _BATCHES_SHOWN], ends[-2]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    loop, *workers = names
    lanes = {tid: lane for lane, tid in enumerate([*workers[:_MOST_WORKERS], loop])}
    for kind, (colour, label) in _EVENTS.items():
        bars = [
            (lanes[span["tid"]], (left - start) / 1e3, (right - left) / 1e3)
            for span in spans
            if span["name"] == kind and span["tid"] in lanes
            for left, right in [(max(span["ts"], start), min(span["ts"] + span["dur"], stop))]
            if right > left
        ]
        if bars:
            rows, lefts, widths = zip(*bars, strict=True)
            axes.barh(rows, widths, left=lefts, height=0.72, color=colour, label=label)
    for end in ends:
        if start <= end <= stop:
            axes.axvline((end - start) / 1e3, color="black", linewidth=0.6, alpha=0.5)
    axes.set_yticks(range(len(lanes)), labels=[names[tid] for tid in lanes])
    axes.invert_yaxis()
    axes.set_xlim(0, (stop - start) / 1e3)
    axes.set(xlabel="ms (thin lines: a batch is delivered)", title=f"{name}, the best settings")
    axes.legend(**_LEGEND)

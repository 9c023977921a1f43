"""The chart of ``profile``: throughput against workers with the limit, and a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastiter._cli.profile.profile import Measured

_COLOURS = {"processes": "#1764ab", "threads": "#d9730d", "serial": "#6b6b6b"}
_LIMIT = "#b3261e"
_EVENTS = {  # what is inside of another comes after it
    "next()": ("#e8b04a", "loop is in next()"),
    "loop": ("#7b4ba0", "loop's own work"),
    "fetch": ("#1764ab", "in the dataset"),
    "write": ("#49a36b", "writing"),
    "finish": ("#3aa6b9", "padding, converter"),
    "wait": ("#dddddd", "waiting: for work, for a batch"),
}
_MOST_WORKERS = 16
_BATCHES_SHOWN = 5


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
    lines: dict[str, dict[int, float]] = {"processes": {}, "threads": {}}
    for runs in measured.runs:
        kind, workers = runs.settings.kind, runs.settings.workers
        if not runs.rates:
            continue
        if kind == "serial":
            axes.axhline(
                runs.rate, color=_COLOURS[kind], linewidth=1.2, label=runs.settings.name, zorder=1
            )
        else:
            lines[kind][workers] = max(runs.rate, lines[kind].get(workers, 0.0))
    names = {"processes": "MultiprocessIterator", "threads": "MultithreadIterator"}
    for name, line in lines.items():
        if line:
            points = sorted(line.items())
            axes.plot(*zip(*points, strict=True), "o-", color=_COLOURS[name], label=names[name])
    tried = sorted({*lines["processes"], *lines["threads"], 1})
    numbers = range(1, tried[-1] + 1)
    limit = [_with_steps(measured, measured.limits.rate(n)) for n in numbers]
    axes.plot(numbers, limit, "--", color=_LIMIT, linewidth=1.2, label="limit of this machine")
    ring = {"markersize": 14, "fillstyle": "none", "color": "black", "linestyle": "none"}
    axes.plot([max(1, best.settings.workers)], [best.rate], "o", label="best", **ring)
    # A limit far above everything would squeeze the lines together.
    top = max(runs.rate for runs in measured.runs)
    axes.set_ylim(0, 1.12 * max(top, min(max(limit), 2 * top)))
    axes.set(xlabel="workers", ylabel="examples/s", title=f"{measured.name}, {_batches(measured)}")
    if tried[-1] > 8:
        axes.set_xscale("log", base=2)
    axes.set_xticks(tried, labels=list(map(str, tried)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _with_steps(measured: Measured, rate: float) -> float:
    if not measured.step:
        return rate
    return min(rate, measured.measured_batch_size / measured.step)


def _batches(measured: Measured) -> str:
    step = f", steps of {measured.step:g} s" if measured.step else ""
    return f"batches of {measured.measured_batch_size}{step}"


def _timeline(axes: Any, events: list[dict[str, Any]], name: str) -> None:
    """Some of the last batches: a lane for each worker, and one for the loop.

    The very last one is left out: what workers have in hand as it is delivered is not in the trace.
    """
    spans = [event for event in events if event["ph"] == "X"]
    ends = [span["ts"] + span["dur"] for span in spans if span["name"] == "next()"]
    start, stop = ends[-2 - _BATCHES_SHOWN], ends[-2]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    loop, *workers = names
    lanes = {tid: lane for lane, tid in enumerate([*workers[:_MOST_WORKERS], loop])}
    bars: dict[str, tuple[list[int], list[float], list[float]]] = {}
    for span in spans:
        left, right = max(span["ts"], start), min(span["ts"] + span["dur"], stop)
        if span["tid"] in lanes and right > left:
            rows, widths, lefts = bars.setdefault(span["name"], ([], [], []))
            rows.append(lanes[span["tid"]])
            widths.append((right - left) / 1e3)
            lefts.append((left - start) / 1e3)
    for kind, (colour, label) in _EVENTS.items():
        if kind in bars:
            rows, widths, lefts = bars[kind]
            axes.barh(rows, widths, left=lefts, height=0.72, color=colour, label=label)
    for end in ends:
        if start <= end <= stop:
            axes.axvline((end - start) / 1e3, color="black", linewidth=0.6, alpha=0.5)
    axes.set_yticks(range(len(lanes)), labels=[names[tid] for tid in lanes])
    axes.invert_yaxis()
    axes.set_xlim(0, (stop - start) / 1e3)
    axes.set(xlabel="ms (thin lines: a batch is delivered)", title=f"{name}, the best settings")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))

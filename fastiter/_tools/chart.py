"""The chart of ``profile``: throughput against workers with the limit, and a timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastiter._tools.profile import Measured
    from fastiter._tools.timeline import Span

_COLOURS = {"processes": "#1764ab", "threads": "#d9730d", "serial": "#6b6b6b"}
_LIMIT = "#b3261e"
_SPANS = {  # what is inside of another comes after it
    "next": ("#e8b04a", "loop is in next()"),
    "step": ("#7b4ba0", "loop's step"),
    "fetch": ("#1764ab", "in the dataset"),
    "write": ("#49a36b", "writing, handing over"),
    "wait": ("#dddddd", "waiting for work or a CPU"),
}
_MOST_LANES = 16
_BATCHES_SHOWN = 5


def draw(measured: Measured, path: Path) -> str:
    """Save the chart as a PNG; return where, or why not."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "not drawn: matplotlib is not installed (pip install matplotlib)"
    lanes = len({(span.process, span.thread) for span in measured.spans})
    heights = [4.0] + ([1.0 + 0.28 * min(lanes, _MOST_LANES + 1)] if lanes else [])
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _throughput(axes[0], measured)
    if lanes:
        _timeline(axes[1], measured.spans, measured.best.settings.name)
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


def _timeline(axes: Any, spans: list[Span], name: str) -> None:
    """The last batches: a lane for each worker, and one for the consumer."""
    ends = [span.end for span in spans if span.name == "next"]
    stop = ends[-1]
    start = ends[max(0, len(ends) - 1 - _BATCHES_SHOWN)]
    workers = list(dict.fromkeys((s.process, s.thread) for s in spans if s.thread))
    lanes = {lane: number for number, lane in enumerate(workers[:_MOST_LANES])}
    bottom = len(lanes)
    bars: dict[str, tuple[list[int], list[float], list[float]]] = {}
    for span in spans:
        lane = lanes.get((span.process, span.thread)) if span.thread else bottom
        left, right = max(span.start, start), min(span.end, stop)
        if lane is not None and right > left:
            rows, widths, lefts = bars.setdefault(span.name, ([], [], []))
            rows.append(lane)
            widths.append((right - left) * 1e3)
            lefts.append((left - start) * 1e3)
    for kind, (colour, label) in _SPANS.items():
        if kind in bars:
            rows, widths, lefts = bars[kind]
            axes.barh(rows, widths, left=lefts, height=0.72, color=colour, label=label)
    for end in ends:
        if start <= end <= stop:
            axes.axvline((end - start) * 1e3, color="black", linewidth=0.6, alpha=0.5)
    labels = [f"worker {number}" for number in lanes.values()] + ["loop"]
    axes.set_yticks(range(len(labels)), labels=labels)
    axes.invert_yaxis()
    axes.set_xlim(0, (stop - start) * 1e3)
    axes.set(xlabel="ms (thin lines: a batch is delivered)", title=f"{name}, the best settings")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))

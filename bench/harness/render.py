"""``python -m bench render FILE ...``: the results of the pipelines as a table and as a chart.

FILEs are of ``--json``. The table is Markdown, for a README; the chart a PNG, by matplotlib.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

from bench.harness.compare import load

FAMILIES = {"torch": "torch", "chainer": "Chainer", "grain": "Grain"}
LABELS = {
    "fastiter.serial": "fastiter, serial",
    "fastiter.thread": "fastiter, threads",
    "torch.serial": "torch DataLoader",
    "chainer.serial": "Chainer, serial",
    "chainer.thread": "Chainer, threads",
    "grain.thread": "Grain, threads",
    "spdl.thread": "SPDL, threads",
    "numpy.loop": "numpy.stack in a loop",
}
OURS, PEER, DRAWN_LIMIT = "#0b6e99", "#b8bec4", "#c0392b"

Row = dict[str, Any]


class Workload:
    """The rows of one workload that are shown.

    These are fastiter's, torch's, Chainer's and Grain's worker processes, each library's best way
    to use them, and without worker processes the best of ours and the best of all peers.
    """

    def __init__(self, name: str, result: dict[str, Any]) -> None:
        self.title = f"{name}: {result['title']}"
        self._rows: dict[str, Row] = {
            row["name"]: row for row in result["rows"] if row["status"] == "ok"
        }
        self.limit = self._rows.get("limit")

    @property
    def ours(self) -> Row | None:
        """`MultiprocessIterator` with a converter; else the loader for torch."""
        return self._rows.get("fastiter.mp", self._rows.get("fastiter.mp-torch-loader"))

    def workers(self, family: str) -> Row | None:
        """The fastest of a peer's ways to use worker processes."""
        return _fastest(row for name, row in self._rows.items() if name.startswith(f"{family}.mp"))

    def no_workers(self, *, ours: bool) -> Row | None:
        """The fastest way without worker processes, ours or of all peers."""
        return _fastest(
            row
            for name, row in self._rows.items()
            if name != "limit" and ".mp" not in name and name.startswith("fastiter") == ours
        )

    def ratio(self, row: Row) -> float | None:
        """The speed of `ours` divided by that of `row`, under the interpreter of `row`."""
        family = row["name"].partition(".")[0]
        ours = self._rows.get(f"fastiter.mp@{family}", self.ours)
        return ours["rate"] / row["rate"] if ours is not None else None

    def shown(self) -> list[tuple[str, Row]]:
        """Labels and rows, in order."""
        rows = [("fastiter, workers", self.ours)]
        rows += [(f"{title}, workers", self.workers(f)) for f, title in FAMILIES.items()]
        rows += [
            (LABELS.get(row["name"], row["name"]), row)
            for row in (self.no_workers(ours=True), self.no_workers(ours=False))
            if row is not None
        ]
        return [(label, row) for label, row in rows if row is not None]


def _fastest(rows: Iterable[Row]) -> Row | None:
    return max(rows, key=lambda row: row["rate"], default=None)


def _workloads(document: dict[str, Any]) -> list[Workload]:
    cases = document["jobs"].get("pipelines", {}).get("cases", {})
    found = [Workload(name, result) for name, result in cases.items()]
    if not any(workload.ours for workload in found):
        raise ValueError("the file has no figures of fastiter.mp in the job pipelines")
    return [workload for workload in found if workload.ours]


def _digits(rate: float) -> str:
    """Three digits: 51,900 of 51,874."""
    return f"{float(f'{rate:.3g}'):,.0f}"


def machine_line(document: dict[str, Any]) -> str:
    """Machine and versions, as below a table."""
    facts = document["machine"]
    names = {**FAMILIES, "spdl": "SPDL", "numpy": "NumPy"}
    versions = [
        f"{names[family]} {library['version']}"
        for family, library in document["libraries"].items()
        if library["skipped"] is None and family in names
    ]
    return f"{facts['cpu']}, {facts['cores']} cores; {', '.join(versions)}"


def markdown(document: dict[str, Any]) -> str:
    """The table: examples per second, and in brackets how many times as fast fastiter is."""
    workloads = _workloads(document)
    families = [f for f in FAMILIES if any(workload.workers(f) for workload in workloads)]
    titles = [f"{FAMILIES[family]}, workers" for family in families]
    head = ["", "fastiter, workers", *titles, "best peer without workers", "reference"]
    lines = [" | ".join(head), " | ".join(["---", *["--:"] * (len(head) - 1)])]
    for workload in workloads:
        assert workload.ours is not None
        cells = [workload.title, f"**{_digits(workload.ours['rate'])}**"]
        for row in (*map(workload.workers, families), workload.no_workers(ours=False)):
            ratio = workload.ratio(row) if row else None
            cells.append(f"{_digits(row['rate'])} ({ratio:.1f}x)" if row and ratio else "")
        cells.append(_digits(workload.limit["rate"]) if workload.limit else "")
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _bars(axes: Any, title: str, bars: list[tuple[str, float, str, bool]], widest: float) -> None:
    """Horizontal bars from 0, each (label, length, text behind it, whether it is ours)."""
    lengths = [length for _, length, _, _ in bars]
    colours = [OURS if ours else PEER for *_, ours in bars]
    axes.barh(range(len(bars)), lengths, color=colours, height=0.72)
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars], fontsize=8)
    axes.invert_yaxis()
    for place, (_, length, text, ours) in enumerate(bars):
        axes.annotate(
            text,
            (length, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            weight="bold" if ours else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlim(0, 1.3 * widest)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _pipeline_panel(axes: Any, workload: Workload) -> None:
    bars = []
    for label, row in workload.shown():
        ours = row["name"].startswith("fastiter")
        ratio = None if ours else workload.ratio(row)
        text = _digits(row["rate"]) + (f"  ({ratio:.1f}x)" if ratio else "")
        bars.append((label, row["rate"], text, ours))
    widest = max(length for _, length, _, _ in bars)
    title = workload.title
    if workload.limit is not None:
        limit = workload.limit["rate"]
        title += f"\nreference {_digits(limit)}"
        if limit <= 1.5 * widest:
            widest = max(widest, limit)
            axes.axvline(limit, color=DRAWN_LIMIT, linewidth=1, linestyle="--", zorder=0)
    _bars(axes, title, bars, widest)


def _startup_panel(axes: Any, document: dict[str, Any]) -> None:
    """W8's seconds to the first batch, of workers that are spawned."""
    (name, case), *_ = document["jobs"]["startup"]["cases"].items()
    rows = {row["name"]: row for row in case["rows"] if row["status"] == "ok"}
    bars = []
    for family, title in {"fastiter": "fastiter", **FAMILIES}.items():
        if f"{family}.spawn" in rows:
            seconds = 1 / rows[f"{family}.spawn"]["rate"]
            ours = rows.get(f"fastiter.spawn@{family}", rows.get("fastiter.spawn"))
            ratio = seconds * ours["rate"] if ours and family != "fastiter" else None
            text = f"{seconds:.2f} s" + (f"  ({ratio:.1f}x)" if ratio else "")
            bars.append((f"{title}, spawn", seconds, text, family == "fastiter"))
    title = f"W8: seconds to the first batch, {name} in memory\nless is better"
    _bars(axes, title, bars, max((length for _, length, _, _ in bars), default=1.0))


def chart(document: dict[str, Any], path: str) -> None:
    """Draws a panel per workload, each with an axis from 0 of its own."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: list[Callable[[Any], None]] = [
        functools.partial(_pipeline_panel, workload=workload) for workload in _workloads(document)
    ]
    if "startup" in document["jobs"]:
        panels.append(functools.partial(_startup_panel, document=document))
    columns = 2 if len(panels) > 1 else 1
    lines = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(5.6 * columns, 1.9 * lines + 0.9), squeeze=False
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        panel(axes)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    figure.suptitle(
        "Examples per second, more is better "
        "(in brackets: so many times as fast are fastiter's workers)",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    note = (
        f"{machine_line(document)}. Dashed, the reference: fetch, copy once by memcpy and check, "
        "one after the other.\nIt is no upper bound: loaders may overlap these steps, and write "
        "large batches past the caches."
    )
    figure.text(0.01, 0.004, note, fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 0.985))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench render", description="results of the pipelines as table and chart"
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="files of --json; the first tells the machine"
    )
    parser.add_argument("--png", metavar="FILE", help="draw the chart into this file")
    parsed = parser.parse_args(arguments)
    try:
        document = load(parsed.files[0])
        for path in parsed.files[1:]:
            document["jobs"] |= load(path)["jobs"]
        print(markdown(document))
        print(f"\n{machine_line(document)}")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if parsed.png:
        chart(document, parsed.png)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``python -m bench render FILE``: the results of the pipelines as a table and as a chart.

FILE is of ``--json``. The table is Markdown, for a README; the chart is a PNG, by matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench.compare import load

FAMILIES = {"torch": "torch", "chainer": "Chainer", "grain": "Grain", "spdl": "SPDL"}
LABELS = {
    "fastiter.mp": "fastiter",
    "fastiter.serial": "fastiter, no workers",
    "fastiter.thread": "fastiter, threads",
    "torch.mp": "torch DataLoader",
    "torch.mp-files": "torch DataLoader, files",
    "torch.mp-numpy": "torch DataLoader, NumPy",
    "torch.serial": "torch DataLoader, no workers",
    "chainer.mp": "Chainer",
    "chainer.serial": "Chainer, no workers",
    "chainer.thread": "Chainer, threads",
    "grain.mp": "Grain",
    "grain.thread": "Grain, threads",
    "spdl.thread": "SPDL, threads",
    "numpy.loop": "plain loop, numpy.stack",
}
OURS, PEER, DRAWN_LIMIT = "#0b6e99", "#b8bec4", "#c0392b"

Row = dict[str, Any]


class Workload:
    """The rows of one workload that are shown: ours, and the best of each peer."""

    def __init__(self, name: str, result: dict[str, Any]) -> None:
        self.title = f"{name}: {result['title']}"
        self.rows: dict[str, Row] = {
            row["name"]: row for row in result["rows"] if row["status"] == "ok"
        }
        self.limit = self.rows.get("limit")

    @property
    def ours(self) -> Row | None:
        """`MultiprocessIterator` with a converter."""
        return self.rows.get("fastiter.mp")

    def best(self, family: str) -> Row | None:
        """The fastest row of a library, "@" ones left out."""
        rows = [row for name, row in self.rows.items() if name.partition(".")[0] == family]
        return max(
            (row for row in rows if "@" not in row["name"]), key=lambda r: r["rate"], default=None
        )

    def shown(self) -> list[Row]:
        """Ours, the best of ours if it is another one, and the best of each peer."""
        rows = [self.ours, self.best("fastiter"), *map(self.best, FAMILIES), self.best("numpy")]
        return list({row["name"]: row for row in rows if row is not None}.values())

    def ratio(self, row: Row) -> float | None:
        """How many times faster ours is than `row`, under the interpreter of `row`."""
        family = row["name"].partition(".")[0]
        ours = self.rows.get(f"fastiter.mp@{family}", self.ours)
        return ours["rate"] / row["rate"] if ours is not None else None


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
    versions = [
        f"{FAMILIES.get(family, family)} {library['version']}"
        for family, library in document["libraries"].items()
        if library["skipped"] is None and family not in ("fastiter", "python")
    ]
    return f"{facts['cpu']}, {facts['cores']} cores; {', '.join(versions)}"


def markdown(document: dict[str, Any]) -> str:
    """The table: examples per second, and in brackets how many times faster fastiter is."""
    workloads = _workloads(document)
    families = [f for f in FAMILIES if any(workload.best(f) for workload in workloads)]
    head = ["", "fastiter", *(FAMILIES[f] for f in families), "plain loop", "machine's limit"]
    lines = [" | ".join(head), "|".join(["---", *["--:"] * (len(head) - 1)])]
    for workload in workloads:
        assert workload.ours is not None
        cells = [workload.title, f"**{_digits(workload.ours['rate'])}**"]
        for family in (*families, "numpy"):
            row = workload.best(family)
            ratio = workload.ratio(row) if row else None
            cells.append(f"{_digits(row['rate'])} ({ratio:.1f}x)" if row and ratio else "")
        cells.append(_digits(workload.limit["rate"]) if workload.limit else "")
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _panel(axes: Any, workload: Workload) -> None:
    rows = workload.shown()
    rates = [row["rate"] for row in rows]
    names = [LABELS.get(row["name"], row["name"]) for row in rows]
    colours = [OURS if row["name"].startswith("fastiter") else PEER for row in rows]
    axes.barh(range(len(rows)), rates, color=colours, height=0.72)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    longest = max(rates)
    limit = workload.limit["rate"] if workload.limit else None
    if limit is not None and limit <= 1.5 * longest:
        longest = max(longest, limit)
        axes.axvline(limit, color=DRAWN_LIMIT, linewidth=1, linestyle="--")
    for place, row in enumerate(rows):
        ratio = workload.ratio(row)
        text = f" {_digits(row['rate'])}"
        if not row["name"].startswith("fastiter") and ratio is not None:
            text += f"  ({ratio:.1f}x)"
        inside = row["rate"] > 0.62 * longest
        axes.text(
            row["rate"],
            place,
            text.strip() + " " if inside else text,
            va="center",
            ha="right" if inside else "left",
            fontsize=8,
            color="white" if inside and row["name"].startswith("fastiter") else "black",
        )
    title = workload.title
    if limit is not None:
        title += f"\nmachine's limit {_digits(limit)}"
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlim(0, 1.04 * longest)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def chart(document: dict[str, Any], path: str) -> None:
    """Draws a panel per workload, each with an axis from 0 of its own."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = _workloads(document)
    columns = 2 if len(workloads) > 1 else 1
    lines = -(-len(workloads) // columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(5.6 * columns, 1.9 * lines + 0.9), squeeze=False
    )
    for axes, workload in zip(grid.flat, workloads, strict=False):
        _panel(axes, workload)
    for axes in list(grid.flat)[len(workloads) :]:
        axes.axis("off")
    figure.suptitle(
        "Examples per second, more is better (in brackets: how many times faster fastiter is)",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    note = f"{machine_line(document)}. The best way of each library; dashed: machine's limit."
    figure.text(0.01, 0.004, note, fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.02, 1, 0.985))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench render", description="results of the pipelines as table and chart"
    )
    parser.add_argument("file", metavar="FILE", help="a file of --json")
    parser.add_argument("--png", metavar="FILE", help="draw the chart into this file")
    parsed = parser.parse_args(arguments)
    try:
        document = load(parsed.file)
        print(markdown(document))
        print(f"\n{machine_line(document)}")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if parsed.png:
        chart(document, parsed.png)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

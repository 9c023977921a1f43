"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from statistics import median
from typing import Any

from bench.goals import judge, ours_for
from bench.interpreters import Interpreter
from bench.pipelines import Row
from bench.workloads import N_PREFETCH, WORKLOADS

_HEAD = (
    "candidate",
    "examples/s",
    "min",
    "max",
    "of limit",
    "fastiter",
    "CPU us",
    "cores",
    "MB",
    "epochs",
)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": os.getloadavg()[0],
    }


def describe(facts: dict[str, Any], interpreters: dict[str, Interpreter]) -> str:
    """The lines above the tables: machine, libraries, and what is left out."""
    lines = [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}",
        f"  load before the run: {facts['load_before']:.2f}",
    ]
    for family, interpreter in interpreters.items():
        if interpreter.reason is None:
            lines.append(f"  {family} {interpreter.version}: Python {interpreter.label}")
        else:
            lines.append(f"  {family} skipped: {interpreter.reason}")
    return "\n".join(lines)


def _ratio(rows: list[Row], row: Row) -> str:
    if row.family == "limit" or not row.ok:
        return ""
    ours = ours_for(rows, "fastiter.mp", row)
    return f"{ours.rate / row.rate:.2f}x" if ours is not None else ""


def _cells(rows: list[Row], row: Row, limit: float | None) -> tuple[str, ...]:
    rates = [one["rate"] for one in row.slices]
    cells = [row.name, f"{row.rate:,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}"]
    if row.family == "limit":
        return (*cells, *[""] * (len(_HEAD) - len(cells)))
    return (
        *cells,
        f"{row.rate / limit:.0%}" if limit else "",
        _ratio(rows, row),
        f"{row.median('cpu_us_per_example'):,.2f}",
        f"{row.median('cores'):.2f}",
        f"{row.facts['pss_added'] / 1e6:,.0f}",
        f"{row.slices[-1]['epochs']}",
    )


def table(name: str, rows: list[Row]) -> str:
    """The table of one workload, its limit's parts, what gave no figure, and its goals."""
    workload = WORKLOADS[name]
    limit = next((row.rate for row in rows if row.family == "limit" and row.ok), None)
    loaded = f"batch {workload.batch_size}, {workload.n_workers} workers, n_prefetch {N_PREFETCH}"
    lines = [f"{name}: {workload.title}; {loaded}"]
    cells = [_HEAD, *(_cells(rows, row, limit) for row in rows if row.ok)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        first, *others = (
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join((first, *others)).rstrip())
    for row in rows:
        if row.family == "limit" and row.ok:
            parts = [
                f"{part} {median(one['parts'][part] for one in row.slices):,.0f}/s"
                for part in row.slices[0]["parts"]
            ]
            lines.append("limit: " + ", ".join(parts))
        elif not row.ok and (row.interpreter is None or row.interpreter.reason is None):
            lines.append(f"{row.name}: {row.status}: {row.reason}")
    for verdict in judge(name, rows):
        lines.append(
            f"goal: {verdict['ours']} >= {verdict['wanted']:g}x {verdict['other']}: "
            f"{verdict['reached']:.2f}x, {'met' if verdict['met'] else 'NOT met'}"
        )
    return "\n".join(lines)


def write_json(
    path: str, facts: dict[str, Any], settings: dict[str, Any], results: dict[str, list[Row]]
) -> None:
    """Everything measured, each round by itself."""
    document = {
        "machine": facts,
        "settings": settings,
        "pipelines": {
            name: {
                "title": WORKLOADS[name].title,
                "batch_size": WORKLOADS[name].batch_size,
                "n_workers": WORKLOADS[name].n_workers,
                "rows": [row.as_json() for row in rows],
                "goals": judge(name, rows),
            }
            for name, rows in results.items()
        },
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n")

"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness.goals import PIPELINES, AtMost, Goal, judge, ours_for, sentence
from bench.harness.interpreters import Interpreter
from bench.harness.micro import Case
from bench.harness.rows import Row
from bench.harness.workloads import N_PREFETCH, WORKLOADS

SCHEMA = 1


def machine() -> dict[str, Any]:
    """The machine on which the figures were measured."""
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


def lay_out(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: first column to the left, the others to the right, empty ones left out."""
    head, *body = cells
    used = [place for place in range(len(head)) if any(line[place] for line in body)]
    widths = {place: max(len(line[place]) for line in cells) for place in used}
    lines = []
    for line in cells:
        first, *others = used
        texts = [line[first].ljust(widths[first])]
        texts += [line[place].rjust(widths[place]) for place in others]
        lines.append("  ".join(texts).rstrip())
    return lines


def _ratio(rows: list[Row], row: Row, ours: str) -> str:
    if row.family == "limit":
        return ""
    mine = ours_for(rows, ours, row)
    return f"{mine.rate / row.rate:.2f}x" if mine is not None else ""


def _counterpart(rows: list[Row], row: Row) -> str:
    """Our row of the same variant, ``fastiter.spawn`` for ``torch.spawn``, if there is one."""
    name = "fastiter." + row.name.partition("@")[0].partition(".")[2]
    return name if any(other.name == name for other in rows) else "fastiter"


def _limit(rows: list[Row]) -> Row | None:
    return next((row for row in rows if row.family == "limit" and row.ok), None)


def _left_out(rows: Iterable[Row]) -> list[str]:
    """Why rows have no figures, unless their whole library is missing."""
    return [
        f"{row.name}: {row.status}: {row.reason}"
        for row in rows
        if not row.ok and (row.interpreter is None or row.interpreter.reason is None)
    ]


def _goals(goals: Iterable[Goal | AtMost], rows: list[Row]) -> list[str]:
    return [f"goal: {sentence(verdict)}" for verdict in judge(goals, rows)]


_PIPELINE_HEAD = (
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


def _pipeline_cells(rows: list[Row], row: Row, limit: Row | None, ours: str) -> tuple[str, ...]:
    rates = [one["rate"] for one in row.slices]
    cells = [row.name, f"{row.rate:,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}"]
    if row.family == "limit":
        return (*cells, *[""] * (len(_PIPELINE_HEAD) - len(cells)))
    return (
        *cells,
        f"{row.rate / limit.rate:.0%}" if limit else "",
        _ratio(rows, row, ours),
        f"{row.median('cpu_us_per_example'):,.2f}",
        f"{row.median('cores'):.2f}",
        f"{row.facts['pss_added'] / 1e6:,.0f}",
        f"{row.slices[-1]['epochs']}",
    )


def pipeline_table(name: str, rows: list[Row]) -> str:
    """The table of one workload, its limit's parts, what gave no figure, and its goals."""
    workload = WORKLOADS[name]
    limit = _limit(rows)
    loaded = f"batch {workload.batch_size}, {workload.n_workers} workers, n_prefetch {N_PREFETCH}"
    cells = [
        _PIPELINE_HEAD,
        *(_pipeline_cells(rows, row, limit, workload.ours) for row in rows if row.ok),
    ]
    lines = [f"{name}: {workload.title}; {loaded}", *lay_out(cells)]
    if limit:
        parts = [
            f"{part} {median(one['parts'][part] for one in limit.slices):,.0f}/s"
            for part in limit.slices[0]["parts"]
        ]
        lines.append("limit: " + ", ".join(parts))
    return "\n".join((*lines, *_left_out(rows), *_goals(PIPELINES.get(name, ()), rows)))


def duration(seconds: float) -> str:
    """Three digits and a unit: ``12.3 us``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * scale:
            return f"{seconds / scale:#.3g} {unit}".replace(". ", " ")
    return f"{seconds * 1e9:#.3g} ns".replace(". ", " ")


_OWN_COLUMNS = (
    "rate",
    "seconds",
    "p95",
    "cpu_us_per_example",
    "cores",
    "calls",
)


def _micro_cells(case: Case, rows: list[Row], row: Row, more: list[str]) -> tuple[str, ...]:
    limit = _limit(rows)
    seconds = row.median("seconds")
    return (
        row.name,
        duration(seconds),
        duration(row.median("p95")),
        duration(1 / row.rate) if case.items > 1 else "",
        f"{case.nbytes / seconds / 1e9:.1f}" if case.nbytes else "",
        f"{row.rate / limit.rate:.0%}" if limit and row.family != "limit" else "",
        _ratio(rows, row, _counterpart(rows, row)),
        f"{row.median('cpu_us_per_example') * case.items:,.2f}",
        f"{row.facts['pss_added'] / 1e6:,.1f}",
        *(f"{value:.4g}" if (value := row.figure(key)) is not None else "" for key in more),
    )


def micro_table(job: str, case: Case, rows: list[Row]) -> str:
    """The table of one case of a job of micro-benchmarks."""
    good = [row for row in rows if row.ok]
    more = sorted({key for row in good for key in row.slices[0]} - {*_OWN_COLUMNS})
    head = ("candidate", "a call", "p95", f"per {case.item}", "GB/s", "of limit", "fastiter")
    cells = [
        (*head, "CPU us", "MB", *more),
        *(_micro_cells(case, rows, row, more) for row in good),
    ]
    lines = [f"{job}: {case.name}"]
    if good:
        lines += lay_out(cells)
    return "\n".join((*lines, *_left_out(rows), *_goals(case.goals, rows)))


def pipeline_json(name: str, rows: list[Row]) -> dict[str, Any]:
    """A workload's part of the JSON."""
    workload = WORKLOADS[name]
    return {
        "title": workload.title,
        "item": "example",
        "items": workload.batch_size,
        "n_workers": workload.n_workers,
        "rows": [row.as_json() for row in rows],
        "goals": judge(PIPELINES.get(name, ()), rows),
    }


def micro_json(case: Case, rows: list[Row]) -> dict[str, Any]:
    """A case's part of the JSON."""
    return {
        "title": case.name,
        "item": case.item,
        "items": case.items,
        "nbytes": case.nbytes,
        "rows": [row.as_json() for row in rows],
        "goals": judge(case.goals, rows),
    }


def write_json(
    path: str,
    facts: dict[str, Any],
    interpreters: dict[str, Interpreter],
    settings: dict[str, Any],
    jobs: dict[str, dict[str, Any]],
) -> None:
    """Everything measured, each round by itself; bench/README.md describes the fields."""
    document = {
        "schema": SCHEMA,
        "machine": facts,
        "libraries": {
            family: {
                "version": interpreter.version,
                "python": interpreter.python,
                "numpy": interpreter.numpy,
                "skipped": interpreter.reason,
            }
            for family, interpreter in interpreters.items()
        },
        "settings": settings,
        "jobs": jobs,
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n")

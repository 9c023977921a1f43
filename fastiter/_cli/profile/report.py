"""Prints what ``profile`` has measured, for people and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

from fastiter._cli.profile.dataset_cost import DatasetCost
from fastiter._cli.profile.limits import Limits
from fastiter._cli.profile.search import SIMPLER
from fastiter._cli.profile.trials import Trials
from fastiter._stats.trace import Trace
from fastiter._util.units import as_bytes, as_seconds


class Measured(NamedTuple):
    name: str
    batch_size: int
    measured_batch_size: int
    converter: str  # as code; empty: none
    step: float
    cost: DatasetCost
    limits: Limits
    tried: list[Trials]
    starts: dict[str, Trials]  # by start method
    best: Trials
    advice: list[str]
    notes: list[str]
    trace: Trace | None  # of the best settings; None if that failed

    @property
    def code(self) -> str:
        """The best settings as a line of Python."""
        return self.best.settings.code(self.batch_size, self.converter)


def show_cost(say: Callable[[str], None], name: str, dataset: Any, cost: DatasetCost) -> None:
    say(f"Dataset {name}: {type(dataset).__name__}, {cost.length:,} examples")
    say(f"  example      {cost.layout}, {as_bytes(cost.nbytes)} on average")
    grouped = "" if cost.group == 1 else f", in groups of {cost.group}"
    say(
        f"  cost         {as_seconds(cost.seconds)} for an example (median "
        f"{as_seconds(cost.median)}, 95 % below {as_seconds(cost.high)}; {cost.n_timed:,} timed"
        f"{grouped}); {as_seconds(cost.first)} for the first"
    )
    say(f"  CPUs         {cost.cpu:.2f} busy while it fetched")
    if cost.gain is None:
        say(f"  two threads  {cost.trouble}")
    else:
        held = "holds the GIL" if cost.gain < 1.3 else "releases the GIL or waits"
        say(f"  two threads  {cost.gain:.2f} times as fast as one: the dataset {held}")
    if not cost.is_repeatable:
        say("  content      differs from call to call (random?): batches are not compared")


def show_result(measured: Measured) -> None:
    """Print the limits, a table of all trials, the best settings and the advice."""
    limits, best = measured.limits, measured.best
    print("\nLimits of this machine")
    print(f"  CPUs         {limits.cpus:g}: {limits.cpu_rate:,.0f} examples/s")
    print(f"  memory       {as_bytes(limits.copy_rate)}/s: {limits.memory_rate:,.0f} examples/s")
    print(
        f"\n  {'iterator':21}{'workers':>8}{'prefetch':>9}{'examples/s':>12}{'of limit':>9}"
        f"{'busy':>6}{'trials':>7}{'first batch':>12}"
    )
    fastest = max(measured.tried, key=lambda trials: trials.rate)
    for trials in measured.tried:
        settings = trials.settings
        line = f"  {settings.name:21}{settings.workers or '-':>8}{settings.prefetch or '-':>9}"
        if trials.rates:
            stats = trials.stats
            busy = "-" if stats is None or not stats.workers else f"{stats.busy:.0%}"
            share = trials.rate / limits.rate(settings.workers)
            line += f"{trials.rate:>12,.0f}{share:>9.0%}{busy:>6}{len(trials.rates):>7}"
            line += f"{as_seconds(trials.first):>12}"
        mark = "best" if trials is best else "fastest" if trials is fastest else ""
        print(line + (f"  <- {mark}" if mark else ""))
        show_text(trials.error, " " * 6)
    print("  of limit: share of this machine's limit; busy: time that workers spend working")
    if fastest is not best:
        print(f"  Best is the simplest setting within {SIMPLER:.0%} of the fastest.")
    if measured.starts:
        workers = next(iter(measured.starts.values())).settings.workers
        plural = "" if workers == 1 else "s"
        print(f"\n  Time to the first batch of MultiprocessIterator with {workers} worker{plural}")
    for method, trials in measured.starts.items():
        print(f"    {method:19}{as_seconds(trials.first) if trials.firsts else '-':>8}")
        show_text(trials.error, " " * 6)
    for note in measured.notes:
        show_text(note, "  ")
    size = measured.measured_batch_size
    print(f"\nBest, with batches of {size}: {best.rate:,.0f} examples/s\n")
    print(f"    {measured.code}\n")
    for sentence in measured.advice:
        show_text(sentence, "- ")


def show_text(text: str, indent: str) -> None:
    """Print a text, if there is one, in lines of at most 98 characters."""
    if text:
        blank = " " * len(indent)
        print(textwrap.fill(text, 98, initial_indent=indent, subsequent_indent=blank))


def as_json(measured: Measured) -> dict[str, Any]:
    limits, best = measured.limits, measured.best
    return {
        "dataset": measured.name,
        "batch_size": measured.batch_size,
        "measured_batch_size": measured.measured_batch_size,
        "step_seconds": measured.step,
        "alone": {**measured.cost._asdict(), "gil": measured.cost.gil},
        "limits": {**limits._asdict(), "memory_rate": limits.memory_rate},
        "runs": [
            {
                **trials.settings._asdict(),
                "iterator": trials.settings.name,
                "examples_per_second": trials.rates,
                "first_batch_seconds": trials.firsts,
                "limit": limits.rate(trials.settings.workers),
                "workers_busy": trials.stats.busy if trials.stats else None,
                "loop_waits": trials.stats.wait_share if trials.stats else None,
                "verdict": trials.stats.verdict if trials.stats else None,
                "error": trials.error,
            }
            for trials in measured.tried
        ],
        "first_batch_seconds": {name: start.firsts for name, start in measured.starts.items()},
        "best": {**best.settings._asdict(), "examples_per_second": best.rate},
        "code": measured.code,
        "advice": measured.advice,
        "notes": measured.notes,
    }

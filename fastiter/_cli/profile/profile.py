"""``python -m fastiter profile``: measures a dataset, and finds the best settings for it."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fastiter
from fastiter._cli.doctor.findings import as_bytes
from fastiter._cli.profile import chart, dataset_cost, loading
from fastiter._cli.profile.hang_report import PATIENCE, Waiting
from fastiter._cli.profile.limits import Limits, advice, limits_of, milliseconds, numbers_of_workers
from fastiter._cli.profile.loading import RAISED
from fastiter._cli.profile.search import PREFETCH, SIMPLER, Plan, Search
from fastiter._cli.profile.timeline import record, seconds_of
from fastiter._cli.profile.trials import Task, Trials
from fastiter._ring.serialization import summary_of
from fastiter._stats.trace import Trace
from fastiter._util.cpus import usable_cpus

EPILOG = """\
MODULE is importable from here, or a path that ends in .py. DATASET is an object in it, or something
that gives one when it is called without arguments. The examples:

  python -m fastiter profile mypackage.data:training_set --batch-size 64
  python -m fastiter profile train.py:make_dataset --budget 60 --workers 2,4,8 --step 0.05

The first batch of every iterator is compared with what the dataset gives by itself. What is printed
as best is the simplest of the settings within 5 % of the fastest. Caches of the operating system
are warm after the first seconds: for files that do not fit into memory, measure longer.
"""

_SEED = 0
_ALONE = 0.15  # of the budget
_EXPECTED = 0.1  # of the budget
_RECORDED = 0.04  # of the budget


class Measured(NamedTuple):
    """All that was found out."""

    name: str
    batch_size: int
    measured_batch_size: int
    converter: str  # as code; empty: none
    step: float
    alone: dataset_cost.DatasetCost
    limits: Limits
    runs: list[Trials]
    starts: dict[str, Trials]  # by start method
    best: Trials
    advice: list[str]
    notes: list[str]
    trace: Trace | None  # of the best settings; None if that failed

    @property
    def code(self) -> str:
        """The best settings as a line of Python."""
        return self.best.settings.code(self.batch_size, self.converter)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `run` takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    methods = multiprocessing.get_all_start_methods()
    add = parser.add_argument
    add("dataset", metavar="MODULE:DATASET", help="where the dataset is")
    add("--batch-size", type=_positive, default=32, metavar="N", help="default: 32")
    add(
        "--budget",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="what all of it may take, about (default: 30)",
    )
    add(
        "--step",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="what a training step takes; the loop sleeps as long after each batch (default: 0)",
    )
    add("--workers", type=_positives, metavar="N,...", help="numbers of workers to try")
    add("--prefetch", type=_positives, metavar="N,...", help="n_prefetch to try, the first with "
        "each number of workers (default: 4,2,8)")  # fmt: skip
    add(
        "--start-methods",
        type=lambda text: [_one_of(method, methods) for method in text.split(",")],
        default=methods,
        metavar="METHOD,...",
        help=f"to try (default: {','.join(methods)})",
    )
    add(
        "--converter",
        metavar="NAME",
        help="'concat' (fastiter.concat_examples), 'none', or MODULE:CALLABLE (default: concat, if "
        "the examples can be joined, else none)",
    )
    add("--padding", type=float, metavar="NUMBER", help="pad examples of varying length with it")
    add(
        "--output",
        type=Path,
        default=Path("fastiter-profile.png"),
        metavar="FILE.png",
        help="the chart (default: fastiter-profile.png)",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write what workers and loop did with the best settings, as iterator.trace() records "
        "it (open it in Perfetto or chrome://tracing)",
    )
    add("--json", action="store_true", help="print what was measured as JSON")


def run(options: argparse.Namespace) -> int:
    """Measure, print and draw; return the exit status."""
    try:
        measured = measure(options, _quiet if options.json else _say)
    except loading.UsageError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__, file=sys.stderr)
        _warn(str(error))
        return 2
    drawn = chart.draw(measured, options.output)
    traced = "" if options.trace is None else _write_trace(measured.trace, options.trace)
    if options.json:
        print(json.dumps({**_as_json(measured), "chart": drawn, "trace": traced}, indent=2))
    else:
        _show_result(measured)
        print(f"\nChart: {drawn}")
        if traced:
            print(f"Trace: {traced}")
    return 0


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Measured:
    """Measure within the budget; what is found on the way is told to ``say``."""
    begin = time.perf_counter()
    dataset = loading.load_dataset(options.dataset)
    order = fastiter.VirtualShuffleOrderSampler(_SEED)(range(len(dataset)), 0)
    found, examples = dataset_cost.measure(
        dataset, order, options.batch_size, _ALONE * options.budget, _warn
    )
    copy_rate = dataset_cost.copy_rate()
    _show_alone(say, options.dataset, dataset, found)
    notes: list[str] = []
    workers = options.workers or numbers_of_workers(found)
    batch_size = _affordable(options, found, max(workers))
    if batch_size < options.batch_size:
        notes.append(
            f"Measured with batches of {batch_size}, since one of {options.batch_size} takes "
            f"{milliseconds(options.batch_size * found.seconds)}; --budget allows for more."
        )
    if batch_size > found.length:  # one would be of several epochs, each with an order of its own
        batch_size = found.length
        notes.append(f"Measured with batches of {batch_size}: the dataset has no more examples.")
    task, converter = _task(options, dataset, order, found, examples, batch_size, notes)
    prefetch = options.prefetch or [PREFETCH, 2, 8]
    search = Search(
        task,
        Plan([] if found.trouble else workers, workers, prefetch, options.start_methods),
        (1 - _RECORDED) * options.budget - (time.perf_counter() - begin),
        batch_size * found.nbytes,
        not found.waits,
        found.seconds,
        math.inf if found.waits else usable_cpus(),
    )
    say(f"\nMeasuring for about {options.budget:.0f} s ...")
    try:
        best = search.search()
    except RuntimeError as error:
        raise loading.UsageError(f"no iterator works with this dataset: {error}") from error
    runs = list(search.runs.values())
    limits = limits_of(found, runs, copy_rate)
    if search.left_out:
        notes.append(f"{len(search.left_out)} settings were left out for want of time (--budget).")
    trace = None
    # Short runs may well take somewhat longer than the budget; slow datasets may not.
    left = max(begin + options.budget - time.perf_counter(), _EXPECTED * options.budget)
    if options.trace is None and seconds_of(task, best) > left:
        notes.append("No timeline: there is no time left to record one (--budget).")
    else:
        try:
            trace = record(task, best.settings, 0.5 * _RECORDED * options.budget)
        except RAISED as error:  # of the dataset's, or for want of memory: the figures are there
            notes.append(f"No timeline: to record one raised {summary_of(error)}")
    return Measured(
        name=options.dataset,
        batch_size=options.batch_size,
        measured_batch_size=batch_size,
        converter=converter,
        step=options.step,
        alone=found,
        limits=limits,
        runs=runs,
        starts=search.starts,
        best=best,
        advice=advice(
            found, limits, runs, best, batch_size, options.step, options.padding is not None
        ),
        notes=notes,
        trace=trace,
    )


def _affordable(options: argparse.Namespace, found: dataset_cost.DatasetCost, workers: int) -> int:
    """A batch size with which some fifteen runs of nine batches fit into the budget."""
    parallel = min(workers, 8 if found.waits else max(1, round(usable_cpus())))
    most = options.budget * parallel / (15 * 9 * found.seconds)
    return int(max(1, min(options.batch_size, max(parallel, most))))


def _task(
    options: argparse.Namespace,
    dataset: Any,
    order: Any,
    found: dataset_cost.DatasetCost,
    examples: list[Any],
    batch_size: int,
    notes: list[str],
) -> tuple[Task, str]:
    """What is measured, and the converter as code."""
    name = options.converter or "concat"
    converter = loading.load_converter(name, options.padding)
    is_checked = batch_size * found.seconds <= _EXPECTED * options.budget
    if is_checked:
        fetch = dataset_cost.Fetcher(dataset, len(dataset))
        with fetch.waiting.told(_warn):
            examples = fetch(dataset_cost.part_of(order, 0, batch_size))
    else:
        notes.append("The content of batches was not checked: that would take too long.")
    expected: Any = examples if is_checked else None
    if converter is not None:
        try:
            converted = convert(name, converter, examples, _warn)
            expected = converted if is_checked else None
        except RAISED as error:
            if options.converter or options.padding is not None:
                raise loading.UsageError(
                    f"the converter {name} raised {summary_of(error)}"
                ) from error
            converter, name = None, "none"
            notes.append(f"Without a converter: concat_examples raised {type(error).__name__}.")
    step = options.step
    task = Task(dataset, batch_size, converter, _SEED, step, expected, found.is_repeatable)
    return task, _converter_code(name, options.padding)


def convert(
    name: str,
    converter: Callable[..., Any],
    examples: list[Any],
    say: Callable[[str], None],
    patience: float = PATIENCE,
) -> Any:
    """What the converter makes of examples; if that takes ``patience`` seconds, say so."""
    waiting = Waiting[int](lambda n: f"the converter {name} has been at {n} examples")
    with waiting.told(say, patience):
        waiting.begin(len(examples))
        try:
            return converter(examples, None)
        finally:
            waiting.end()


def _converter_code(name: str, padding: float | None) -> str:
    if name == "none":
        return ""
    if name != "concat":
        return name.rpartition(":")[2]
    if padding is None:
        return "fastiter.concat_examples"
    return f"functools.partial(fastiter.concat_examples, padding={padding:g})"


# ---- output ------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, flush=True)


def _quiet(text: str) -> None:
    pass


def _warn(text: str) -> None:
    print(f"fastiter profile: {text}", file=sys.stderr, flush=True)


def _show_alone(
    say: Callable[[str], None], name: str, dataset: Any, found: dataset_cost.DatasetCost
) -> None:
    say(f"Dataset {name}: {type(dataset).__name__}, {found.length:,} examples")
    say(f"  example      {found.layout}, {as_bytes(found.nbytes)} on average")
    how = "of them" if found.group == 1 else f"of them, {found.group} at a time"
    say(
        f"  cost         {milliseconds(found.seconds)} each (median {milliseconds(found.median)}, "
        f"95 % below {milliseconds(found.high)}; {found.n_timed:,} {how}); "
        f"the first {milliseconds(found.first)}"
    )
    say(f"  CPUs         {found.cpu:.2f} busy meanwhile")
    if found.gain is None:
        say(f"  two threads  {found.trouble}")
    else:
        held = "holds the GIL" if found.gain < 1.3 else "releases the GIL or waits"
        say(f"  two threads  {found.gain:.2f} times as fast as one: it {held}")
    if not found.is_repeatable:
        say("  content      differs from call to call (random?): its types are checked only")


def _show_result(measured: Measured) -> None:
    limits = measured.limits
    print("\nLimits")
    by_cpus = limits.cpus / limits.cpu_seconds if limits.cpu_seconds else math.inf
    print(f"  CPUs         {limits.cpus:g}: {by_cpus:,.0f} examples/s")
    rate = f"{as_bytes(limits.copy_rate)}/s copied"
    print(f"  memory       {rate}: {limits.memory_rate:,.0f} examples/s")
    size = measured.measured_batch_size
    print(
        f"\n  {'iterator':21}{'workers':>8}{'prefetch':>9}{'examples/s':>12}{'of limit':>9}"
        f"{'busy':>6}{'runs':>5}{'first batch':>12}"
    )
    fastest = max(measured.runs, key=lambda runs: runs.rate)
    for runs in measured.runs:
        settings = runs.settings
        workers, prefetch = settings.workers or "-", settings.prefetch or "-"
        line = f"  {settings.name:21}{workers:>8}{prefetch:>9}"
        if runs.rates:
            share = runs.rate / limits.rate(settings.workers)
            line += f"{runs.rate:>12,.0f}{share:>9.0%}{_busy(runs):>6}{len(runs.rates):>5}"
            line += f"{milliseconds(runs.first):>12}"
        mark = "best" if runs is measured.best else "fastest" if runs is fastest else ""
        print(line + (f"  <- {mark}" if mark else ""))
        _show_error(runs)
    if fastest is not measured.best:
        text = f"Best is the simplest of those within {SIMPLER:.0%} of the fastest."
        print(f"  {text}")
    if measured.starts:
        workers = next(iter(measured.starts.values())).settings.workers
        print(f"\n  first batch of MultiprocessIterator with {workers} workers by start method")
    for method, runs in measured.starts.items():
        print(f"    {method:19}{milliseconds(runs.first) if runs.firsts else '-':>8}")
        _show_error(runs)
    for note in measured.notes:
        print(textwrap.fill(note, 98, initial_indent="  ", subsequent_indent="  "))
    print(f"\nBest, with batches of {size}: {measured.best.rate:,.0f} examples/s\n")
    print(f"    {measured.code}\n")
    for sentence in measured.advice:
        print(textwrap.fill(sentence, 98, initial_indent="- ", subsequent_indent="  "))


def _busy(runs: Trials) -> str:
    """Share of the time that workers had work in hand."""
    return "-" if runs.stats is None or not runs.stats.workers else f"{runs.stats.busy:.0%}"


def _write_trace(trace: Trace | None, path: Path) -> str:
    """Returns where, or why not."""
    if trace is None:
        return "not written, since recording it failed"
    try:
        trace.save(path)
    except OSError as error:
        return f"not written: {error}"
    return str(path)


def _show_error(runs: Trials) -> None:
    if runs.error:
        print(textwrap.fill(runs.error, 96, initial_indent=" " * 6, subsequent_indent=" " * 6))


def _as_json(measured: Measured) -> dict[str, Any]:
    return {
        "dataset": measured.name,
        "batch_size": measured.batch_size,
        "measured_batch_size": measured.measured_batch_size,
        "step_seconds": measured.step,
        "alone": {**measured.alone._asdict(), "gil": measured.alone.gil},
        "limits": {**measured.limits._asdict(), "memory_rate": measured.limits.memory_rate},
        "runs": [
            {
                **runs.settings._asdict(),
                "iterator": runs.settings.name,
                "examples_per_second": runs.rates,
                "first_batch_seconds": runs.firsts,
                "limit": measured.limits.rate(runs.settings.workers),
                "workers_busy": runs.stats.busy if runs.stats else None,
                "loop_waits": runs.stats.wait_share if runs.stats else None,
                "verdict": runs.stats.verdict if runs.stats else None,
                "error": runs.error,
            }
            for runs in measured.runs
        ],
        "first_batch_seconds": {method: runs.firsts for method, runs in measured.starts.items()},
        "best": {**measured.best.settings._asdict(), "examples_per_second": measured.best.rate},
        "code": measured.code,
        "advice": measured.advice,
        "notes": measured.notes,
    }


# ---- options -----------------------------------------------------------------------------------


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer of at least 1")
    return number


def _positives(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to 1,000,000")
    return number


def _one_of(text: str, choices: list[str]) -> str:
    if text not in choices:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}")
    return text

"""``python -m fastiter profile``: measure a dataset and find the best settings for it."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fastiter
from fastiter._cli.options import output_file, positive, positives, seconds
from fastiter._cli.profile import chart, dataset_cost, loading
from fastiter._cli.profile.limits import advice, limits_of, numbers_of_workers
from fastiter._cli.profile.loading import RAISED
from fastiter._cli.profile.report import Measured, as_json, show_cost, show_result
from fastiter._cli.profile.search import PREFETCH, Search
from fastiter._cli.profile.trials import Kind, Subject, record, seconds_to_record
from fastiter._stats.trace import Trace
from fastiter._util.cpus import usable_cpus
from fastiter._util.failures import summary_of
from fastiter._util.units import as_seconds

EPILOG = """\
MODULE is an importable module or the path of a file that ends in .py. DATASET is an object in it,
or a callable that returns a dataset: functions are called with their defaults. MODULE is imported
as a script that is started without arguments. Examples:

  python -m fastiter profile mypackage.data:training_set --batch-size 64
  python -m fastiter profile train.py:loader --step 0.05
  python -m fastiter profile train.py:make_dataset --budget 60 --workers 2,4,8 --step 0.05

The first batch of every iterator is compared with the dataset's own results. "best" marks
the simplest of the settings within 5 % of the fastest. The operating system caches files after the
first seconds: measure longer for files that do not fit into memory.
"""

# Options for a dataset, not for a DataLoader of torch, and their defaults.
_OF_DATASETS: dict[str, Any] = {
    "batch_size": 32,
    "converter": None,
    "padding": None,
    "output": Path("fastiter-profile.png"),
    "trace": None,
    "json": False,
}
_SEED = 0
_DATASET_ALONE = 0.15  # of the budget
_EXPECTED = 0.1  # of the budget
_RECORDED = 0.04  # of the budget


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `run` takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    methods = multiprocessing.get_all_start_methods()

    def add(name: str, metavar: str, help: str, **options: Any) -> None:
        parser.add_argument(name, metavar=metavar, help=help, **options)

    def start_methods(text: str) -> list[str]:
        for method in text.split(","):
            if method not in methods:
                expected = ", ".join(methods)
                raise argparse.ArgumentTypeError(f"expected some of {expected}, not {method!r}")
        return text.split(",")

    add("dataset", "MODULE:DATASET", "the dataset, or a DataLoader of torch")
    add("--batch-size", "N", "default: 32", type=positive)
    add("--budget", "SECONDS", "total time, about (default: 30)", type=seconds, default=30.0)
    add(
        "--step",
        "SECONDS",
        "how long a training step takes; the loop sleeps as long after each batch (default: 0)",
        type=seconds,
        default=0.0,
    )
    add("--workers", "N,...", "numbers of workers to try", type=positives)
    add(
        "--prefetch",
        "N,...",
        "n_prefetch to try, the first one with each number of workers (default: 4,2,8); of a "
        "DataLoader prefetch_factor (default: its own,2,4,8)",
        type=positives,
    )
    add(
        "--start-methods",
        "METHOD,...",
        f"start methods to try (default: {','.join(methods)})",
        type=start_methods,
        default=methods,
    )
    add(
        "--converter",
        "NAME",
        "'concat' (fastiter.concat_examples), 'none', or MODULE:CALLABLE (default: concat, if the "
        "examples can be joined, else none)",
    )
    add("--padding", "NUMBER", "pad examples of varying length with it", type=float)
    add("--output", "FILE.png", "the chart (default: fastiter-profile.png)", type=Path)
    add(
        "--trace",
        "FILE",
        "write a trace of workers and loop with the best settings, as iterator.trace() records it "
        "(open it in Perfetto or chrome://tracing)",
        type=output_file,
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.set_defaults(**_OF_DATASETS)


def run(options: argparse.Namespace) -> int:
    """Measure, print and draw; return the exit status."""
    arguments = sys.argv
    # Of the user's program, which may parse them, also where workers import it.
    sys.argv = [options.dataset.rpartition(":")[0]]
    try:
        return _run(options)
    finally:
        sys.argv = arguments


def _run(options: argparse.Namespace) -> int:
    say = (lambda text: None) if options.json else partial(print, flush=True)
    try:
        dataset = loading.load_dataset(options.dataset)
        if loading.is_torch_loader(dataset):
            _measure_loader(options, dataset)
            return 0
        measured = measure(options, dataset, say)
    except loading.UsageError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__, file=sys.stderr)
        _warn(str(error))
        return 2
    drawn = chart.draw(measured, options.output)
    traced = "" if options.trace is None else _write_trace(measured.trace, options.trace)
    if options.json:
        print(json.dumps({**as_json(measured), "chart": drawn, "trace": traced}, indent=2))
    else:
        show_result(measured)
        print(f"\nChart: {drawn}")
        if traced:
            print(f"Trace: {traced}")
    return 0


def _measure_loader(options: argparse.Namespace, loader: Any) -> None:
    given = [name for name, value in _OF_DATASETS.items() if getattr(options, name) != value]
    if given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise loading.UsageError(f"{names}: for a dataset, not for a DataLoader")
    from fastiter._cli.profile import loader as of_loaders  # it imports torch

    of_loaders.run(options.dataset, loader, options)


def measure(options: argparse.Namespace, dataset: Any, say: Callable[[str], None]) -> Measured:
    """Measure within the budget; ``say`` gets what is found on the way."""
    begin = time.perf_counter()
    budget = options.budget
    order = fastiter.VirtualShuffleOrderSampler(_SEED)(range(len(dataset)), 0)
    cost, examples = dataset_cost.measure(
        dataset, order, options.batch_size, _DATASET_ALONE * budget, _warn
    )
    copy_rate = dataset_cost.copy_rate()
    show_cost(say, options.dataset, dataset, cost)
    notes: list[str] = []
    workers = options.workers or numbers_of_workers(cost)
    batch_size = _affordable(options, cost, max(workers))
    if batch_size < options.batch_size:
        notes.append(
            f"Measured with batches of {batch_size}, since a batch of {options.batch_size} takes "
            f"{as_seconds(options.batch_size * cost.seconds)}; a larger --budget allows more."
        )
    if batch_size > cost.length:  # it would be of several epochs, each with an order of its own
        batch_size = cost.length
        notes.append(f"Measured with batches of {batch_size}: the dataset has no more examples.")
    subject, converter = _task(options, dataset, order, cost, examples, batch_size, notes)
    threads = [] if cost.trouble else workers
    kinds: list[tuple[Kind, list[int]]] = [("threads", threads), ("processes", workers)]
    if not cost.waits:  # a dataset that computes takes the GIL, and time, from the training loop
        kinds.reverse()
    search = Search(
        subject,
        dict(kinds),
        options.prefetch or [PREFETCH, 2, 8],
        options.start_methods,
        (1 - _RECORDED) * budget - (time.perf_counter() - begin),
        batch_size * cost.nbytes,
        example_seconds=cost.seconds,
        most_parallel=math.inf if cost.waits else usable_cpus(),
    )
    say(f"\nMeasuring for about {budget:.0f} s ...")
    try:
        best = search.search()
    except RuntimeError as error:
        raise loading.UsageError(f"no iterator works with this dataset: {error}") from error
    tried = list(search.tried.values())
    limits = limits_of(cost, tried, copy_rate)
    if search.left_out:
        count = len(search.left_out)
        notes.append(f"{count} settings were not tried for lack of time (--budget).")
    trace = None
    # Short trials may well take somewhat longer than the budget; slow datasets may not.
    left = max(begin + budget - time.perf_counter(), _EXPECTED * budget)
    if options.trace is None and seconds_to_record(subject, best) > left:
        notes.append("No timeline: there is no time left to record one (--budget).")
    else:
        try:
            trace = record(subject, best.settings, 0.5 * _RECORDED * budget)
        except RAISED as error:  # of the dataset, or for lack of memory: the figures stay
            notes.append(f"No timeline: recording it raised {summary_of(error)}")
    is_padded = options.padding is not None
    return Measured(
        name=options.dataset,
        batch_size=options.batch_size,
        measured_batch_size=batch_size,
        converter=converter,
        step=options.step,
        cost=cost,
        limits=limits,
        tried=tried,
        starts=search.starts,
        best=best,
        advice=advice(cost, limits, tried, best, batch_size, options.step, is_padded),
        notes=notes,
        trace=trace,
    )


def _affordable(options: argparse.Namespace, cost: dataset_cost.DatasetCost, workers: int) -> int:
    """A batch size with which some fifteen trials of nine batches fit into the budget."""
    parallel = min(workers, 8 if cost.waits else max(1, round(usable_cpus())))
    most = options.budget * parallel / (15 * 9 * cost.seconds)
    return int(max(1, min(options.batch_size, max(parallel, most))))


def _task(
    options: argparse.Namespace,
    dataset: Any,
    order: Any,
    cost: dataset_cost.DatasetCost,
    examples: list[Any],
    batch_size: int,
    notes: list[str],
) -> tuple[Subject, str]:
    """The measured task, and the converter as code."""
    name = options.converter or "concat"
    converter, code = loading.load_converter(name, options.padding)
    is_checked = batch_size * cost.seconds <= _EXPECTED * options.budget
    if is_checked:
        with dataset_cost.Fetcher(dataset, _warn).watched() as fetch:
            examples = fetch(dataset_cost.part_of(order, 0, batch_size))
    else:
        notes.append("The content of batches was not checked: that would take too long.")
    converted: Any = examples
    if converter is not None:
        try:
            converted = converter(examples, None)
        except RAISED as error:
            if options.converter or options.padding is not None:
                raise loading.UsageError(
                    f"the converter {name} raised {summary_of(error)}"
                ) from error
            converter, code = None, ""
            notes.append(f"Without a converter: concat_examples raised {type(error).__name__}.")
    expected = converted if is_checked and cost.is_repeatable else None
    subject = Subject(dataset, batch_size, converter, _SEED, options.step, expected)
    return subject, code


def _write_trace(trace: Trace | None, path: Path) -> str:
    """Save the trace; return where, or why not."""
    if trace is None:
        return "not written, since recording it failed"
    try:
        trace.save(path)
    except OSError as error:
        return f"not written: {error}"
    return str(path)


def _warn(text: str) -> None:
    print(f"fastiter profile: {text}", file=sys.stderr, flush=True)

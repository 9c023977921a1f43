"""Who holds up whom, what would help, and how that is said."""

from __future__ import annotations

import math
import sys
import textwrap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fastiter._stats.stats import IteratorStats, Verdict

# Below this share of waiting the loop gains too little from a faster loader to be worth a change.
_LITTLE_WAITING = 0.1
_BUSY = 0.7  # workers that are busier than this have no time left for bursts
_VERY_BUSY = 0.85
_FULL = 0.85  # of the CPUs
_STOOD_IN_LINE = 0.2  # of the workers' busy time, for a CPU
_MOSTLY = 0.5  # of it; workers that wait for something else, more of them could do so
_LEAST_SECONDS = 0.05
_MOST_WORKERS = 64
_MOST_PREFETCH = 32
_COLUMNS = 100  # of the summary


class Diagnosis(NamedTuple):
    """What the figures say.

    Attributes
    ----------
    verdict : str
    advice : str
    change : dict
        Arguments to set, by name.
    """

    verdict: Verdict
    advice: str
    change: dict[str, int]


def diagnose(stats: IteratorStats) -> Diagnosis:
    """Say from the counters of some time who held up whom in it."""
    steady = stats.next_seconds + stats.consumer_seconds
    # Batches fetched ahead of the time say nothing about it.
    least = 2 * (stats.n_prefetch + 2) if stats.n_workers else 3
    if stats.batches < least or steady < _LEAST_SECONDS:
        return Diagnosis(
            "unknown",
            f"not enough data yet: {stats.batches} batches in {steady:.2g} s after the start; "
            f"it takes {least} batches and {_LEAST_SECONDS} s at least",
            {},
        )
    if stats.wait_share < _LITTLE_WAITING:
        return _not_waiting(stats, steady)
    if stats.workers_are == "none":
        return _serial(stats, steady)
    if stats.busy < _BUSY:
        return _bursts(stats)
    if stats.workers_are == "processes":
        return _processes(stats, steady)
    return _threads(stats, steady)


def _not_waiting(stats: IteratorStats, steady: float) -> Diagnosis:
    own = (stats.next_seconds - stats.wait_seconds) / steady
    if stats.n_workers and not stats.has_converter and own > 0.3:
        return Diagnosis(
            "consumer-bound",
            f"the loop does not wait, but next() itself takes {own:.0%} of its time, for making "
            "example objects: converter=fastiter.concat_examples hands over arrays without",
            {},
        )
    if stats.n_workers and stats.busy >= _VERY_BUSY:
        return Diagnosis(
            "balanced",
            f"the loop waits {stats.wait_share:.0%} of its time and {_all_of(stats, 'worker')} "
            f"{stats.busy:.0%} busy: to go faster, both have to",
            {},
        )
    advice = f"the loop's own work is the limit: it waits {stats.wait_share:.0%} of its time"
    enough = math.ceil(1.25 * stats.busy * stats.n_workers)
    if stats.n_workers and enough < stats.n_workers:
        advice += (
            f", and the workers are {1 - stats.busy:.0%} idle; {max(enough, 1)} of them would do"
        )
    return Diagnosis("consumer-bound", advice, {})


def _serial(stats: IteratorStats, steady: float) -> Diagnosis:
    # A dataset that waits itself, for files, leaves CPUs to more workers than there are CPUs.
    each = min(stats.cpu_seconds / stats.seconds, 1.0)
    room = stats.cpus / max(each, 1e-3)
    workers = _needed(stats.wait_seconds, steady - stats.wait_seconds, room)
    return Diagnosis(
        "loader-bound",
        f"fetching takes {stats.wait_share:.0%} of the loop's time, in the loop's own thread: "
        f"MultiprocessIterator with n_processes={workers} would do it meanwhile",
        {"n_processes": workers},
    )


def _bursts(stats: IteratorStats) -> Diagnosis:
    found = (
        f"the loop waits {stats.wait_share:.0%} of its time although the workers are "
        f"{1 - stats.busy:.0%} idle: some batches take much longer than others"
    )
    if stats.n_prefetch >= _MOST_PREFETCH:
        return Diagnosis("loader-bound", f"{found}; smaller batches would even that out", {})
    ahead = min(max(2 * stats.n_prefetch, 4), _MOST_PREFETCH)
    return Diagnosis(
        "loader-bound", f"{found}; set n_prefetch={ahead} to have more ready", {"n_prefetch": ahead}
    )


def _processes(stats: IteratorStats, steady: float) -> Diagnosis:
    busy = sum(worker.busy_seconds for worker in stats.workers[: stats.n_workers])
    cpu = sum(worker.cpu_seconds for worker in stats.workers[: stats.n_workers])
    in_line = sum(worker.cpu_wait_seconds for worker in stats.workers[: stats.n_workers])
    used = (cpu + stats.cpu_seconds) / stats.seconds
    found = f"the loop waits {stats.wait_share:.0%} of its time for the dataset"
    if _are_full(stats, used, busy, cpu, in_line):
        return _full(stats, found, used, "workers")
    # What CPUs there are for as many workers: they have those that nobody else uses.
    each = cpu / max(busy, 1e-9)
    room = (stats.cpus - stats.cpu_seconds / stats.seconds) / max(each, 1e-3)
    workers = _needed(busy, steady - stats.wait_seconds, max(room, 1.0))
    if workers <= stats.n_workers:
        workers = stats.n_workers + 1
    return Diagnosis(
        "loader-bound",
        f"{found}, and {_all_of(stats, 'worker')} {stats.busy:.0%} busy: set n_processes={workers}",
        {"n_processes": workers},
    )


def _are_full(stats: IteratorStats, used: float, busy: float, cpu: float, in_line: float) -> bool:
    if used >= _FULL * stats.cpus:
        return True
    return in_line >= _STOOD_IN_LINE * busy and in_line + cpu >= _MOSTLY * busy


def _full(stats: IteratorStats, found: str, used: float, workers: str) -> Diagnosis:
    whose = f"{used:.1f} of {stats.cpus:g} used"
    if used < _FULL * stats.cpus:
        whose += " here, the rest by other programs"
    return Diagnosis(
        "loader-bound",
        f"{found}, and the CPUs are full ({whose}): more {workers} will not help; a dataset that "
        "does less for each example, or more CPUs, will",
        {},
    )


def _threads(stats: IteratorStats, steady: float) -> Diagnosis:
    busy = sum(worker.busy_seconds for worker in stats.workers[: stats.n_workers])
    cpu = sum(worker.cpu_seconds for worker in stats.workers[: stats.n_workers])
    in_line = sum(worker.cpu_wait_seconds for worker in stats.workers[: stats.n_workers])
    used = stats.cpu_seconds / stats.seconds
    found = f"the loop waits {stats.wait_share:.0%} of its time for the dataset"
    locked = getattr(sys, "_is_gil_enabled", lambda: True)() and 0.8 <= used <= 1.25
    if stats.n_workers > 1 and locked and cpu < 0.75 * busy:
        workers = _needed(cpu, steady - stats.wait_seconds, stats.cpus)
        return Diagnosis(
            "loader-bound",
            f"{found}, and the threads wait for one another, since only one at a time can run "
            f"Python code: use MultiprocessIterator with n_processes={workers}",
            {"n_processes": workers},
        )
    if _are_full(stats, used, busy, cpu, in_line):
        return _full(stats, found, used, "threads")
    each = cpu / max(busy, 1e-9)
    threads = _needed(busy, steady - stats.wait_seconds, stats.cpus / max(each, 1e-3))
    threads = max(threads, stats.n_workers + 1)
    hint = ""
    if each > 0.8:
        hint = ", if the dataset releases the GIL while it works; else use MultiprocessIterator"
    return Diagnosis(
        "loader-bound",
        f"{found}, and {_all_of(stats, 'thread')} {stats.busy:.0%} busy: set "
        f"n_threads={threads}{hint}",
        {"n_threads": threads},
    )


def _all_of(stats: IteratorStats, one: str) -> str:
    return f"the {one} is" if stats.n_workers == 1 else f"the {stats.n_workers} {one}s are"


def _needed(work: float, time: float, room: float) -> int:
    """Workers that get so many seconds of work done in that time, with a tenth to spare, where no
    more than `room` get on."""
    wanted = 1.1 * work / max(time, 1e-9)
    return max(1, min(math.ceil(wanted), math.floor(room + 0.5), _MOST_WORKERS))


# ---- for people ----------------------------------------------------------------------------------


def summary(stats: IteratorStats) -> str:
    """One line and a table."""
    diagnosis = diagnose(stats)
    head = (
        f"{stats.iterator}: {diagnosis.verdict}, {_number(stats.examples_per_second)} examples/s, "
        f"waiting {stats.wait_share:.0%} of the time{_in_short(stats, diagnosis.change)}"
    )
    rows = [
        ("advice", diagnosis.advice),
        ("delivered", _delivered(stats)),
        ("time", _times(stats)),
    ]
    if stats.n_workers:
        rows.append(("ready", _ready(stats)))
        rows.append(("out of the ordinary", _odd(stats)))
    rows += [("changed", change) for change in stats.changes]
    width = max(len(name) for name, _ in rows)
    lines = [head]
    for name, text in rows:
        first, *more = textwrap.wrap(text, _COLUMNS - width - 4, break_long_words=False)
        lines.append(f"  {name:<{width}}  {first}")
        lines += [" " * (width + 4) + line for line in more]
    if stats.workers:
        lines += _worker_table(stats)
    return "\n".join(lines)


def _in_short(stats: IteratorStats, change: dict[str, int]) -> str:
    """What to change, for the end of the first line."""
    if not change:
        return ""
    settings = ", ".join(f"{name}={value}" for name, value in change.items())
    other = "n_processes" in change and stats.workers_are != "processes"
    return f": use MultiprocessIterator with {settings}" if other else f": set {settings}"


def _delivered(stats: IteratorStats) -> str:
    text = f"{stats.batches:,} batches, {stats.examples:,} examples in {stats.seconds:.2f} s"
    if stats.bytes_written:
        text += f", {_size(stats.bytes_written)} written"
    return text


def _times(stats: IteratorStats) -> str:
    own = stats.next_seconds - stats.wait_seconds
    parts = [
        f"{stats.start_seconds:.2f} s start" if stats.start_seconds else "",
        f"{stats.wait_seconds:.2f} s {'waiting' if stats.n_workers else 'fetching'}",
        f"{own:.2f} s in next() besides" if stats.n_workers else "",
        f"{stats.consumer_seconds:.2f} s in the loop",
    ]
    return ", ".join(part for part in parts if part)


def _ready(stats: IteratorStats) -> str:
    return (
        f"{stats.mean_ready:.1f} batches when next() is called, {stats.ready} now; "
        f"n_prefetch={stats.n_prefetch}" + (f", {stats.slots} slots" if stats.slots else "")
    )


def _odd(stats: IteratorStats) -> str:
    counts = [
        (stats.errors, "errors"),
        (stats.skipped, "skipped"),
        (stats.spills, "spills"),
        (stats.copied_out, "copied out"),
        (stats.retired, "slots lost to forks"),
        (stats.deaths, "deaths"),
        (stats.replacements, "planned replacements"),
    ]
    return ", ".join(f"{count:,} {name}" for count, name in counts if count) or "nothing"


def _worker_table(stats: IteratorStats) -> list[str]:
    lines = ["  worker     pid       rows   busy   idle  fetch  write finish"]
    for worker in stats.workers:
        shares = (worker.busy, worker.idle, worker.fetch, worker.write, worker.finish)
        lines.append(
            f"  {worker.number:>6} {worker.pid or '-':>7} {worker.rows:>10,} "
            + " ".join(f"{share:>6.0%}" for share in shares)
        )
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"

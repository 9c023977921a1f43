"""Bottleneck diagnosis and the advice shown to users."""

from __future__ import annotations

import math
import sys
import textwrap
from typing import Any, NamedTuple

from fastiter._stats.stats import IteratorCounts, Verdict
from fastiter._util.units import as_bytes

# Below this share of waiting a faster loader would gain the loop too little to be worth a change.
_LITTLE_WAITING = 0.1
_BUSY = 0.7  # workers that are busier than this have no time left for bursts
VERY_BUSY = 0.85
_FULL = 0.85  # of the CPUs
_WAITED_FOR_CPU = 0.2  # of the workers' busy time
_MOSTLY = 0.5  # of it; workers that wait for something else leave CPUs to more workers
_LEAST_SECONDS = 0.05
MOST_WORKERS = 64
_MOST_PREFETCH = 32
_COLUMNS = 100  # of the summary
#: `IteratorStats.iterator` of `fastiter.torch.DataLoader`, whose arguments are torch's.
TORCHS = "DataLoader"

_WAITS = "the loop waits {stats.wait_share:.0%} of its time"
_IDLE = f"{_WAITS} although the workers are {{idle:.0%}} idle: "
_UNEVEN = f"{_IDLE}some batches take much longer than others; "
_FEW_SHARDS = (
    f"{_WAITS} for the dataset, of which workers read {{stats.interleave}} of {{stats.n_shards}} "
    "shards at a time: "
)
_INTERLEAVE = (
    f"{_FEW_SHARDS}pass interleave={{wanted}} to the StreamDataset, which changes its order"
)
_ADVICE = {
    "too early": "not enough data yet: {stats.batches} batches in {steady:.2g} s after the start; "
    f"at least {{least}} batches and {_LEAST_SECONDS} s are needed",
    "next() itself": "the loop does not wait, but next() itself takes {own:.0%} of its time to "
    "make example objects: converter=fastiter.concat_examples returns arrays instead",
    "both busy": f"{_WAITS} and {{workers}} {{stats.busy:.0%}} busy: make both faster",
    "loop": f"the loop's own work is the limit: {_WAITS.replace('the loop', 'it')}",
    "loop, idle workers": f"the loop's own work is the limit: {_WAITS.replace('the loop', 'it')}, "
    "and the workers are {idle:.0%} idle; {enough} of them would be enough",
    "no workers": "fetching takes {stats.wait_share:.0%} of the loop's time, in the loop's own "
    "thread: {setting} would fetch during the step",
    "in the caller": "fetching takes {stats.wait_share:.0%} of the loop's time: rows are only "
    "gathered, which the loop's own thread does faster than workers",
    "uneven batches": _UNEVEN + "set {setting} to have more ready",
    "uneven batches, prefetched": _UNEVEN + "smaller batches would take more even times",
    "uneven workers": f"{_IDLE}worker {{most.number}} had {{share:.0%}} of the examples; a dataset "
    "that divides them evenly among the {stats.n_workers} workers keeps all of them busy",
    "few shards": _INTERLEAVE,
    "few shards, few workers": _INTERLEAVE + ", and set {setting}",
    "all shards": _FEW_SHARDS + "more shards, of fewer examples, would occupy more workers",
    "network": f"{_WAITS} although the {{n}} workers on the cluster are {{idle:.0%}} idle: the "
    "network, or copying, is the limit ({rate}/s came), or rows take uneven times: let examples be "
    "smaller{hint}",
    "few remote workers": f"{_WAITS} for the dataset, and the {{n}} workers on the cluster are "
    "{stats.busy:.0%} busy: set {setting}",
    "GIL": f"{_WAITS} for the dataset, and the threads wait for one another, since only one at a "
    "time can run Python code: use MultiprocessIterator with n_processes={n_processes}",
    "CPUs full": f"{_WAITS} for the dataset, and the CPUs are full ({{used:.1f}} of "
    "{stats.cpus:g} used{others}): more workers will not help; a dataset that does less for each "
    "example, or more CPUs, will",
    "few workers": f"{_WAITS} for the dataset, and {{workers}} {{stats.busy:.0%}} busy: set "
    "{setting}{hint}",
}


class Diagnosis(NamedTuple):
    """The limit of the throughput, and the settings to change."""

    verdict: Verdict
    advice: str
    change: dict[str, int]  # arguments of the iterator to set


def diagnose(stats: IteratorCounts) -> Diagnosis:
    """Find out whether the loop waited for batches, or the workers for the loop."""
    steady = stats.next_seconds + stats.consumer_seconds
    # Batches that were prefetched before that time say nothing about it.
    least = 2 * (stats.n_prefetch + 2) if stats.n_workers else 3
    if stats.batches < least or steady < _LEAST_SECONDS:
        return _diagnosis(stats, "unknown", "too early", steady=steady, least=least)
    if stats.wait_share < _LITTLE_WAITING:
        return _not_waiting(stats, steady)
    if stats.workers_are == "none":
        # A dataset that waits itself, for files, leaves CPUs to more workers than there are CPUs.
        each = min(stats.cpu_seconds / stats.seconds, 1.0)
        workers = _needed(stats.wait_seconds, steady - stats.wait_seconds, stats.cpus, each)
        workers = min(workers, stats.interleave or workers)
        return _diagnosis(stats, "loader-bound", "no workers", {"n_processes": workers})
    if stats.nodes:
        return _on_cluster(stats)
    if 2 * stats.gathered_here > stats.batches:
        return _diagnosis(stats, "loader-bound", "in the caller")
    if stats.busy < _BUSY:
        if stats.interleave and stats.busy * stats.n_workers >= _BUSY * stats.interleave:
            return _few_shards(stats, {})
        most = max(stats.workers, key=lambda worker: worker.rows)
        rows = sum(worker.rows for worker in stats.workers)
        # Rows that take long make a worker busy, too, but with fewer rows than others have.
        if most.busy >= _BUSY and rows < _BUSY * stats.n_workers * most.rows:
            share = most.rows / rows
            return _diagnosis(stats, "loader-bound", "uneven workers", most=most, share=share)
        if stats.n_prefetch >= _MOST_PREFETCH:
            return _diagnosis(stats, "loader-bound", "uneven batches, prefetched")
        return _diagnosis(stats, "loader-bound", "uneven batches", _more_prefetch(stats))
    return _workers_busy(stats, steady)


def _diagnosis(
    stats: IteratorCounts,
    verdict: Verdict,
    advice: str,
    change: dict[str, int] | None = None,
    **facts: Any,
) -> Diagnosis:
    """The diagnosis with a text of ``_ADVICE``."""
    change = change or {}
    if is_torchs := stats.iterator == TORCHS:
        change = dict(_torchs(stats, name, value) for name, value in change.items())
    setting = ", ".join(f"{name}={value}" for name, value in change.items())
    if advice == "no workers" and not is_torchs:
        setting = f"MultiprocessIterator with {setting}"
    one = "thread" if stats.workers_are == "threads" else "worker"
    workers = f"the {one} is" if stats.n_workers == 1 else f"the {stats.n_workers} {one}s are"
    facts.update(change, stats=stats, setting=setting, workers=workers, idle=1 - stats.busy)
    return Diagnosis(verdict, _ADVICE[advice].format(**facts), change)


def _torchs(stats: IteratorCounts, name: str, value: int) -> tuple[str, int]:
    """A setting by torch's name."""
    if name == "n_prefetch":
        return "prefetch_factor", math.ceil(value / stats.n_workers)
    return "num_workers", value


def _not_waiting(stats: IteratorCounts, steady: float) -> Diagnosis:
    own = (stats.next_seconds - stats.wait_seconds) / steady
    if stats.n_workers and not stats.has_converter and own > 0.3:
        return _diagnosis(stats, "consumer-bound", "next() itself", own=own)
    if stats.n_workers and stats.busy >= VERY_BUSY:
        return _diagnosis(stats, "balanced", "both busy")
    enough = max(1, math.ceil(1.25 * stats.busy * stats.n_workers))
    if enough < stats.n_workers:
        return _diagnosis(stats, "consumer-bound", "loop, idle workers", enough=enough)
    return _diagnosis(stats, "consumer-bound", "loop")


def _on_cluster(stats: IteratorCounts) -> Diagnosis:
    n = sum(node.workers for node in stats.nodes)
    if stats.busy >= _BUSY:
        change = {"n_workers": n + max(1, n // 2)}
        return _diagnosis(stats, "loader-bound", "few remote workers", change, n=n)
    rate = as_bytes(int(sum(node.bytes for node in stats.nodes) / stats.seconds))
    change = _more_prefetch(stats)
    hint = "".join(f", or set {name}={value}" for name, value in change.items())
    return _diagnosis(stats, "loader-bound", "network", change, n=n, rate=rate, hint=hint)


def _few_shards(stats: IteratorCounts, change: dict[str, int]) -> Diagnosis:
    """Workers beyond the shards that are read at a time have nothing to do."""
    wanted = min(max([stats.n_workers, *change.values()]), stats.n_shards)
    change = {name: wanted for name in change if wanted > stats.n_workers}
    advice = "few shards, few workers" if change else "few shards"
    if wanted <= stats.interleave:
        advice, change = "all shards", {}
    # The settings would not help without the other order.
    return _diagnosis(stats, "loader-bound", advice, change, wanted=wanted)._replace(change={})


def _more_prefetch(stats: IteratorCounts) -> dict[str, int]:
    wanted = min(max(2 * stats.n_prefetch, 4), _MOST_PREFETCH)
    return {"n_prefetch": wanted} if wanted > stats.n_prefetch else {}


def _workers_busy(stats: IteratorCounts, steady: float) -> Diagnosis:
    active = stats.workers[: stats.n_workers]
    busy = sum(worker.busy_seconds for worker in active)
    cpu = sum(worker.cpu_seconds for worker in active)
    waited_for_cpu = sum(worker.cpu_wait_seconds for worker in active)
    are_threads = stats.workers_are == "threads"
    own = stats.cpu_seconds / stats.seconds  # CPUs that this process uses, its threads included
    used = own if are_threads else own + cpu / stats.seconds
    loop = steady - stats.wait_seconds
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    # If threads wait for the GIL, they use one CPU, and each of them only part of it.
    is_one_at_a_time = has_gil and 0.8 <= used <= 1.25 and cpu < 0.75 * busy
    if are_threads and stats.n_workers > 1 and is_one_at_a_time:
        workers = _needed(cpu, loop, stats.cpus, 1.0)
        return _diagnosis(stats, "loader-bound", "GIL", {"n_processes": workers})
    are_full = used >= _FULL * stats.cpus
    if are_full or (
        waited_for_cpu >= _WAITED_FOR_CPU * busy and waited_for_cpu + cpu >= _MOSTLY * busy
    ):
        others = "" if are_full else " here, the rest by other programs"
        return _diagnosis(stats, "loader-bound", "CPUs full", used=used, others=others)
    each = (cpu + waited_for_cpu) / max(busy, 1e-9)
    room = stats.cpus if are_threads else stats.cpus - own
    workers = max(_needed(busy, loop, room, each), stats.n_workers + 1)
    change = {"n_threads" if are_threads else "n_processes": workers}
    if stats.interleave and workers > stats.interleave:
        return _few_shards(stats, change)
    hint = ""
    if are_threads and each > 0.8:
        hint = ", if the dataset releases the GIL while it works; else use MultiprocessIterator"
    return _diagnosis(stats, "loader-bound", "few workers", change, hint=hint)


def _needed(work: float, seconds: float, cpus: float, each: float) -> int:
    """Workers that do ``work`` seconds of work in ``seconds``, with a tenth to spare; no more than
    ``cpus`` have room for if a worker keeps ``each`` of a CPU busy."""
    wanted = 1.1 * work / max(seconds, 1e-9)
    room = cpus / max(each, 1e-3)
    return max(1, min(math.ceil(wanted), math.floor(room + 0.5), MOST_WORKERS))


# ---- summary -------------------------------------------------------------------------------------


def summary(stats: IteratorCounts) -> str:
    """One line and a table."""
    diagnosis = diagnose(stats)
    rate = stats.examples_per_second
    head = (
        f"{stats.iterator}: {diagnosis.verdict}, "
        f"{f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} examples/s, "
        f"waiting {stats.wait_share:.0%} of the time"
    )
    if diagnosis.change:
        settings = ", ".join(f"{name}={value}" for name, value in diagnosis.change.items())
        is_other = "n_processes" in diagnosis.change and stats.workers_are != "processes"
        head += f": use MultiprocessIterator with {settings}" if is_other else f": set {settings}"
    delivered = f"{stats.batches:,} batches, {stats.examples:,} examples in {stats.seconds:.2f} s"
    if stats.bytes_written:
        delivered += f", {as_bytes(stats.bytes_written)} written"
    rows = [("advice", diagnosis.advice), ("delivered", delivered), ("time", _times(stats))]
    if stats.n_workers:
        slots = f", {stats.slots} slots" if stats.slots else ""
        ready = f"{stats.mean_ready:.1f} batches when next() is called, {stats.ready} now"
        rows.append(("ready", f"{ready}; n_prefetch={stats.n_prefetch}{slots}"))
        rows.append(("events", _events(stats)))
    for node in stats.nodes:
        came = f"{node.workers} workers, {node.rows:,} examples, {as_bytes(node.bytes)} came"
        rows.append(("node", f"{node.node} ({node.address}): {came}"))
    if stats.gathered_here:
        rows.append(("gathered", f"{stats.gathered_here:,} batches by the caller"))
    rows += [("changed", change) for change in stats.changes]
    lines = [head]
    wrapper = textwrap.TextWrapper(_COLUMNS, subsequent_indent=" " * 13, break_long_words=False)
    for name, text in rows:
        lines += wrapper.wrap(f"  {name:<9}  {text}")
    if stats.workers:
        lines.append("  worker     pid       rows   busy   idle  fetch  write finish")
    for worker in stats.workers:
        shares = (worker.busy, worker.idle, worker.fetch, worker.write, worker.finish)
        lines.append(
            f"  {worker.number:>6} {worker.pid or '-':>7} {worker.rows:>10,} "
            + " ".join(f"{share:>6.0%}" for share in shares)
        )
    return "\n".join(lines)


def _times(stats: IteratorCounts) -> str:
    own = stats.next_seconds - stats.wait_seconds
    parts = [
        f"{stats.start_seconds:.2f} s start" if stats.start_seconds else "",
        f"{stats.wait_seconds:.2f} s {'waiting' if stats.n_workers else 'fetching'}",
        f"{own:.2f} s of other work in next()" if stats.n_workers else "",
        f"{stats.consumer_seconds:.2f} s in the loop",
    ]
    return ", ".join(filter(None, parts))


def _events(stats: IteratorCounts) -> str:
    """Rare events, most of which cost time."""
    counts = {
        "errors": stats.errors,
        "skipped": stats.skipped,
        "spills": stats.spills,
        "copied out": stats.copied_out,
        "slots lost to forks": stats.retired,
        "deaths": stats.deaths,
        "planned replacements": stats.replacements,
    }
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"

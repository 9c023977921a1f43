"""The limits of the machine, and the advice that follows from all trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastiter._cli.profile.dataset_cost import DatasetCost
from fastiter._cli.profile.trials import ENOUGH_GAIN, Kind, Trials
from fastiter._stats.bottleneck import MOST_WORKERS
from fastiter._util.cpus import usable_cpus
from fastiter._util.units import as_seconds

_TINY = 10e-6  # seconds: less than what surrounds the call of an example costs


class Limits(NamedTuple):
    """Bounds of the rate, from the work that every loader has to do."""

    cpus: float  # that this process may use
    seconds: float  # of one worker for an example
    cpu_seconds: float  # of a CPU for an example
    copy_rate: float  # bytes a second
    nbytes: float  # of an example

    def rate(self, workers: int) -> float:
        """Examples a second that ``workers`` can deliver at most."""
        return min(max(1, workers) / self.seconds, self.cpu_rate, self.memory_rate)

    @property
    def cpu_rate(self) -> float:
        """Examples a second that all CPUs can compute."""
        return self.cpus / self.cpu_seconds if self.cpu_seconds else math.inf

    @property
    def memory_rate(self) -> float:
        """Examples a second whose bytes can be copied once."""
        return self.copy_rate / self.nbytes if self.nbytes else math.inf


def limits_of(cost: DatasetCost, tried: Sequence[Trials], copy_rate: float) -> Limits:
    """The limits by what an example costs by itself, or in any trial, if that was less.

    A machine is not equally fast all the time, and an iterator may have a shorter way to the
    examples than one by one.
    """
    cpus = usable_cpus()
    rates = [(max(1, trials.settings.workers), trials.rate) for trials in tried if trials.rate]
    seconds = min([cost.seconds, *(workers / rate for workers, rate in rates)])
    cpu_seconds = min([seconds * cost.cpu, *(cpus / rate for _, rate in rates)])
    return Limits(cpus, max(seconds, 1e-9), cpu_seconds, copy_rate, cost.nbytes)


def numbers_of_workers(cost: DatasetCost) -> list[int]:
    """Numbers to try: powers of two up to the CPUs, more if the dataset waits."""
    cpus = usable_cpus()
    most = max(1, round(cpus))
    if cost.waits:
        most = max(most, min(MOST_WORKERS, math.ceil(cpus / max(cost.cpu, 1e-3))))
    return sorted({2**k for k in range(most.bit_length())} | {most})


def advice(
    cost: DatasetCost,
    limits: Limits,
    tried: Sequence[Trials],
    best: Trials,
    batch_size: int,
    step: float,
    is_padded: bool = False,
) -> list[str]:
    """Advice and remarks, the most important first."""
    settings, each = best.settings, batch_size / best.rate
    found = [_gain(cost, tried, best)]
    if step:
        share, steps = max(0.0, 1 - step / each), f"steps of {as_seconds(step)}"
        found.append(f"With {steps} the loop waits for data {share:.0%} of its time.")
    elif settings.workers:
        found.append(
            f"A batch takes {as_seconds(each)}: a longer training step does not wait, and fewer "
            "workers may be enough; --step SECONDS measures that."
        )
    else:
        found.append(f"The loop itself spends {as_seconds(each)} on each batch.")
    if cost.waits:
        found.append(
            f"The dataset waits for files or the network (it keeps {cost.cpu:.0%} of a CPU busy): "
            "more workers than CPUs help."
        )
    elif cost.gain is not None and cost.gain < 1.3 and settings.kind == "processes":
        found.append("The dataset holds the GIL: threads do not help, processes do.")
    if cost.cpu > 1.3:
        found.append(
            f"The dataset computes in {cost.cpu:.1f} threads of its own. In worker processes it "
            "has one each; the workers run in parallel instead."
        )
    if cost.seconds < _TINY and not cost.by_columns and not cost.by_many:
        found.append(
            "Examples are tiny: a call for each costs more than its bytes. Arrays in a "
            "TupleDataset or DictDataset need no calls; a method __getitems__(indices) saves most."
        )
    if cost.is_ragged and not is_padded:
        found.append(
            "Arrays differ in shape: --padding VALUE measures concat_examples with padding=VALUE."
        )
    if best.rate > 0.8 * limits.memory_rate:
        found.append("Memory is the limit: smaller dtypes (uint8 instead of float32) help.")
    verdict = best.stats.verdict if best.stats is not None and settings.workers else "unknown"
    if best.stats is not None and verdict != "unknown":
        is_futile = _was_tried(tried, best, best.stats.change)
        futile = "more workers, or more prefetch, gained nothing in these trials"
        found.append(f"stats() says {verdict}: {futile if is_futile else best.stats.advice}.")
    if cost.trouble:
        found.append(f"Do not use MultithreadIterator: in two threads {cost.trouble}.")
    return found


def _gain(cost: DatasetCost, tried: Sequence[Trials], best: Trials) -> str:
    if best.settings.kind != "serial":
        serial = next((trials.rate for trials in tried if trials.settings.kind == "serial"), 0.0)
        if serial:
            return f"{best.rate / serial:.1f} times as fast as SerialIterator."
        return f"{best.rate * cost.seconds:.1f} times as fast as the dataset by itself."
    if any(trials.rates and trials.settings.workers for trials in tried):
        return "Workers gain nothing here: fetching an example costs less than handing it over."
    return "No iterator with workers could be measured: the table shows their exceptions."


def _was_tried(tried: Sequence[Trials], best: Trials, change: Mapping[str, int]) -> bool:
    """Whether a change, or a larger one, was measured and was not faster than the best."""
    kind, workers, prefetch, _ = best.settings
    kinds: dict[str, Kind] = {"n_processes": "processes", "n_threads": "threads"}
    for name, value in change.items():
        if name == "n_prefetch":
            prefetch = value
        else:
            kind, workers = kinds[name], value
    slower = [other.settings for other in tried if 0 < other.rate < ENOUGH_GAIN * best.rate]
    return bool(change) and any(
        other.kind == kind and other.workers >= workers and other.prefetch >= prefetch
        for other in slower
    )

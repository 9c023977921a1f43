"""What the machine allows at most, and what follows from all that was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastiter._cli.profile.dataset_cost import DatasetCost
from fastiter._cli.profile.trials import ENOUGH_GAIN, Kind, Trials
from fastiter._util.cpus import usable_cpus

_MOST_WORKERS = 64
_TINY = 10e-6  # seconds: less than the call of an example costs around it


class Limits(NamedTuple):
    """Bounds of the rate, from the parts that every loader has to do."""

    cpus: float  # that this process may use
    seconds: float  # of one worker for an example
    cpu_seconds: float  # of a CPU for an example
    copy_rate: float  # bytes a second
    nbytes: float  # of an example

    def rate(self, workers: int) -> float:
        """Examples a second that ``workers`` can make at most."""
        by_cpus = self.cpus / self.cpu_seconds if self.cpu_seconds else math.inf
        return min(max(1, workers) / self.seconds, by_cpus, self.memory_rate)

    @property
    def memory_rate(self) -> float:
        """Examples a second whose bytes can be copied once."""
        return self.copy_rate / self.nbytes if self.nbytes else math.inf


def limits_of(alone: DatasetCost, runs: Sequence[Trials], copy_rate: float) -> Limits:
    """The limits: what an example costs by itself, or in any run, where that was less. A machine
    is not equally fast all the time, and an iterator may have a shorter way to the examples than
    one by one."""
    cpus = usable_cpus()
    rates = [(max(1, r.settings.workers), r.rate) for r in runs if r.rate]
    seconds = min([alone.seconds, *(workers / rate for workers, rate in rates)])
    cpu_seconds = min([seconds * alone.cpu, *(cpus / rate for _, rate in rates)])
    return Limits(cpus, max(seconds, 1e-9), cpu_seconds, copy_rate, alone.nbytes)


def numbers_of_workers(alone: DatasetCost) -> list[int]:
    """What to try: powers of two up to the CPUs, more where the dataset waits."""
    cpus = usable_cpus()
    most = max(1, round(cpus))
    if alone.waits:
        most = max(most, min(_MOST_WORKERS, math.ceil(cpus / max(alone.cpu, 1e-3))))
    return sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})


def advice(
    alone: DatasetCost,
    limits: Limits,
    runs: Sequence[Trials],
    best: Trials,
    batch_size: int,
    step: float,
    is_padded: bool = False,
) -> list[str]:
    """What to know and to do, most important first."""
    found = []
    serial = next((r.rate for r in runs if r.settings.kind == "serial"), 0.0)
    if best.settings.kind != "serial":
        gain, than = (
            (best.rate / serial, "SerialIterator")
            if serial
            else (best.rate * alone.seconds, "the dataset by itself")
        )
        found.append(f"{gain:.1f} times as fast as {than}.")
    elif any(r.rates and r.settings.workers for r in runs):
        found.append("Workers gain nothing here: the dataset costs less than handing it over.")
    else:
        found.append("No iterator with workers could be measured: what they raised is said above.")
    each = batch_size / best.rate
    if step:
        waited = max(0.0, 1 - step / each)
        found.append(
            f"With steps of {milliseconds(step)} the loop spends {waited:.0%} of its time waiting "
            "for data."
        )
    elif best.settings.workers:
        found.append(
            f"A batch every {milliseconds(each)}: a training step that takes longer does not wait, "
            "and fewer workers may do; --step SECONDS tells."
        )
    else:
        found.append(f"The loop itself spends {milliseconds(each)} on each batch.")
    if alone.waits:
        found.append(
            f"The dataset waits ({alone.cpu:.0%} of a CPU is busy), for files or the network: more "
            "workers than CPUs help."
        )
    elif best.settings.kind == "processes" and alone.gain is not None and alone.gain < 1.3:
        found.append("The dataset holds the GIL: threads do not help, processes do.")
    if alone.cpu > 1.3:
        found.append(
            f"The dataset computes in {alone.cpu:.1f} threads of its own. In worker processes it "
            "has one each; the workers are the parallelism."
        )
    if alone.seconds < _TINY and not alone.by_columns and not alone.by_many:
        found.append(
            "Examples are tiny: a call for each costs more than its bytes. Arrays in a "
            "TupleDataset or DictDataset need no calls; a method __getitems__(indices) saves most."
        )
    if alone.is_ragged and not is_padded:
        found.append(
            "Arrays differ in shape: --padding VALUE measures concat_examples with padding=VALUE."
        )
    if best.rate > 0.8 * limits.memory_rate:
        found.append("Memory is the limit: smaller dtypes (uint8 in place of float32) help.")
    if best.stats is not None and best.settings.workers and best.stats.verdict != "unknown":
        said = f"In stats(): {best.stats.verdict}"
        found.append(
            f"{said}; more workers, or more ahead, gained nothing in these runs."
            if _was_tried(runs, best, best.stats.change)
            else f"{said}; {best.stats.advice}."
        )
    if alone.trouble:
        found.append(f"Do not use MultithreadIterator: in two threads {alone.trouble}.")
    return found


def _was_tried(runs: Sequence[Trials], best: Trials, change: Mapping[str, int]) -> bool:
    """Whether a change was measured, or more than that, and was not faster than the best."""
    for name, value in change.items():
        wanted = best.settings._replace(prefetch=value)
        if name != "n_prefetch":
            kind: Kind = "processes" if name == "n_processes" else "threads"
            wanted = best.settings._replace(kind=kind, workers=value)
        for other in runs:
            settings = other.settings
            enough = settings.workers >= wanted.workers and settings.prefetch >= wanted.prefetch
            slower = bool(other.rates) and other.rate < ENOUGH_GAIN * best.rate
            if settings.kind == wanted.kind and enough and slower:
                return True
    return False


def milliseconds(seconds: float) -> str:
    """A time for people: ``12.3 ms``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"

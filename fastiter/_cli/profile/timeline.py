"""Who did what when with one choice of settings: a trace of an iterator that has warmed up."""

from __future__ import annotations

import time

from fastiter._cli.profile.trials import Settings, Task, Trials, consume, warm_up
from fastiter._stats.trace import Trace

_BATCHES = 8  # at least
_MOST_EXAMPLES = 15_000  # two events each, of the 32,765 that a worker keeps


def seconds_of(task: Task, runs: Trials) -> float:
    """About how long it takes at least to `record` the settings of ``runs``."""
    batches = runs.settings.prefetch + 2 + _BATCHES
    return runs.first + batches * task.batch_size / runs.rate


def record(task: Task, settings: Settings, seconds: float) -> Trace:
    """Trace some batches, taken for ``seconds``, and eight at least.

    They come after those that `run_once` takes to warm up, too: a start of workers, much longer
    than a batch, would hide what follows it.
    """
    with task.iterator(settings) as iterator:
        warm_up(task, iterator, settings, seconds)
        begin, taken = time.perf_counter(), 0
        with iterator.trace() as trace:
            while taken < _BATCHES or (
                time.perf_counter() - begin < seconds and taken * task.batch_size < _MOST_EXAMPLES
            ):
                consume(task, next(iterator))
                taken += 1
    assert isinstance(trace, Trace)
    return trace

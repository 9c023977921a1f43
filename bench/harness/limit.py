"""The reference for a workload: what the machine does without a loader.

Three things have to happen to every example, and each is measured by itself, as fast as this
machine does it:

fetch
    the dataset's own ``__getitem__``, run by as many processes as the candidates have workers, each
    alone with its share;
copy
    each of its bytes moved once into a batch, by a C program of nothing but memcpy on two threads,
    one batch being filled while another is held;
consume
    the consumer's checks on batches that are ready.

The reference, `limit` in the results, is the rate that the sum of the three times gives. It is no
upper bound: a loader may overlap them, and write large batches past the caches.
"""

from __future__ import annotations

import itertools
import multiprocessing
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.candidates import concat
from bench.harness.micro import compile_c
from bench.harness.verify import Verifier, fields_of, form_of
from bench.harness.workloads import Workload

COPY_THREADS = 2
BATCHES_HELD = 2
WARM_UP = 0.3  # seconds, enough for a whole epoch where examples are Python objects
FETCHED = 32  # examples between two looks at the clock


def compile_memcpy() -> str:
    """The path of the compiled C program; raises as `bench.harness.micro.compile_c` does."""
    return str(compile_c(Path(__file__).parents[1] / "c" / "memcpy_limit.c", "-pthread"))


def _fetch(dataset: Any, first: int, step: int, requests: Any) -> None:
    """Fetches every `step`-th example, for as many seconds as each request says.

    Runs in a process of its own and answers with (examples, seconds). It lives through all rounds,
    since a forked process copies the page of each Python object that it touches for the first time.
    """
    indices = itertools.cycle(range(first, len(dataset), step))
    while (seconds := requests.recv()) is not None:
        examples, begin, elapsed = 0, time.perf_counter(), 0.0
        while elapsed < seconds:
            for i in itertools.islice(indices, FETCHED):
                dataset[i]
            examples += FETCHED
            elapsed = time.perf_counter() - begin
        requests.send((examples, elapsed))


class Limit:
    """Measures the limit of one workload, in slices as a candidate is."""

    def __init__(
        self, workload: Workload, dataset: Any, verifier: Verifier, memcpy_program: str
    ) -> None:
        self._workload = workload
        self._dataset = dataset
        self._verifier = verifier
        self._program = memcpy_program
        size = workload.batch_size
        self._batches = [
            concat([dataset.reference(i) for i in range(start, start + size)], workload.padding)
            for start in range(0, 3 * size, size)
        ]
        self._fetchers = self._start_fetchers()
        self._fetch_rate(WARM_UP)

    def _start_fetchers(self) -> list[Any]:
        """The pipes of as many processes as the workload has workers; they end with this one."""
        context = multiprocessing.get_context("fork")
        n = self._workload.n_workers
        pipes = []
        for first in range(n):
            here, there = context.Pipe()
            context.Process(
                target=_fetch, args=(self._dataset, first, n, there), daemon=True
            ).start()
            pipes.append(here)
        return pipes

    def run(self, seconds: float) -> dict[str, float]:
        """Examples per second of each part, and of the sum of their times, in about `seconds`."""
        part = seconds / 3
        rates = {
            "fetch": self._fetch_rate(part),
            "copy": self._copy_rate(part),
            "consume": self._consume_rate(part),
        }
        rates["limit"] = 1.0 / sum(1.0 / rate for rate in rates.values())
        return rates

    def _fetch_rate(self, seconds: float) -> float:
        for pipe in self._fetchers:
            pipe.send(seconds)
        return sum(examples / elapsed for examples, elapsed in (p.recv() for p in self._fetchers))

    def _copy_rate(self, seconds: float) -> float:
        workload = self._workload
        command = [
            self._program,
            *map(str, (COPY_THREADS, seconds, workload.source_rows)),
            *map(str, (workload.batch_size, BATCHES_HELD)),
            *map(str, self._row_nbytes()),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(done.stdout)

    def _row_nbytes(self) -> Sequence[int]:
        """Bytes of one example, per array; the mean where they differ. Numbers are no copy."""
        examples = [self._dataset.reference(i) for i in range(min(256, self._dataset.distinct))]
        form = form_of(examples[0])
        return [
            max(1, round(sum(array.nbytes for array in column) / len(column)))
            for column in zip(*(fields_of(example, form) for example in examples), strict=True)
            if hasattr(column[0], "nbytes")
        ]

    def _consume_rate(self, seconds: float) -> float:
        verifier, batches = self._verifier, self._batches
        verifier.number = 0
        for batch in batches:
            verifier.check_fully(batch)
        examples, begin = 0, time.perf_counter()
        elapsed = 0.0
        while elapsed < seconds:
            verifier.number = 0
            for batch in batches:
                verifier.check(batch)
            examples += len(batches) * self._workload.batch_size
            elapsed = time.perf_counter() - begin
        return examples / elapsed

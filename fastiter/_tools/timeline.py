"""Who did what when: a recording of one run, as spans, and as events for a trace viewer.

A wrapper around the dataset notes when it is called, in whichever process or thread, in a file that
all of them append to. What a worker does between two calls follows: the CPU time that it used went
into writing what was fetched, and handing over; the rest is waiting, for a free slot or a CPU.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fastiter._columnar import plain_columns, rows_getter
from fastiter._tools.runs import Settings, Task

_RECORD = struct.Struct("<qqqqdddd")  # process, thread, index, examples, start, end, CPU at both
_BATCHES = 8  # at least
_MOST_EXAMPLES = 20_000


class Span(NamedTuple):
    """A stretch of time in one lane."""

    process: int
    thread: int  # 0: the consumer
    name: str  # fetch, write, wait; of the consumer: next, step
    start: float  # seconds on the monotonic clock
    end: float
    number: int = -1  # index in the dataset, or the batch's number


class _Recorder:
    """The dataset, with each of its calls noted in a file."""

    def __init__(self, dataset: Any, path: str) -> None:
        self.dataset, self.path = dataset, path
        self._file = (-1, -1)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": (-1, -1)}

    def _note(self, index: int, count: int, start: float, cpu: float) -> None:
        end, used = time.perf_counter(), time.thread_time()
        pid, fd = self._file
        if pid != os.getpid():  # descriptors of a forked process are its own
            pid, fd = self._file = os.getpid(), os.open(self.path, os.O_WRONLY | os.O_APPEND)
        record = (pid, threading.get_native_id(), index, count, start, end, cpu, used)
        os.write(fd, _RECORD.pack(*record))


class _OneByOne(_Recorder):
    def __getitem__(self, index: int) -> Any:
        start, cpu = time.perf_counter(), time.thread_time()
        example = self.dataset[index]
        self._note(index, 1, start, cpu)
        return example


class _Many(_Recorder):
    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> Any:
        getter: Any = rows_getter(self.dataset)
        start, cpu = time.perf_counter(), time.thread_time()
        examples = getter(indices)
        self._note(indices[0], len(indices), start, cpu)
        return examples


def record(task: Task, settings: Settings, seconds: float) -> list[Span]:
    """Record some batches, taken for ``seconds``, and eight at least.

    Returns
    -------
    list of Span
        Ordered by start. Empty where the dataset's columns are gathered without calls of it.
    """
    if plain_columns(task.dataset) is not None:
        return []
    kind = _Many if rows_getter(task.dataset) is not None else _OneByOne
    with tempfile.TemporaryDirectory(prefix="fastiter-") as folder:
        path = Path(folder) / "calls"
        path.touch()
        recorder = kind(task.dataset, str(path))
        consumed = _consume(task._replace(dataset=recorder), settings, seconds)
        calls = sorted(_RECORD.iter_unpack(path.read_bytes()), key=lambda call: call[4])
        if recorder._file[0] == os.getpid():
            os.close(recorder._file[1])
    return sorted([*_of_calls(calls), *consumed], key=lambda span: span.start)


def _consume(task: Task, settings: Settings, seconds: float) -> list[Span]:
    pid = os.getpid()
    spans: list[Span] = []
    with task.iterator(settings) as iterator:
        begin, taken = time.perf_counter(), 0
        while taken < _BATCHES or (
            time.perf_counter() - begin < seconds and taken * task.batch_size < _MOST_EXAMPLES
        ):
            start = time.perf_counter()
            next(iterator)
            end = time.perf_counter()
            spans.append(Span(pid, 0, "next", start, end, taken))
            if task.step:
                time.sleep(task.step)
                spans.append(Span(pid, 0, "step", end, time.perf_counter(), taken))
            taken += 1
    return spans


def _of_calls(calls: Iterable[tuple[Any, ...]]) -> list[Span]:
    loop = os.getpid(), threading.get_native_id()
    spans: list[Span] = []
    last: dict[tuple[int, int], tuple[float, float]] = {}
    for process, thread, index, _, start, end, cpu, used in calls:
        if (process, thread) == loop:
            spans.append(Span(process, 0, "fetch", start, end, index))
            continue
        before = last.get((process, thread))
        if before is not None:
            written = min(start, before[0] + max(0.0, cpu - before[1]))
            spans.append(Span(process, thread, "write", before[0], written))
            spans.append(Span(process, thread, "wait", written, start))
        spans.append(Span(process, thread, "fetch", start, end, index))
        last[process, thread] = end, used
    return [span for span in spans if span.end > span.start]


def trace_events(spans: list[Span]) -> dict[str, Any]:
    """Spans in the trace event format that Perfetto and chrome://tracing read: times in us."""
    origin = min((span.start for span in spans), default=0.0)
    lanes = dict.fromkeys((span.process, span.thread) for span in spans)
    workers = [lane for lane in lanes if lane[1]]
    events: list[dict[str, Any]] = []
    for process, thread in lanes:
        name = f"worker {workers.index((process, thread))}" if thread else "consumer"
        events.append(
            {
                "name": "thread_name",
                "ph": "M",
                "pid": process,
                "tid": thread or process,
                "args": {"name": name},
            }
        )
    for span in spans:
        events.append(
            {
                "name": span.name,
                "cat": "consumer" if span.thread == 0 else "worker",
                "ph": "X",
                "ts": round((span.start - origin) * 1e6, 3),
                "dur": round((span.end - span.start) * 1e6, 3),
                "pid": span.process,
                "tid": span.thread or span.process,
                "args": {"batch" if span.name in ("next", "step") else "index": span.number},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}

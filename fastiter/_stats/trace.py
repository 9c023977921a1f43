"""Traces of the loop and the workers, for Perfetto and other viewers of Chrome's traces."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from fastiter._stats import timer
from fastiter._util.arguments import checked_path
from fastiter._util.concurrency import items_of
from fastiter._util.context import Self

_MOST_CALLS = 200_000  # of next(), the last ones
_LOOP = 1  # thread number of the loop; viewers take 0 for the idle thread

Call = tuple[int, int, int, int, int]  # what `Timer.trace` gets
#: Records of each worker, by its name: kind, beginning and duration in ns, dataset index,
#: rows, number of the batch.
WorkerTraces = dict[str, Iterable[tuple[str, int, int, int, int, int]]]


class Traced(Protocol):
    """An iterator that can be traced."""

    def _start_trace(self, note: Callable[[Call], None]) -> None:
        """Record from now on, calls of ``next()`` by ``note``."""

    def _stop_trace(self) -> WorkerTraces:
        """Record no more; return the records of the workers."""


class Trace:
    """Records what an iterator and its workers do while a ``with`` block runs.

    ``iterator.trace(path)`` creates it. The end of the block saves the trace at the path, also if
    an exception leaves it. The iterator need not have begun; one object at a time traces it.
    """

    def __init__(self, iterator: Traced, path: str | os.PathLike[str] | None) -> None:
        self._iterator = iterator
        self._path = None if path is None else checked_path("path", path)
        self._calls: deque[Call] = deque(maxlen=_MOST_CALLS)
        self._workers: WorkerTraces = {}
        self._began = 0

    def __enter__(self) -> Self:
        self._calls.clear()
        self._began = timer.now()
        self._iterator._start_trace(self._calls.append)
        return self

    def __exit__(self, *exception: object) -> None:
        self._workers = self._iterator._stop_trace()
        if self._path is not None:
            self.save(self._path)

    def events(self) -> list[dict[str, Any]]:
        """Return the recorded events, in Chrome's trace event format, times in microseconds.

        One thread is the loop: ``next()``, within it ``wait``, and ``loop`` between the calls. The
        others are the workers: ``fetch`` and ``write`` of rows, with the dataset index of the
        first; ``hedge``, a second fetch of a row; ``lost``, a discarded fetch; ``finish`` of
        batches, and ``wait`` for work. Without workers ``next()`` itself does
        all that, and does not wait. Each worker keeps its last 32,765 events. Time 0 is the
        beginning of the trace, or of an event in progress then; events in progress at its end are
        left out.
        """
        pid = os.getpid()
        found: list[dict[str, Any]] = []

        def label(tid: int, what: str, **args: Any) -> None:
            found.append({"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args})

        def span(tid: int, name: str, began: int, took: int, **args: int) -> None:
            category = "loop" if tid == _LOOP else "worker"
            ts, duration = (began - self._began) / 1000, max(took, 0) / 1000
            event = {"name": name, "cat": category, "ph": "X", "ts": ts, "dur": duration}
            found.append({**event, "pid": pid, "tid": tid, "args": args})

        label(_LOOP, "process_name", name=f"fastiter {pid}")
        for tid, thread in enumerate(["loop", *self._workers], _LOOP):
            label(tid, "thread_name", name=thread)
            label(tid, "thread_sort_index", sort_index=tid)
        left = 0
        for began, took, blocked, waited, rows in items_of(self._calls):
            if left:
                span(_LOOP, "loop", left, began - left)
            span(_LOOP, "next()", began, took, **({"rows": rows} if rows > 0 else {}))
            if waited:
                # It may have waited more than once; the time in between is short.
                span(_LOOP, "wait", max(began, min(blocked, began + took - waited)), waited)
            left = 0 if rows == timer.ENDED else began + took
        for tid, events in enumerate(self._workers.values(), _LOOP + 1):
            for kind, began, took, index, rows, batch in events:
                args = {"rows": rows, "batch": batch} if rows else {}
                if kind in ("fetch", "write", "hedge", "lost"):
                    args["index"] = index
                span(tid, kind, began, took, **args)
        # Viewers leave out what lies before time 0, or draw it in the wrong place.
        earliest = min(event["ts"] for event in found)
        return [{**event, "ts": round(event["ts"] - earliest, 3)} for event in found]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON, which https://ui.perfetto.dev opens.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        content = {"traceEvents": self.events(), "displayTimeUnit": "ms"}
        import json

        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(content))
        except OSError as error:
            if error.filename is None:  # of the write: viewers open a part of a trace, too
                error.filename = os.fspath(path)
                with contextlib.suppress(OSError):
                    os.truncate(path, 0)
            raise

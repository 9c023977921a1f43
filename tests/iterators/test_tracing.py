"""Traces: what is in them, and that nothing is recorded outside of them."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import re
import resource
import time

import numpy as np
import pytest
from failing import Calling, FailingTogether

import fastiter
from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator
from fastiter.datasets import TupleDataset


def sleep(index):
    time.sleep(0.002)
    return np.full(8, index), index


SLEEPING = Calling(sleep, 10_000)


class Waiting:
    """Its second example says that it is fetched, and waits until it may be."""

    def __init__(self, started, go_on):
        self.started, self.go_on = started, go_on

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 1:
            self.started.touch()
            while not self.go_on.exists():
                time.sleep(0.001)
        return index


def serial(**options):
    return SerialIterator(SLEEPING, 8, **options)


def threads(**options):
    return MultithreadIterator(SLEEPING, 8, n_threads=2, **options)


def processes(**options):
    return MultiprocessIterator(SLEEPING, 8, n_processes=2, context="fork", **options)


WORKERS = {serial: [], threads: ["thread 0", "thread 1"], processes: ["worker 0", "worker 1"]}


def spans(events, name=None, tid=None):
    return [
        event
        for event in events
        if event["ph"] == "X" and name in (None, event["name"]) and tid in (None, event["tid"])
    ]


def names(events):
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


@pytest.mark.parametrize("make", WORKERS)
def test_says_who_did_what_when(make, tmp_path):
    path = tmp_path / "trace.json"
    with make(shuffle=False, converter=fastiter.concat_examples) as iterator:
        began = time.monotonic()
        with iterator.trace(path) as trace:
            for _ in range(6):
                next(iterator)
                time.sleep(0.001)
        seconds = time.monotonic() - began
    events = trace.events()
    assert json.loads(path.read_text()) == {"traceEvents": events, "displayTimeUnit": "ms"}
    assert list(names(events).values()) == ["loop", *WORKERS[make]]
    calls = spans(events, "next()")
    assert [call["args"]["rows"] for call in calls] == [8] * 6
    assert len(spans(events, "loop")) == 5
    assert all(span["dur"] >= 1000 for span in spans(events, "loop"))
    # Threads of the trace do one thing at a time, but for the waiting within next().
    for tid in names(events):
        own = [s for s in spans(events, tid=tid) if tid > 1 or s["name"] != "wait"]
        for one, other in itertools.pairwise(own):
            assert one["ts"] + one["dur"] <= other["ts"] + 0.002
        assert all(0 <= s["ts"] <= s["ts"] + s["dur"] <= 1e6 * seconds for s in own)
    for wait in spans(events, "wait", tid=1):
        assert any(
            c["ts"] <= wait["ts"] + 0.002 and wait["ts"] + wait["dur"] <= c["ts"] + c["dur"] + 0.002
            for c in calls
        )
    if make is serial:  # next() fetches, and does not wait
        assert not spans(events, "wait")
    else:
        fetches = spans(events, "fetch")
        assert {span["tid"] for span in fetches} <= {2, 3}
        assert sum(span["args"]["rows"] for span in fetches) >= 48
        assert {f["args"]["index"] for f in fetches} <= set(range(200))
        assert max(span["dur"] / span["args"]["rows"] for span in fetches) >= 2000


def test_what_was_under_way_as_the_trace_began_is_whole_in_it(tmp_path):
    started, go_on = tmp_path / "started", tmp_path / "go on"
    with MultithreadIterator(Waiting(started, go_on), 1, n_threads=1, shuffle=False) as iterator:
        next(iterator)
        while not started.exists():
            time.sleep(0.001)
        with iterator.trace() as trace:
            go_on.touch()
            next(iterator)
    (fetch,) = (f for f in spans(trace.events(), "fetch") if f["args"]["index"] == 1)
    assert fetch["ts"] == 0
    assert min(call["ts"] for call in spans(trace.events(), "next()")) > 0


def test_each_slow_row_is_an_event_with_its_index():
    with processes(shuffle=False) as iterator, iterator.trace() as trace:
        for _ in range(5):
            next(iterator)
    fetches, writes = (spans(trace.events(), name) for name in ("fetch", "write"))
    assert {span["args"]["index"] for span in fetches} >= set(range(40))
    assert all(span["args"]["rows"] == 1 and span["dur"] >= 2000 for span in fetches)
    assert len(writes) == len(fetches)


def test_cheap_rows_are_counted_together():
    dataset = list(range(100_000))
    iterator = MultiprocessIterator(dataset, 1000, n_processes=1, context="fork")
    with iterator, iterator.trace() as trace:
        for _ in range(20):
            next(iterator)
    fetches = spans(trace.events(), "fetch")
    assert sum(span["args"]["rows"] for span in fetches) >= 20_000
    assert len(fetches) < 10_000


@pytest.mark.parametrize("kind", ["columns", "getitems"])
def test_rows_that_are_fetched_together(kind):
    dataset = FailingTogether({}, 500)
    if kind == "columns":
        dataset = TupleDataset(np.zeros((500, 3)), np.arange(500))
    iterator = MultiprocessIterator(dataset, 50, n_processes=1, context="fork")
    with iterator, iterator.trace() as trace:
        for _ in range(10):
            next(iterator)
    assert sum(span["args"]["rows"] for span in spans(trace.events(), "fetch")) >= 500


def test_finishes_are_events():
    def convert(batch, device):
        time.sleep(0.003)
        return len(batch)

    for make in (threads, processes):
        with make(converter=convert) as iterator, iterator.trace() as trace:
            assert [next(iterator) for _ in range(4)] == [8] * 4
        finishes = spans(trace.events(), "finish")
        assert len(finishes) >= 4
        assert all(span["dur"] >= 3000 and span["args"]["rows"] == 8 for span in finishes)


@pytest.mark.parametrize("make", [threads, processes])
def test_records_within_its_block_only(make):
    with make() as iterator:
        next(iterator)
        with iterator.trace() as first:
            next(iterator)
        found = first.events()
        for _ in range(3):
            next(iterator)
        assert first.events() == found
        with iterator.trace() as second:
            next(iterator)
        assert len(spans(second.events(), "next()")) == 1
        assert all(event["ts"] >= 0 or event["tid"] > 1 for event in second.events())


def test_one_at_a_time_and_copies_none():
    iterator = serial()
    with iterator.trace() as trace:
        with pytest.raises(RuntimeError, match="traced already"), iterator.trace():
            pass
        next(copy.copy(iterator))
        next(iterator)
    assert len(spans(trace.events(), "next()")) == 1


def test_writes_into_no_file_of_the_program_after_a_start_that_failed(tmp_path):
    def fail(number):
        raise OSError("no file server")

    iterator = MultiprocessIterator(SLEEPING, 8, n_processes=2, context="fork", worker_init=fail)
    with contextlib.ExitStack() as stack:
        with pytest.raises(OSError, match="no file server"):
            next(iterator)
        # They get the numbers of the descriptors that are closed by now.
        files = [stack.enter_context(open(tmp_path / str(n), "w+")) for n in range(20)]
        with iterator.trace():
            pass
        assert all(os.fstat(file.fileno()).st_size == 0 for file in files)
    iterator.finalize()


def test_is_saved_although_an_exception_leaves_the_block(tmp_path):
    path = os.fspath(tmp_path / "trace.json")
    with processes() as iterator, pytest.raises(ValueError, match="mine"), iterator.trace(path):
        next(iterator)
        raise ValueError("mine")
    with open(path, encoding="utf-8") as file:
        assert spans(json.load(file)["traceEvents"], "fetch")


def test_a_disk_that_is_full_leaves_no_part_of_a_trace(tmp_path):
    path = tmp_path / "trace.json"
    iterator = serial()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match=re.escape(str(path))), iterator.trace(path):
            next(iterator)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b""


def test_a_replaced_worker_goes_on_recording():
    with (
        MultiprocessIterator(
            SLEEPING, 4, n_processes=1, context="fork", maxtasksperchild=3
        ) as iterator,
        iterator.trace() as trace,
    ):
        for _ in range(5):
            next(iterator)
    assert iterator.stats().replacements > 0
    assert sum(s["args"]["rows"] for s in spans(trace.events(), "fetch")) >= 20

"""Rows that hang, for tests of other things: `switch_on` has a dataset hang at the first touch of
each eighth index, in forked workers, and iterators have the row fetched elsewhere. Iterators that a
test gives a limit of its own keep it, and their rows do not hang."""

from __future__ import annotations

import mmap
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fastiter import MultiprocessIterator
from fastiter._fetch.dataset_access import plain_columns
from fastiter._workers import main
from fastiter._workers.row_writer import RowWriter
from fastiter.datasets import StreamDataset

PLACES = 4096
MOST = 24  # rows of a test that hang

#: Values of `--stuck-rows`, with the arguments of iterators then, unless they are given others.
WAYS: dict[str, dict[str, Any]] = {
    "retry": {"dataset_timeout": 0.4, "on_timeout": "retry", "n_retries": 9},
    "hedge": {"dataset_timeout": 2.0, "on_timeout": "retry", "n_retries": 9, "hedge": 1.0},
}


class Stuck:
    """A dataset's rows, in a worker."""

    def __init__(self, dataset: Any, touched: mmap.mmap) -> None:
        self._dataset, self._touched = dataset, touched

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._dataset, name)
        if name not in ("__getitems__", "get_examples"):
            return found

        def fetch(indices: Any) -> Any:
            self._touch(indices)
            return found(indices)

        return fetch

    def __getitem__(self, index: Any) -> Any:
        self._touch([index])
        return self._dataset[index]

    def _touch(self, indices: Any) -> None:
        for index in indices:
            place = hash(index) % PLACES
            if place % 8 == 3 and not self._touched[place] and self._touched[0] < MOST:
                self._touched[place] = 1
                self._touched[0] += 1  # about
                threading.Event().wait()


def switch_on(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = mmap.mmap(-1, PLACES)
    datasets = []  # of iterators that have been given a limit here

    def writer(end: Any, dataset: Any, answer: Any, two_steps: bool, hedges: bool) -> RowWriter:
        is_ours = any(dataset is ours for ours in datasets)
        if is_ours and two_steps and plain_columns(dataset) is None:
            dataset = Stuck(dataset, touched)
        return RowWriter(end, dataset, answer, two_steps, hedges)

    def init(self: Any, dataset: Any, *arguments: Any, **named: Any) -> None:
        is_forked = named.get("context") not in ("spawn", "forkserver")  # which load for longer
        if (
            is_forked
            and not isinstance(dataset, StreamDataset)
            and not WAYS["hedge"].keys() & named.keys()
        ):
            named.update(WAYS[way])
            datasets.append(dataset)
        original(self, dataset, *arguments, **named)

    original = MultiprocessIterator.__init__
    monkeypatch.setattr(main, "row_writer", SimpleNamespace(RowWriter=writer))
    monkeypatch.setattr(MultiprocessIterator, "__init__", init)

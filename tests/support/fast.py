"""Tests found by the names in their code: those that start no process (one that does, fails), and
those that trace lines by themselves, while coverage cannot be measured."""

from __future__ import annotations

import functools
import os
import re
import resource
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: Folders of tests that start processes, or import torch, which takes seconds.
FOLDERS = {"cli", "cluster", "packaging", "process", "torch_loader"}
#: Names by which code of tests starts a process, of Python, of fastiter and of the tests' support.
STARTERS = {
    *("DataLoader", "MultiprocessIterator", "multiprocess_reader", "RemoteWorkers"),
    *("Popen", "Pool", "Process", "ProcessPoolExecutor", "fork", "subprocess", "system"),
    *("get_context", "in_child", "run_in_fork", "programs", "run_script", "start_script"),
    *("n_processes", "num_workers"),
    *("processes", "spawn", "forkserver", "make_started", "output_of"),
}
#: Parameters of tests that name processes, or a library that takes seconds to import.
PARAMETERS = re.compile(r"process|fork|spawn|torch|jax", re.IGNORECASE)
HERE = str(Path(__file__).resolve().parents[1])


def is_fast(item: pytest.Item) -> bool:
    """Whether a test has no parameter, and neither its code nor what it calls in the tests has a
    name, of what starts processes. The mark `processes` says what they do not show."""
    function = getattr(item, "function", None)
    folder = str(item.path).removeprefix(f"{HERE}/").partition("/")[0]
    if function is None or folder in FOLDERS:
        return False
    callspec = getattr(item, "callspec", None)
    if callspec is not None and PARAMETERS.search(callspec.id):
        return False
    if any(item.get_closest_marker(name) for name in ("processes", "slow", "stress", "gpu")):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.items()  # type: ignore[attr-defined]
    called = [definitions[-1].func for _, definitions in fixtures]
    return not any(map(starts_processes, [function, *called]))


@functools.cache
def starts_processes(function: Any) -> bool:
    """Whether a test or a fixture does, unless its parameters decide it."""
    return function.__name__ in STARTERS or _has_name(function, STARTERS, set())


@functools.cache
def traces_lines(function: Any) -> bool:
    """Whether a test puts its own function in the place of the one that measures coverage."""
    return _has_name(function, {"settrace"}, set())


def _has_name(function: Any, wanted: set[str], seen: set[Any]) -> bool:
    """Whether a test, or what it calls in the tests, has one of these names in its code."""
    if hasattr(function, "hypothesis"):
        function = function.hypothesis.inner_test
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if code is None or code in seen or not code.co_filename.startswith(HERE):
        return False
    seen.add(code)
    names = set(_names(code, wanted))
    if names & wanted:
        return True
    for name in names:
        value = function.__globals__.get(name)
        methods = vars(value).values() if isinstance(value, type) else (value,)
        if any(_has_name(method, wanted, seen) for method in methods if callable(method)):
            return True
    return False


def _names(code: types.CodeType, wanted: set[str]) -> Iterator[str]:
    """Names in a code, and words that are wanted, like a kind of iterator."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant, wanted)
        elif isinstance(constant, str) and constant in wanted:
            yield constant
        elif isinstance(constant, tuple):  # names of arguments, for one
            yield from (word for word in constant if isinstance(word, str))


def children() -> set[str]:
    """Pids of the processes that this one has started and that have not been waited for."""
    found: set[str] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as file:
                found.update(file.read().split())
        except OSError:  # the thread has ended
            continue
    return found


class Watch:
    """Tells whether a process was started since: each one that ended has touched memory."""

    def __init__(self) -> None:
        self.children, self.faults = children(), self._faults_of_ended()

    def has_started(self) -> bool:
        now = children()
        # One that was there before, and is not any more, is of another test.
        has_ended = self.children <= now and self._faults_of_ended() != self.faults
        return has_ended or not now <= self.children

    @staticmethod
    def _faults_of_ended() -> int:
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt

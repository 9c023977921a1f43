"""Cython's plugin for coverage.py, for a suite that forks thousands of processes.

coverage.py begins anew in each of them, and spends most of its life there with what the parent has
done: it parses the generated C, lists the source files, describes its own stack. Here children have
what their parent has parsed, and leave the rest out.
"""

from __future__ import annotations

import os
from typing import Any

import coverage.collector
from coverage.inorout import InOrOut
from Cython import Coverage

_plugin = Coverage.Plugin()


def coverage_init(registry: Any, options: Any) -> None:
    """Called by coverage.py, once a process."""
    registry.add_file_tracer(_plugin)


def _after_fork() -> None:
    InOrOut.find_possibly_unexecuted_files = lambda self: ()


# The lock of what is counted: an exception of a signal handler would leave it locked for ever. Each
# change under it is one call of C code, which other threads wait for. `bool` runs no Python.
for name in ("lock_data", "unlock_data"):
    setattr(coverage.collector.Collector, name, staticmethod(bool))
coverage.collector.short_stack = str  # where each collector was made: for debugging of coverage.py
os.register_at_fork(after_in_child=_after_fork)

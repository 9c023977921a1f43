"""Statistics: counters, bottleneck diagnosis, automatic settings, traces and progress bars."""

from __future__ import annotations

from fastiter._stats.stats import IteratorStats, WorkerStats

__all__ = ["IteratorStats", "WorkerStats"]  # pickles of version 0.1.0 name them here

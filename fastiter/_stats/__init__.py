"""Statistics, bottleneck diagnosis, automatic settings, traces, progress bars.

It imports `_util` and `_clib`, and of `_ring` types only.
"""

from __future__ import annotations

from fastiter._stats.stats import IteratorStats, WorkerStats

__all__ = ["IteratorStats", "WorkerStats"]  # pickles of version 0.1.0 name them here

"""Statistics, bottleneck diagnosis, automatic settings, traces, progress bars.

It imports `_util` and `_clib`, and of `_ring` types only.
"""

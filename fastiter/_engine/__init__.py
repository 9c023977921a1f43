"""The loop of all iterators: one call of ``next()`` makes a batch, then commits it.

It imports `_order`, `_stats` and what stands before those.
"""

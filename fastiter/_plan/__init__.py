"""Planners: which batch comes next, and the record of an iteration's state.

It imports `_order` and what stands before that; datasets and samplers are handed to it.
"""

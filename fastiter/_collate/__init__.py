"""Collation: examples become arrays of a batch, stacked or padded."""

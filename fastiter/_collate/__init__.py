"""Collation: examples, or a dataset's columns, become arrays of a batch, stacked or padded."""

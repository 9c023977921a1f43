"""Batches made of examples, as torch makes them, or of the columns of a dataset."""

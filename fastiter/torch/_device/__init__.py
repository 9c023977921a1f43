"""Batches of the loader on a device, and in memory that it copies from."""

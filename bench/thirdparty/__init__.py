"""Benchmarks of other projects, run from a checkout that the user has, with one import changed."""

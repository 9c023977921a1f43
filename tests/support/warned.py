"""Warnings as errors."""

from __future__ import annotations

import warnings


def make_warnings_errors() -> None:
    """But for CPython's warning of a fork beside threads, which OpenBLAS starts in any program."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)

"""Datasets of columns, made from arrays, lists and functions."""

from __future__ import annotations

from fastiter.dataset.tabular._base import DelegateDataset, TabularDataset
from fastiter.dataset.tabular._from_data import from_data

__all__ = [
    "DelegateDataset",
    "TabularDataset",
    "from_data",
]

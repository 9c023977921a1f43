"""Datasets' interface, and the conversion of batches into arrays."""

from __future__ import annotations

from fastiter.dataset.convert import Converter, concat_examples, converter, to_device
from fastiter.dataset.iterator import Iterator
from fastiter.dataset.mixin import DatasetMixin
from fastiter.dataset.tabular import TabularDataset

__all__ = [
    "Converter",
    "DatasetMixin",
    "Iterator",
    "TabularDataset",
    "concat_examples",
    "converter",
    "to_device",
]

"""Datasets' interface, and the conversion of batches into arrays."""

from __future__ import annotations

from fastiter.dataset.convert import Converter, concat_examples, converter, to_device
from fastiter.dataset.iterator import Iterator
from fastiter.dataset.mixin import DatasetMixin

__all__ = [
    "Converter",
    "DatasetMixin",
    "Iterator",
    "concat_examples",
    "converter",
    "to_device",
]

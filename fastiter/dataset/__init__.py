"""Datasets' interface, and the conversion of batches into arrays."""

from __future__ import annotations

from fastiter.dataset.convert import (
    ConcatWithAsyncTransfer,
    Converter,
    concat_examples,
    converter,
    to_device,
)
from fastiter.dataset.download import (
    cache_or_load_file,
    cached_download,
    get_dataset_directory,
    get_dataset_root,
    set_dataset_root,
)
from fastiter.dataset.iterator import Iterator
from fastiter.dataset.mixin import DatasetMixin
from fastiter.dataset.tabular import TabularDataset

__all__ = [
    "ConcatWithAsyncTransfer",
    "Converter",
    "DatasetMixin",
    "Iterator",
    "TabularDataset",
    "cache_or_load_file",
    "cached_download",
    "concat_examples",
    "converter",
    "get_dataset_directory",
    "get_dataset_root",
    "set_dataset_root",
    "to_device",
]

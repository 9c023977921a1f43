"""Datasets: columns put together, parts of datasets, files."""

from __future__ import annotations

from fastiter.datasets.dict_dataset import DictDataset
from fastiter.datasets.tuple_dataset import TupleDataset

__all__ = [
    "DictDataset",
    "TupleDataset",
]

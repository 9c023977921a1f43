"""Datasets' interface, and the conversion of batches into arrays."""

from __future__ import annotations

from fastiter.dataset.iterator import Iterator
from fastiter.dataset.mixin import DatasetMixin

__all__ = ["DatasetMixin", "Iterator"]

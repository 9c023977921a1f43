"""Iterators and datasets for other libraries' eyes: Chainer's Trainer, and PyTorch.

A library is imported when its function is first called.
"""

from __future__ import annotations

from fastiter.interop._chainer import as_chainer
from fastiter.interop._from_torch import from_torch
from fastiter.interop._torch import TorchIterator, as_torch

__all__ = ["TorchIterator", "as_chainer", "as_torch", "from_torch"]

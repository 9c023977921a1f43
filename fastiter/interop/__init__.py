"""Adapters of iterators for PyTorch, JAX and Chainer.

A function imports its library when it is first called. ImportError says what to install where that
does not work.
"""

from __future__ import annotations

import fastiter.iterators  # noqa: F401  (before modules in it: another thread may import it, too)
from fastiter.interop._chainer import as_chainer
from fastiter.interop._jax import JaxIterator, as_jax
from fastiter.interop._torch import TorchIterator, as_torch

__all__ = ["JaxIterator", "TorchIterator", "as_chainer", "as_jax", "as_torch"]

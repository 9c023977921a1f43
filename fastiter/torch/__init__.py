"""A data loader for PyTorch: torch's `DataLoader` over the ring of shared memory, with a state.

Change ``from torch.utils.data import DataLoader`` to ``from fastiter.torch import DataLoader``.
``import fastiter`` does not import this package, nor torch. It may import all packages but `_cli`.
"""

from __future__ import annotations

try:
    from torch.utils.data import default_collate, default_convert, get_worker_info
except ImportError as error:
    raise ImportError(
        f"fastiter.torch needs PyTorch 2.3 or newer: pip install torch ({error})"
    ) from error

import fastiter.iterators  # noqa: F401  (before modules in it: another thread may import it, too)
from fastiter.torch._loader import DataLoader
from fastiter.torch._orders.samplers import Batches, Order
from fastiter.torch._padding import PaddingCollator
from fastiter.torch._patch import Patch, as_default, patch

__all__ = [
    "Batches",
    "DataLoader",
    "Order",
    "PaddingCollator",
    "Patch",
    "as_default",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "patch",
]

"""Datasets whose examples are torch's tensors.

Where torch is not installed, tests that import this are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


class Tensors(torch.utils.data.Dataset):
    """Examples as datasets for torch's DataLoader give them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[Any, Any, int]:
        return torch.full((2, 3), float(i)), torch.tensor(i), i


class Views(torch.utils.data.Dataset):
    """Examples that are small parts of a large tensor."""

    def __init__(self, n: int = 40) -> None:
        self.data = torch.arange(float(n)).repeat_interleave(6).reshape(n, 2, 3)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Any:
        return self.data[i]


class LongRows(torch.utils.data.Dataset):
    """Row i: a tensor full of i, and i; longer from row to row if it grows."""

    def __init__(self, size: int, width: int, growth: int = 0) -> None:
        self.size, self.width, self.growth = size, width, growth

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return torch.full((self.width + i * self.growth,), i), i


def address(tensor_or_array: Any) -> int:
    if isinstance(tensor_or_array, np.ndarray):
        return int(tensor_or_array.__array_interface__["data"][0])
    return int(tensor_or_array.data_ptr())

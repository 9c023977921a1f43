from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastiter._ring.parent import Lease
from fastiter._ring.schema import _Node

__pyx_capi__: dict[str, object]  # what other compiled modules call

def read(
    lease: Lease, copy: bool, irregular: dict[int, Any] | None, without: set[int] | None = None
) -> list[Any]: ...
def grow(node: _Node, leaves: Iterator[Any]) -> Any: ...
def leaves(lease: Lease, copy: bool) -> list[NDArray[Any] | list[str | bytes]] | None: ...
def compact_rows(lease: Lease, rows: list[int]) -> None: ...
def columns(
    lease: Lease, copy: bool
) -> NDArray[Any] | tuple[NDArray[Any], ...] | dict[str | int, NDArray[Any]] | None: ...
def lengths(lease: Lease, number: int, max_length: int) -> NDArray[np.int64]: ...

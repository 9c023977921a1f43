from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastiter._ring.lease import Lease
from fastiter._ring.schema import _Node

__pyx_capi__: dict[str, object]  # what other compiled modules call

def read(
    lease: Lease, copy: bool, irregular: dict[int, Any] | None, without: set[int] | None = None
) -> list[Any]: ...
def grow(node: _Node, leaves: Iterator[Any]) -> Any: ...
def leaves(
    lease: Lease, copy: bool, of_array: Callable[[NDArray[Any]], Any]
) -> list[Any] | None: ...
def compact_rows(lease: Lease, rows: list[int]) -> None: ...
def columns(lease: Lease, copy: bool, as_list: Sequence[bool] = ()) -> Any: ...
def lengths(lease: Lease, number: int, max_length: int) -> NDArray[np.int64]: ...

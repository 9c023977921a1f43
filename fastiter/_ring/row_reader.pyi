from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastiter._ring.parent import Lease

__pyx_capi__: dict[str, object]  # what other compiled modules call

def read(
    lease: Lease, copy: bool, irregular: dict[int, Any] | None, without: set[int] | None = None
) -> list[Any]: ...
def compact_rows(lease: Lease, rows: list[int]) -> None: ...
def columns(
    lease: Lease, copy: bool
) -> NDArray[Any] | tuple[NDArray[Any], ...] | dict[str | int, NDArray[Any]] | None: ...
def lengths(lease: Lease, number: int, max_length: int) -> NDArray[np.int64]: ...

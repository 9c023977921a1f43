from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastiter._ring.lease import Lease
from fastiter._ring.row_reader import Schema

__pyx_capi__: dict[str, object]  # what other compiled modules call

def read(
    schema: Schema,
    lease: Lease,
    copy: bool,
    irregular: dict[int, Any] | None,
    without: set[int] | None = None,
) -> list[Any]: ...
def compact_rows(schema: Schema | None, lease: Lease, rows: list[int]) -> None: ...
def columns(
    schema: Schema, lease: Lease, converted: bool, copy: bool
) -> NDArray[Any] | tuple[NDArray[Any], ...] | dict[str | int, NDArray[Any]] | None: ...
def lengths(schema: Schema, lease: Lease, number: int, max_length: int) -> NDArray[np.int64]: ...

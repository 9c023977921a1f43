from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastiter._fetch.token_rows import RowPlanner, TokenSource

MOST_TOKENS: int
FIELDS: tuple[str, ...]

class TokenColumn:
    def __init__(
        self,
        planner: RowPlanner,
        field: str,
        *,
        width: int | None,
        shifts: bool,
        left: bool,
        pad: int,
        ignored: int,
        aligned: TokenSource | None = None,
        multiple: int = 1,
    ) -> None: ...
    planner: RowPlanner
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    def __len__(self) -> int: ...
    def values(self, numbers: NDArray[np.int64]) -> list[Any] | None: ...

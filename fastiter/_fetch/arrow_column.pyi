from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

class ArrowColumn:
    def __new__(cls, arrays: list[Any], layout: str, dtype: np.dtype[Any], *_: Any) -> Self: ...
    row_groups: Any
    def set_chunk(self, number: int, given: tuple[Any, Any]) -> None: ...
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    text: type | None
    def __len__(self) -> int: ...
    def take(self, indices: NDArray[np.int64]) -> NDArray[Any]: ...

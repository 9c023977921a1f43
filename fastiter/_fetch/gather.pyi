from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

class ColumnReader:
    def __new__(cls, mode: Any, keys: tuple[str, ...], columns: list[Any], *_: Any) -> Self: ...
    keys: tuple[str, ...] | None
    container: int
    delegates: tuple[tuple[Any, Any], ...]
    is_arrow: bool
    dtypes: list[np.dtype[Any]]
    def gather(self, indices: NDArray[np.int64]) -> Any: ...
    is_fixed: bool
    def gather_columns(
        self, indices: NDArray[np.int64], rules: list[Any]
    ) -> tuple[list[Any], list[NDArray[np.int64] | None]] | None: ...
    def specs(self) -> list[Any]: ...
    def outputs(self, n: int) -> list[NDArray[Any]] | None: ...
    def gather_part(
        self,
        outputs: list[NDArray[Any]],
        start: int,
        indices: NDArray[np.int64],
        n_batches: int = 1,
    ) -> bool: ...
    def batch(self, outputs: list[NDArray[Any]]) -> Any: ...
    def examples(self, indices: NDArray[np.int64]) -> list[Any] | None: ...

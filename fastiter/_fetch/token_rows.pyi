from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from fastiter._fetch.epoch_rows import EpochRows

EPOCH_SHIFT: int
OVERLONG: dict[str, int]
KINDS: tuple[str, ...]

class TokenSource:
    def __new__(
        cls,
        parts: list[NDArray[Any]],
        documents: list[tuple[Any, Any, int, int]] | None = None,
        bos: int | None = None,
        eos: int | None = None,
    ) -> Self: ...
    dtype: np.dtype[Any]
    n_tokens: int
    n_documents: int
    def lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def document(self, number: int) -> NDArray[Any]: ...

class RowPlanner:
    def __init__(
        self,
        source: TokenSource,
        method: str,
        length: int | None,
        *,
        stride: int = 1,
        window: int = 1,
        overlong: str = "split",
        borders: bool = True,
        drop_last: bool = False,
        words: tuple[int, int] | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> None: ...
    source: TokenSource
    epoch: int
    n_documents: int
    def rows_of(self, epoch: int) -> EpochRows: ...
    def n_rows(self, epoch: int | None = None) -> int: ...
    def segments(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]] | None: ...
    def n_tokens(self, rows: NDArray[np.int64]) -> int: ...
    def sums(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None: ...

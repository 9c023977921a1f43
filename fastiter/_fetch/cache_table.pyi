from typing import Any, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

HEAD_BYTES: int
ALL_ROWS: int

def start_of(length: int) -> int: ...

@final
class CacheTable:
    def __new__(
        cls,
        fd: int,
        length: int,
        limit: int,
        takes_memory: bool,
        has_sums: bool,
        is_private: bool,
    ) -> Self: ...
    fd: int
    is_private: bool
    limit: int
    stamp: int
    full: int
    def begin(self, end: int, used: int) -> None: ...
    def read(self, row: int, is_mapped: bool) -> tuple[int, memoryview] | None: ...
    def has(self, row: int, word: int) -> bool: ...
    def drop(self, row: int, word: int) -> None: ...
    def stores(self, row: int) -> bool: ...
    def store(
        self,
        row: int,
        size: int,
        start: npt.NDArray[np.uint8],
        buffers: list[tuple[int, memoryview]],
        signature: int = 0,
        fields: int = 0,
    ) -> bool: ...
    def clear(self) -> None: ...
    def is_first_to_tell(self, bit: int) -> bool: ...
    def count_hit(self) -> None: ...
    def count_miss(self, failed: bool, stored: bool, seconds: float) -> None: ...
    def present(self) -> npt.NDArray[np.bool_]: ...
    def counts(self) -> dict[str, Any]: ...

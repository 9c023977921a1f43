from collections.abc import Callable
from typing import Any, final

import numpy as np
import numpy.typing as npt

BLOCK: int
OPEN: int
SOURCES_MAX: int
SLOTS_MAX: int
TOTAL_MAX: int

@final
class Interleaving:
    def __new__(
        cls, weights: list[int], total: int, lags: list[int], size: int, last: int
    ) -> Interleaving: ...
    open_slots: list[int]
    def block(self, number: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]: ...
    def drawn(self) -> npt.NDArray[np.int64]: ...

def place(
    sources: npt.NDArray[np.uint16],
    counts: npt.NDArray[np.int64],
    part_of: Callable[[int, int, int], npt.NDArray[np.int64]],
) -> npt.NDArray[np.int64]: ...
def plan_buckets(
    lengths: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None,
    words: tuple[int, int],
    *,
    most_rows: int | None,
    most_tokens: int | None,
    num_ranks: int,
    window: int,
    drop_last: bool,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]: ...

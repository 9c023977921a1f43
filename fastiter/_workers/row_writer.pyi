from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from fastiter._fetch.column_rows import ColumnRows
from fastiter._ring.arena import WorkerRing
from fastiter._workers.batch_converter import BatchConverter

class RowWriter(ColumnRows):
    def __new__(
        cls,
        end: WorkerRing,
        dataset: Any,
        answer: Callable[[Any], tuple[int, Any]] | None = None,
        two_steps: bool = False,
        hedges: bool = False,
    ) -> Self: ...
    n_examples: int
    rows: list[int] | None
    indices: list[int]
    def key(self) -> tuple[tuple[int, int], int, int] | None: ...
    def claim(self) -> tuple[int, int]: ...
    def rows_before(self) -> NDArray[np.int64]: ...
    def run(self, batch_converter: BatchConverter | None, claims: int) -> None: ...

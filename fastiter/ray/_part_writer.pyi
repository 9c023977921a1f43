from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastiter._order.plan import Plan
from fastiter._ring.scheduler import BatchScheduler
from fastiter._workers.batch_converter import BatchConverter
from fastiter._workers.row_writer import RowWriter

_Place: TypeAlias = tuple[int, int, int]
_Bytes: TypeAlias = NDArray[np.uint8]
_Pieces: TypeAlias = tuple[list[_Bytes], _Bytes, int, bytes, list[tuple[int, int, int]]]

class PartWriter(RowWriter):
    batch_converter: BatchConverter | None
    def take(self, most_sleep: int, most: int) -> Any: ...  # rows, (), or None
    def leaves(self) -> bool: ...
    def is_promised(self, place: _Place, first: int, count: int) -> bool: ...
    def waits_since(self, since: int, index: int) -> None: ...
    def put(
        self,
        place: _Place,
        first: int,
        count: int,
        pieces: _Pieces | Exception,
        fetch_ns: int = 0,
    ) -> int: ...
    def fetch(self, ring: BatchScheduler, plan: Plan) -> _Pieces: ...

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

from fastiter._order.plan import Plan
from fastiter._ring.arena import WorkerRing
from fastiter._ring.parent import BatchScheduler
from fastiter._ring.schema import Schema, SlotWriter
from fastiter._ring.serialization import Packed
from fastiter._workers.batch_converter import BatchConverter

@disjoint_base
class RowWriter(SlotWriter):
    def __new__(
        cls,
        end: WorkerRing,
        dataset: Any,
        answer: Callable[[Any], Any] | None = None,
        two_steps: bool = False,
        hedges: bool = False,
    ) -> Self: ...
    @property
    def slot_schema(self) -> Schema | None: ...
    @property
    def n_examples(self) -> int: ...
    rows: list[int] | None
    counter: Any
    def key(self) -> tuple[tuple[int, int], int, int] | None: ...
    def own_seed(self) -> int: ...
    def claim(self) -> tuple[int, int]: ...
    def rows_before(self) -> NDArray[np.int64]: ...
    def wait_begins(self) -> None: ...
    def work(self, batch_converter: BatchConverter | None, claims: int) -> None: ...
    def pad_fields(self, steps: Sequence[tuple[Any, ...]], rows: list[int] | None) -> bool: ...
    def good_rows(self) -> list[int] | None: ...
    def examples(self, tolerates: bool) -> list[Any] | None: ...
    def put_result(self, packed: Packed, failed: bool) -> None: ...

_Place: TypeAlias = tuple[int, int, int]
_Bytes: TypeAlias = NDArray[np.uint8]
_Pieces: TypeAlias = tuple[list[_Bytes], _Bytes, int, bytes, list[tuple[int, int, int]]]

@disjoint_base
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

from collections.abc import Sequence
from typing import Any

from typing_extensions import Self

from fastiter._ring.arena import WorkerRing
from fastiter._ring.slot_rows import SlotRows

class ColumnRows(SlotRows):
    def __new__(cls, end: WorkerRing, dataset: Any, *_: Any) -> Self: ...
    def pad_fields(self, rules: Sequence[tuple[Any, ...]], rows: list[int] | None) -> bool: ...

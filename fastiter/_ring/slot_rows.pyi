from typing import Any

from typing_extensions import disjoint_base

from fastiter._ring.schema import Schema, SlotWriter
from fastiter._ring.serialization import Packed

@disjoint_base
class SlotRows(SlotWriter):
    @property
    def slot_schema(self) -> Schema | None: ...
    def good_rows(self) -> list[int] | None: ...
    def examples(self, tolerates: bool) -> list[Any] | None: ...
    def put_result(self, packed: Packed, failed: bool) -> None: ...

from typing import Any

from typing_extensions import disjoint_base

from fastiter._arena import Arena
from fastiter._parent_end import ParentEnd

__pyx_capi__: dict[str, object]  # what other compiled modules call

@disjoint_base
class Lease:
    @property
    def arena(self) -> Arena: ...
    @property
    def schema(self) -> Any: ...
    @property
    def rows(self) -> int: ...
    @property
    def places(self) -> list[int] | None: ...
    converted: bool
    def part(self, offset: int, size: int) -> memoryview: ...
    def seed(self, row: int, kind: int) -> int: ...

def view(ring: ParentEnd, slot: int, schema: Any, owning: bool, converted: bool) -> Lease: ...

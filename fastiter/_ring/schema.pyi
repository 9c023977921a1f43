import builtins
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from typing_extensions import Self, disjoint_base

from fastiter._ring.arena import WorkerRing

BARE: int
TUPLE: int
LIST: int
DICT: int
NAMED: int

MOST_FIELDS: int

ARRAY: int
RAGGED: int
INT: int
FLOAT: int
BOOL: int
SCALAR: int
OBJECT: int

COPYABLE: int
STACKABLE: int
NUMBER: int

def dtype_traits(dtype: np.dtype[Any]) -> int: ...
def is_plain_number(dtype: np.dtype[Any]) -> bool: ...

# Kind, dtype, and the shape (ARRAY) or the number of dimensions (RAGGED).
_Spec: TypeAlias = tuple[int, np.dtype[Any] | None, tuple[int, ...] | int | None]

@disjoint_base
class Schema:
    def __new__(
        cls,
        container: int,
        keys: Iterable[str | int] | builtins.type[tuple[Any, ...]] | None,
        specs: Iterable[_Spec],
        rows: int,
        subtypes: Mapping[int, int] | None = None,
    ) -> Self: ...
    @property
    def container(self) -> int: ...
    @property
    def keys(self) -> tuple[str | int, ...] | None: ...
    @property
    def type(self) -> builtins.type[tuple[Any, ...]] | None: ...
    @property
    def specs(self) -> tuple[_Spec, ...]: ...
    @property
    def dtypes(self) -> list[np.dtype[Any] | None]: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def has_ragged_fields(self) -> bool: ...
    @property
    def subtypes(self) -> dict[int, int]: ...
    def record(self) -> builtins.bytes: ...
    @staticmethod
    def load(record: builtins.bytes, rows: int) -> Schema: ...
    def of_rows(self, rows: int) -> Schema: ...
    def same_as(self, other: Schema) -> bool: ...

@disjoint_base
class ColumnWriter: ...

@disjoint_base
class SlotWriter(ColumnWriter):
    def __new__(cls, end: WorkerRing, *_: Any) -> Self: ...
    @property
    def end(self) -> WorkerRing: ...

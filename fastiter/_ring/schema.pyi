import builtins
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from typing_extensions import Self

from fastiter._ring.arena import WorkerRing

BARE: int
TUPLE: int
LIST: int
DICT: int
NAMED: int
TREE: int
ARRAY: int
RAGGED: int
INT: int
FLOAT: int
BOOL: int
SCALAR: int
OBJECT: int
TEXT: int
MOST_FIELDS: int

COPYABLE: int
STACKABLE: int

def dtype_traits(dtype: np.dtype[Any]) -> int: ...
def is_plain_number(dtype: np.dtype[Any]) -> bool: ...

# Kind, dtype, and the shape (ARRAY) or the number of dimensions.
_Spec: TypeAlias = tuple[int, np.dtype[Any] | None, tuple[int, ...] | int | None]

# Container, its keys or type, and for each of its values None or the container in its place.
_Node: TypeAlias = tuple[int, Any, tuple[Any, ...]]

class Schema:
    container: int
    keys: tuple[str | int, ...] | None
    type: builtins.type[tuple[Any, ...]] | None
    tree: _Node | None
    specs: tuple[_Spec, ...]
    subtypes: dict[int, int]
    dtypes: list[np.dtype[Any] | None]
    rows: int
    bytes: int
    has_lists: bool
    has_ragged_fields: bool
    def __new__(
        cls,
        container: int,
        keys: Iterable[str | int] | builtins.type[tuple[Any, ...]] | _Node | None,
        specs: Iterable[_Spec],
        rows: int,
        subtypes: Mapping[int, int] | None = None,
    ) -> Self: ...
    parts: tuple[Any, ...]
    def can_be_columns(self, as_list: Iterable[bool]) -> bool: ...

class RowSink:
    row: int

class SlotWriter(RowSink):
    end: WorkerRing
    def __new__(cls, end: WorkerRing, *_: Any) -> Self: ...

import builtins
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

from fastiter._ring import Lease, WorkerEnd
from fastiter._transport import Packed

BARE: int
TUPLE: int
LIST: int
DICT: int

ARRAY: int
RAGGED: int
INT: int
FLOAT: int
BOOL: int
SCALAR: int
OBJECT: int

ROW_OK: int
ROW_SPILL: int
ROW_ERROR: int
ROW_POISON: int

CONVERTED_FIELDS: int
CONVERTED_OBJECT: int
CONVERTER_ERROR: int
FINISH_POISON: int

# Kind, dtype, and the shape (ARRAY) or the number of dimensions (RAGGED).
_Spec: TypeAlias = tuple[int, np.dtype[Any] | None, tuple[int, ...] | int | None]

@disjoint_base
class Schema:
    def __new__(
        cls,
        container: int,
        keys: Iterable[str | int] | None,
        specs: Iterable[_Spec],
        rows: int,
    ) -> Self: ...
    @property
    def container(self) -> int: ...
    @property
    def keys(self) -> tuple[str | int, ...] | None: ...
    @property
    def specs(self) -> tuple[_Spec, ...]: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def packs_whole_examples(self) -> bool: ...
    @property
    def has_ragged_fields(self) -> bool: ...
    def record(self) -> builtins.bytes: ...
    @staticmethod
    def load(record: builtins.bytes, rows: int) -> Schema: ...
    def same_as(self, other: Schema) -> bool: ...
    def pad_fields(self, end: WorkerEnd, fills: list[NDArray[Any] | None]) -> bool: ...
    def read(self, lease: Lease, copy: bool, odd: dict[int, Any] | None) -> list[Any]: ...
    def columns(
        self, lease: Lease, converted: bool, copy: bool
    ) -> NDArray[Any] | tuple[NDArray[Any], ...] | dict[str | int, NDArray[Any]] | None: ...

@disjoint_base
class RowWriter:
    def __new__(cls, end: WorkerEnd, dataset: Any) -> Self: ...
    @property
    def end(self) -> WorkerEnd: ...
    @property
    def columns_complete(self) -> bool: ...
    @property
    def current_schema(self) -> Schema | None: ...
    def next(self) -> Literal["rows", "finish", "stop"]: ...
    def fill(self) -> None: ...
    def examples(self) -> list[Any] | None: ...
    def put_result(self, packed: Packed) -> None: ...
    def ready(self, flags: int) -> None: ...

def derive_schema(examples: Sequence[Any], rows: int) -> Schema: ...
def merge_schemas(a: Schema, b: Schema) -> Schema: ...
def hand_over(values: list[Any]) -> NDArray[Any] | None: ...

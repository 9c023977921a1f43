from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from fastiter._ring.schema import Schema

@final
class Position:
    row: int
    rows: int
    since: int
    is_lost: bool
    def __init__(self, is_limited: bool = False) -> None: ...
    def begin(self, row: int, rows: int) -> None: ...
    def end(self) -> None: ...
    def may_write(self) -> bool: ...
    def take_away(self, row: int, since: int) -> bool: ...

class CallCost:
    def note(self, rows: int, nanoseconds: int) -> None: ...
    def claim(self, n: int, left: int, share: int, even: int) -> int: ...

class BatchBuffer:
    def __new__(
        cls,
        rows: int,
        schema: Schema | None = None,
        in_place: Sequence[bool] = (),
        n_batches: int = 1,
    ) -> Self: ...
    stopped: bool
    field_plan: Any
    def fetch(
        self, dataset: Any, indices: NDArray[np.int64], first: int, stop: int, at: Position
    ) -> tuple[int, BaseException] | None: ...
    def put(self, first: int, examples: list[Any]) -> None: ...
    is_complete: bool
    fields: list[Any]
    def irregular(self) -> list[Any]: ...
    def examples(self) -> list[Any]: ...

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

TAILS: tuple[str, ...]

class Plan:
    indices: Any  # NDArray[np.int64]; None at the end, which most code has asked about before
    work: Any
    outcome: Any
    progress: Any
    n_dropped: int
    def __init__(
        self,
        indices: NDArray[np.int64] | None,
        state: Any,
        error: Exception | None = None,
        request: Any = None,
        worker: int = -1,
        *,
        origin: tuple[int, int, int] | None = None,
        first: int = -1,
        number: int = 0,
        n_valid: int | None = None,
        seeds: bytes | None = None,
        row_epochs: NDArray[np.int64] | None = None,
        keys: Any = None,
    ) -> None: ...
    request: Any
    worker: int
    seeds: bytes | None
    keys: Any
    state: Any
    error: Exception | None
    epoch: int
    position: int
    epoch_size: int
    first: int
    number: int
    n_rows: int
    def index_of(self, row: int) -> Any: ...
    def name_of(self, row: int) -> str: ...
    n_valid: int
    n_valid_dropped: int
    q: int
    slot: int
    schema: Any
    label: str
    def epoch_of(self, row: int) -> int: ...
    def epochs(self) -> NDArray[np.int64]: ...
    def values(self) -> tuple[tuple[Any, ...], dict[str, Any]]: ...

class PlanQueue:
    progress: Any
    epochs: Any
    former_size: int | None
    unordered: bool
    rank: int
    delivered_early: dict[int, Any]
    example_seed: tuple[int, int] | None
    def __init__(
        self,
        state: Any,
        batch_size: int,
        repeat: bool,
        progress: Any = None,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        drop_last: bool = False,
        tail: str = "pad",
    ) -> None: ...
    state: Any
    planned: Any
    batch_size: int
    repeat: bool
    num_ranks: int
    drop_last: bool
    tail: str
    delivered: Plan | None
    is_begun: bool
    plans: list[Plan]
    def begun_work(self) -> list[Any]: ...
    def peek(self) -> Plan: ...
    def overtakes(self) -> bool: ...
    def ahead(self) -> Plan: ...
    def advance(self, state: Any) -> Plan: ...
    def deliver(self) -> Plan: ...
    def rewind(self) -> None: ...
    def restart(
        self,
        state: Any,
        progress: Any = None,
        begin: Any = None,
        plans: Sequence[Plan] = (),
    ) -> None: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, given: dict[str, Any]) -> None: ...

def size_within(order: Any, stop: int) -> int: ...
def epoch_detail(state: Any) -> float: ...

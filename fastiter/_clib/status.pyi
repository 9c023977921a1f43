from collections.abc import Callable

from typing_extensions import Buffer

__pyx_capi__: dict[str, object]  # what other compiled modules call

START_ERROR_BYTES: int
LOADING: int
STARTING: int
FINISHING: int
PACKED_EXAMPLE: int
PACKED_ERROR: int
PACKED_RESULT: int
PACKED_FAILURE: int
WHOLE_BATCH: int
ROW_ERROR: int
ROW_POISON: int
CONVERTED_FIELDS: int
CONVERTED_OBJECT: int
CONVERTER_ERROR: int
FINISH_POISON: int

def now() -> float: ...
def memory_available() -> int: ...
def watch_parent(parent_pidfd: int, parent_death_pipe: int) -> None: ...
def die_with_parent(parent: int) -> None: ...
def exit_within(seconds: float, status: int) -> None: ...
def run_fork_handlers() -> None: ...
def checksum(data: Buffer, start: int, stop: int, seed: int) -> int: ...
def free_lock_at_fork(take_lock: Callable[[], object]) -> None: ...

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

def stack(examples: Iterable[Any], out: NDArray[Any] | None = None) -> NDArray[Any]: ...
def pad_stack(
    arrays: Iterable[Any], fill: Any, out: NDArray[Any] | None = None
) -> NDArray[Any]: ...
def has_read_only(batch: Sequence[Any]) -> bool: ...
def join_batch(batch: Any, copy: bool) -> Any: ...
def join_fields(
    batch: Sequence[Any],
    names: tuple[Any, ...] | None,
    rules: tuple[tuple[Any, int, int, bool, str | None, bool, Any], ...] | None,
    copy: bool,
) -> list[Any]: ...

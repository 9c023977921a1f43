from typing import Any

from numpy.typing import NDArray

def export_column(values: list[Any]) -> NDArray[Any] | None: ...
def join_delivered(
    batch: Any,
) -> NDArray[Any] | tuple[NDArray[Any], ...] | dict[Any, NDArray[Any]] | None: ...

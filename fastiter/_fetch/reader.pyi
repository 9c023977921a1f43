from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastiter._fetch.gather import ColumnReader
from fastiter._util.failures import Failure

class DatasetReader:
    def __init__(self, dataset: Any) -> None: ...
    columns: ColumnReader | None
    getter: Any
    is_current: bool
    def examples(
        self,
        indices: NDArray[np.int64],
        origin: Any,
        tolerates: bool = False,
        first: int = 0,
        stop: int | None = None,
    ) -> tuple[list[Any], list[Failure]]: ...

class ManyReader(DatasetReader):
    def __init__(self, dataset: Any, getter: Any) -> None: ...

def can_share_rows(keys: Any, most: int) -> bool: ...
def reader_of(dataset: Any) -> DatasetReader: ...

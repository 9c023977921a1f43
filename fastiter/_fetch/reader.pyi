from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from fastiter._fetch.dataset_access import PlainColumns
from fastiter._ring.schema import RowSink
from fastiter._util.failures import Failure

class ListSink(RowSink):
    def __new__(cls, indices: NDArray[np.int64], origin: Any, tolerates: bool) -> ListSink: ...
    found: list[Any]
    failures: list[Failure]

@disjoint_base
class DatasetReader:
    def __init__(self, dataset: Any) -> None: ...
    dataset: Any
    columns: PlainColumns | None
    getter: Any
    def fill(self, sink: RowSink, first: int, count: int) -> None: ...
    def examples(
        self, indices: NDArray[np.int64], origin: Any, tolerates: bool = False
    ) -> tuple[list[Any], list[Failure]]: ...

class ManyReader(DatasetReader): ...
class ColumnsReader(DatasetReader): ...

def reader_of(dataset: Any) -> DatasetReader: ...

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastiter._order.plan import PlanQueue

class TurnPlanQueue(PlanQueue):
    order: NDArray[np.int64] | int | None
    cutter: Any
    is_overtaking: bool
    counts_rows: bool
    def __init__(self, state: Any, n_workers: int, rows: int) -> None: ...
    n_workers: int
    rows: int

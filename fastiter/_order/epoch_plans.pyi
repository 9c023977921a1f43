from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastiter._order.plan import PlanQueue

class EpochPlanQueue(PlanQueue):
    def counted(self, order: Any, position: int, size: int) -> int: ...
    def share(self, left: int) -> int: ...
    def n_steps(self, cuts: NDArray[np.int64] | None, position: int, size: int) -> int: ...

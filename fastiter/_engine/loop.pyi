from collections.abc import Callable
from typing import Any

from typing_extensions import disjoint_base

from fastiter._order.plan import PlanQueue
from fastiter._stats.timer import Timer

@disjoint_base
class Loop:
    _lock: Any
    _count_tokens: Callable[[Any], int] | None
    _timer: Timer
    _planner: PlanQueue

    def _prepare(self, is_serial: bool) -> None: ...
    def _after_fork(self) -> None: ...
    def _refuse_inside_next(self, action: str) -> None: ...
    def __next__(self) -> Any: ...
    def _make_ahead(self) -> Any: ...
    def _pass_over(self) -> None: ...

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

def counted(start: int, stop: int) -> NDArray[np.int64]:
    """Count from ``start`` to below ``stop``: numpy.arange, in a fraction of its time."""

@disjoint_base
class Plan:
    """One batch to be, or the reason why there is none.

    Attributes
    ----------
    indices : int64[batch], contiguous; None at the end and with an error
    state : the state after this batch
    error : what the order sampler or ``len(dataset)`` raised, or None
    """

    def __init__(
        self, indices: NDArray[np.int64] | None, state: Any, error: Exception | None = None
    ) -> None: ...
    @property
    def indices(self) -> NDArray[np.int64] | None: ...
    @property
    def state(self) -> Any: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def is_batch(self) -> bool:
        """Whether there is a batch to fetch: neither the end nor an error."""

    def place(self, batch_size: int) -> tuple[int, int]:
        """Epoch in which the batch begins, and its number there."""

@disjoint_base
class PlanQueue:
    """Plans of batches ahead of the one delivered last.

    ``ahead`` and ``deliver`` see one and the same sequence of plans. A copy or pickle of a queue
    carries the plans that were not delivered, so its future equals the original's and the sampler
    is not asked again for orders that it has drawn.

    Not safe to call from two threads at a time.

    A subclass defines ``_advance(state)``, which gives the state after the next batch and its
    indices and may raise what belongs to that batch, and ``_note(state)``, which is told when a
    state with another number of orders drawn is installed.

    Parameters
    ----------
    state : State
        State of the batch delivered last.
    batch_size : int
        Examples in a batch, at least 1.
    repeat : bool
        Whether another epoch follows the first.
    """

    def __init__(self, state: Any, batch_size: int, repeat: bool) -> None: ...
    @property
    def state(self) -> Any:
        """State of the batch delivered last."""

    @property
    def batch_size(self) -> int: ...
    @property
    def repeat(self) -> bool: ...
    @property
    def is_begun(self) -> bool:
        """Whether anything was delivered since the start or `restart`; a copy begins anew."""

    def _advance(self, state: Any) -> tuple[Any, NDArray[np.int64] | None]: ...
    def _note(self, state: Any) -> None: ...
    def peek(self) -> Plan:
        """The next plan that `deliver` will take. Plans it if need be; raises nothing."""

    def ahead(self) -> Plan:
        """The next plan that `ahead` has not returned yet, which may be far beyond `peek`'s.

        Behind the end of the iteration, or an error, there is nothing to plan: that plan is
        returned again and again, and the sampler is left alone.
        """

    def deliver(self) -> Plan:
        """Take the oldest plan and install its state.

        Raises
        ------
        StopIteration
            At the end of the iteration.
        Exception
            What the order sampler or ``len(dataset)`` raised when this batch was planned, its
            StopIteration as a RuntimeError. The state stays as it is, and the next call plans
            this batch anew.
        """

    def pass_over(self) -> None:
        """Take the oldest plan, of which there is nothing to deliver.

        As `deliver`, but the state after the next batch then tells of both: the one passed over
        may have ended an epoch, and what was before it is what was before both.
        """

    def rewind(self) -> None:
        """Have `ahead` start over with the plan that `peek` gives."""

    def discard(self) -> None:
        """Forget all plans ahead and the orders drawn for them."""

    def restart(self, state: Any) -> None:
        """Go on from ``state``; what was planned ahead is forgotten."""

    def copy(self) -> Self:
        """A queue with the same future, which shares sampler and dataset with this one."""

    def __copy__(self) -> Self: ...
    def __getstate__(self) -> dict[str, Any]: ...
    def __setstate__(self, given: dict[str, Any]) -> None: ...

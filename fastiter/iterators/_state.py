"""Epochs as data: the state of an iteration, the rule that advances it, and plans ahead.

``advance`` maps a state to the state after one batch and the indices of that batch, and has no
memory of its own. ``Planner`` follows it ahead of time and keeps what came of it, so that the
state a user sees (and a snapshot saves) is always that of the batch delivered last, however
many batches were planned beyond it. Batches that end before their epoch does are planned by
`fastiter._order.plan`, which comes to the same in less time. All of this runs in the thread that
calls the iterator, the user's order sampler included.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fastiter._order.plan import Plan, PlanQueue, counted
from fastiter.iterators._seeded_sampler import is_seeded

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter.iterators._seeded_sampler import SeededSampler

__all__ = ["Plan", "Planner", "State", "advance", "initial_state"]

Indices: TypeAlias = "npt.NDArray[np.int64]"
#: int64[n], or an object with ``len()`` whose slices are one-dimensional integer arrays.
Order = Any
OrderSamplerFunction = Callable[[Order, int], Any]


class State(NamedTuple):
    """Where an iteration stands: everything that a snapshot has to hold."""

    position: int  #: examples of the current epoch already delivered, 0 <= position < epoch_size
    epoch: int  #: completed epochs
    is_new_epoch: bool  #: whether the last batch completed an epoch
    order: Order | None  #: the current epoch's order; None: 0, 1, 2, ... epoch_size - 1
    epoch_size: int  #: examples in the current epoch
    previous_epoch_detail: float | None  #: epoch_detail one batch before; None before the first
    n_drawn: int = 0  #: orders drawn by number so far, ``order`` included; 0: none are

    @property
    def epoch_detail(self) -> float:
        """Epochs delivered so far, with the fraction of the current one."""
        return self.epoch + self.position / self.epoch_size


class Place(NamedTuple):
    """Where a batch belongs, for messages."""

    epoch: int
    batch: int  #: its number in the epoch in which it begins

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.batch}"


def dataset_length(dataset: Any) -> int:
    """Length of ``dataset``.

    Raises
    ------
    TypeError, ValueError
        If ``dataset`` has no length, or none that is an integer from 0 to ``sys.maxsize``. What
        else its ``__len__`` raises passes through.
    """
    try:
        return len(dataset)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"dataset must have a length from 0 to {sys.maxsize}, but len() of this "
            f"{type(dataset).__qualname__} raised {type(error).__name__}: {error}"
        ) from error


def initial_state(
    order_sampler: OrderSamplerFunction | None,
    dataset_len: Callable[[], int],
    number: int | None = None,
) -> State:
    """State before the first batch: asks the sampler for the first epoch's order.

    Parameters
    ----------
    order_sampler, dataset_len
        See `advance`.
    number : int, optional
        Number of the order, of a sampler whose orders have numbers; by default the sampler tells.

    Raises
    ------
    ValueError
        If the epoch would be empty, or the sampler's result is no order of this dataset.
    """
    size = dataset_len()
    is_empty = size == 0
    order = None
    n_drawn = 0
    if is_seeded(order_sampler):
        number = order_sampler._upcoming() if number is None else number
        order = seeded_order(order_sampler, number, size, size)
        size = len(order)
        n_drawn = number + 1
    elif order_sampler is not None:
        if _gives_fresh_orders(order_sampler):
            drawn = order_sampler(range(size), 0)
        else:
            drawn = order_sampler(np.arange(size, dtype=np.int64), 0)
        order = checked_order(drawn, size, copy=not _gives_fresh_orders(order_sampler))
        size = len(order)
    if size == 0:
        raise ValueError(
            "an epoch must have at least one example: "
            + ("dataset is empty" if is_empty else "order_sampler returned an empty order")
        )
    return State(0, 0, False, order, size, None, n_drawn)


def advance(
    state: State,
    batch_size: int,
    repeat: bool,
    order_sampler: OrderSamplerFunction | None,
    dataset_len: Callable[[], int],
) -> tuple[State, Indices | None]:
    """Take one batch from ``state``.

    With ``repeat`` a batch that reaches the end of an epoch goes on in the next one; without,
    the last batch is short and nothing follows it. A batch that ends exactly on an epoch's end
    completes that epoch. Whenever an epoch ends (also the last one, and several times in a
    batch longer than the epoch) the sampler is called with the ended order and the position at
    which the batch started in it.

    Parameters
    ----------
    state : State
        The state to advance; it is not changed.
    batch_size : int
        Examples in a batch, at least 1.
    repeat : bool
        Whether another epoch follows the first.
    order_sampler : callable or None
        Called as ``order_sampler(current_order, current_position)``.
    dataset_len : callable
        Gives the dataset's length; called at the end of an epoch.

    Returns
    -------
    tuple of State and int64[<= batch_size] or None
        The state after the batch and its indices; None at the end of the iteration.

    Raises
    ------
    ValueError
        If the sampler returns something that is no order of the same size and of this dataset.
        What the sampler or ``len(dataset)`` raise passes through.
    MemoryError
        If there is none for the indices of a batch that is longer than its epoch.
    """
    if not repeat and state.epoch > 0:
        return state._replace(previous_epoch_detail=state.epoch_detail), None

    position, epoch, _, order, size, _, n_drawn = state
    detail = epoch + position / size
    is_new_epoch = False
    goes_on = repeat and batch_size > size - position
    indices = np.empty(batch_size, dtype=np.int64) if goes_on else None
    done = 0
    while True:
        stop = min(position + batch_size - done, size)
        piece = _take(order, position, stop, dataset_len)
        if indices is None:
            indices = piece
        else:
            indices[done : done + len(piece)] = piece
        done += len(piece)
        if stop < size:
            position = stop
            break
        if order is not None:
            if is_seeded(order_sampler):
                order = seeded_order(order_sampler, n_drawn, size, dataset_len(), size=size)
                n_drawn += 1
            else:
                order = _next_order(order_sampler, order, position, dataset_len())
        elif repeat:
            size = dataset_len()
            if size == 0:
                raise ValueError("dataset has become empty: no example for the next epoch")
        position = 0
        epoch += 1
        is_new_epoch = True
        if not repeat or done == batch_size:
            break

    return State(position, epoch, is_new_epoch, order, size, detail, n_drawn), indices


def seeded_order(
    sampler: SeededSampler,
    number: int,
    order_size: int,
    dataset_size: int,
    *,
    size: int | None = None,
) -> Order:
    """Draw the order of that number; ``size`` is the length that it must have.

    Raises
    ------
    ValueError
        If it is of another length, or of more examples than the dataset has.
    """
    drawn = sampler._draw(sampler._population(order_size, dataset_size), number)
    return checked_order(drawn, dataset_size, size=size, copy=False)


def checked_order(
    order: Any,
    dataset_size: int,
    *,
    size: int | None = None,
    copy: bool = True,
    source: str = "order_sampler",
) -> Order:
    """Check that ``order`` is an order of a dataset, and make it ours.

    Parameters
    ----------
    order : array-like of int, or virtual order
        A virtual order is an object with ``len()`` and slicing and without ``__array__``; its
        slices are checked when they are taken. If it has an ``index_bound``, its indices are below
        that and its slices arrays of their own, int64, and need no check.
    dataset_size : int
        Indices must lie in 0 .. dataset_size - 1.
    size : int, optional
        The length that the order must have.
    copy : bool
        False if nobody else holds or changes the array.
    source : str
        What gave the order, for the text of errors.

    Returns
    -------
    int64[n], read-only, or the virtual order itself

    Raises
    ------
    ValueError
        If it is no one-dimensional order of integers in range, or of another size.
    """
    if is_virtual(order):
        checked = order
        bound = getattr(order, "index_bound", 0)
        if bound > dataset_size:
            raise ValueError(
                f"{source} gave an order of {bound} examples, but the dataset has {dataset_size}"
            )
    else:
        checked = _integer_array(order, source)
        _check_range(checked, dataset_size, source)
        checked = (
            np.array(checked, dtype=np.int64, copy=True)
            if copy
            else checked.astype(np.int64, copy=False)
        )
        checked.flags.writeable = False
    if size is not None and len(checked) != size:
        raise ValueError(
            f"{source} gave an order of {len(checked)} indices where {size} were expected: "
            "the size of the order must stay the same"
        )
    return checked


def _take(order: Order | None, start: int, stop: int, dataset_len: Callable[[], int]) -> Indices:
    """Indices at the positions start .. stop - 1 of an epoch, as an array of its own."""
    if order is None:
        return counted(start, stop)
    if isinstance(order, np.ndarray):
        return order[start:stop].copy()
    if hasattr(order, "index_bound"):
        return order[start:stop]  # type: ignore[no-any-return]
    piece = _integer_array(order[start:stop], "a slice of the order")
    if len(piece) != stop - start:
        raise ValueError(
            f"a slice of the order has {len(piece)} indices where {stop - start} were expected"
        )
    _check_range(piece, dataset_len(), "a slice of the order")
    return np.array(piece, dtype=np.int64, copy=True)


def _next_order(
    order_sampler: OrderSamplerFunction | None, order: Order, position: int, dataset_size: int
) -> Order:
    if order_sampler is None:
        raise ValueError("the state has an order, but there is no order_sampler for the next one")
    fresh = _gives_fresh_orders(order_sampler)
    # A sampler of the user's may shuffle what it is given in place, or keep what it returns:
    # the order of the batch delivered last must survive both.
    current = order if fresh or not isinstance(order, np.ndarray) else order.copy()
    drawn = order_sampler(current, position)
    return checked_order(drawn, dataset_size, size=len(order), copy=not fresh)


def _gives_fresh_orders(order_sampler: OrderSamplerFunction) -> bool:
    """Whether this very class promises to only measure its argument and to keep no result.

    The promise is not inherited: a subclass may do what it likes in its ``__call__``.
    """
    return bool(vars(type(order_sampler)).get("_gives_fresh_orders", False))


def is_virtual(order: Any) -> bool:
    """Whether ``order`` computes its slices, rather than being an array or array-like."""
    return (
        hasattr(order, "__len__")
        and hasattr(order, "__getitem__")
        and not hasattr(order, "__array__")
        and not isinstance(order, (list, tuple, range, str, bytes, bytearray, memoryview))
        and not isinstance(order, Mapping)
    )


def _integer_array(order: Any, source: str) -> npt.NDArray[Any]:
    expected = f"{source} must give a one-dimensional array of integers"
    try:
        array = np.asarray(order)
    except Exception as error:
        raise ValueError(f"{expected}, not {type(order).__qualname__}: {error}") from error
    if array.ndim != 1:
        raise ValueError(f"{expected}, not {type(order).__qualname__} of shape {array.shape}")
    if array.size == 0 and isinstance(order, (list, tuple)):
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{expected}, not of dtype {array.dtype}")
    return array


def _check_range(array: npt.NDArray[Any], dataset_size: int, source: str) -> None:
    if array.size == 0:
        return
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= dataset_size:
        seen = low if low < 0 else high
        raise ValueError(
            f"{source} gave the index {seen}, outside 0 .. {dataset_size - 1} "
            f"(dataset length {dataset_size})"
        )


class Planner(PlanQueue):
    """Plans batches ahead of the one delivered last, by `advance`.

    Parameters
    ----------
    state : State
        State of the batch delivered last.
    batch_size, repeat, order_sampler, dataset_len
        See `advance`.
    """

    def __init__(
        self,
        state: State,
        *,
        batch_size: int,
        repeat: bool,
        order_sampler: OrderSamplerFunction | None,
        dataset_len: Callable[[], int],
    ) -> None:
        super().__init__(state, operator.index(batch_size), repeat)
        self._order_sampler = order_sampler
        self._dataset_len = dataset_len
        self._note(state)

    if TYPE_CHECKING:

        @property
        def state(self) -> State: ...

    @property
    def is_past_start(self) -> bool:
        """Whether an iteration that begins now has to be reset first, to be a whole epoch.

        Without ``repeat`` that is so after the end, and after a loop that was left early. A loaded
        state, a copy and an unpickled iterator go on from where they are, unless that is the end.
        """
        return not self.repeat and (self.is_begun or self.state.epoch > 0)

    @property
    def has_ended(self) -> bool:
        """Whether no batch follows the one delivered last."""
        return not self.repeat and self.state.epoch > 0

    def _advance(self, state: State) -> tuple[State, Indices | None]:
        return advance(state, self.batch_size, self.repeat, self._order_sampler, self._dataset_len)

    def _note(self, state: State) -> None:
        if is_seeded(self._order_sampler):
            self._order_sampler._note(state.n_drawn)

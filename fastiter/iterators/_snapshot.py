"""Snapshots: exchange of an iteration's state with a serializer of Chainer's protocol.

A serializer is called as ``serializer(key, value)`` to save as well as to load, and does not
say which of the two it does. Saving returns the value given; loading returns what was stored,
turned into the type of the value given. An array given is overwritten in place, with
broadcasting, so an order is asked for with None, which returns what was stored as it is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from fastiter.iterators._state import Order, State, checked_order

_ORDER_KEYS = ("order", "_order")  # the second is that of older files
_UNTOUCHED = -2  # in no order that was ever stored


class _Absent:
    """Marks a key that the snapshot does not have."""


_ABSENT = _Absent()


def exchange(
    serializer: Callable[[str, Any], Any],
    state: State,
    *,
    batch_size: int,
    dataset_len: Callable[[], int],
) -> State | None:
    """Save ``state`` to a serializer, or load another one from it.

    Keys: current_position, epoch, is_new_epoch, order (int64[n], or -1 where the iteration has
    no order) and previous_epoch_detail (-1 before the first batch).

    Returns
    -------
    State or None
        The state loaded, complete and checked; None if the serializer saves.

    Raises
    ------
    ValueError
        If what is loaded lacks a key or cannot be a state of this iteration.
    """
    # A float made here, so that identity tells whether it was stored or replaced.
    detail = _stored_detail(state) * 1.0
    stored = {"previous_epoch_detail": _ask(serializer, "previous_epoch_detail", detail)}
    current = {
        "current_position": state.position,
        "epoch": state.epoch,
        "is_new_epoch": state.is_new_epoch,
    }
    for key, value in current.items():
        stored[key] = _ask(serializer, key, value)
    if _is_saving(serializer, stored, {**current, "previous_epoch_detail": detail}):
        serializer("order", -1 if state.order is None else _saved_order(state.order))
        return None
    for key, value in stored.items():
        # Once more, as it was stored: int() has made 3 of a 3.7, and bool() True of a NaN.
        raw = None if value is _ABSENT else _ask(serializer, key, None)
        stored[key] = value if raw is None or raw is _ABSENT else raw
    return _loaded(serializer, stored, state, batch_size, dataset_len())


def _saved_order(order: Order) -> Any:
    return order if isinstance(order, np.ndarray) else np.asarray(order[:], dtype=np.int64)


def _stored_detail(state: State) -> float:
    return -1.0 if state.previous_epoch_detail is None else state.previous_epoch_detail


def _is_saving(serializer: Any, stored: dict[str, Any], given: dict[str, Any]) -> bool:
    loads, saves = hasattr(serializer, "load"), hasattr(serializer, "save")
    if loads != saves:  # Chainer's own, and those derived from its base classes
        return saves
    if all(value is None for value in stored.values()):
        return True  # a plain function that keeps what it is given
    same = stored["previous_epoch_detail"] is given["previous_epoch_detail"]
    return same and all(stored[key] is value for key, value in given.items())


def _loaded(
    serializer: Any, stored: dict[str, Any], state: State, batch_size: int, dataset_size: int
) -> State:
    order = _loaded_order(_ask_order(serializer, state.order), state.order, dataset_size)
    size = dataset_size if order is None else len(order)
    position = _loaded_int(stored, "current_position")
    epoch = _loaded_int(stored, "epoch")
    is_new_epoch = _loaded_int(stored, "is_new_epoch")
    if position >= size:
        raise ValueError(
            f"the snapshot's current_position is {position}, beyond the epoch's {size} examples"
        )
    if is_new_epoch > 1:
        raise ValueError(f"the snapshot's is_new_epoch is {is_new_epoch}, neither True nor False")
    loaded = State(position, epoch, bool(is_new_epoch), order, size, None)
    return loaded._replace(
        previous_epoch_detail=_loaded_detail(stored["previous_epoch_detail"], loaded, batch_size)
    )


def _loaded_order(stored: Any, current: Order | None, dataset_size: int) -> Order | None:
    if stored is _ABSENT and current is not None:
        raise ValueError("the snapshot has no order, but this iterator shuffles: set shuffle=False")
    if stored is _ABSENT or stored is current:
        return current
    array = np.asarray(stored)
    without = array.dtype == object or (array.size == 1 and array.ravel()[0] == -1)
    if current is None:
        if not without:
            raise ValueError(
                f"the snapshot has an order of {array.size} indices, but this iterator goes "
                "through the dataset in the order of indices: set shuffle=None or an order_sampler"
            )
        return None
    if without:
        raise ValueError(
            "the snapshot was saved without an order (shuffle=False), but this iterator has one"
        )
    return checked_order(array, dataset_size, size=len(current), source="the snapshot")


def _loaded_int(stored: dict[str, Any], key: str) -> int:
    value = stored[key]
    if value is _ABSENT:
        raise ValueError(f"the snapshot has no {key!r}")
    try:
        number = operator.index(np.asarray(value).item() if not isinstance(value, int) else value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the snapshot's {key} is {value!r}, which is no integer") from error
    if number < 0:
        raise ValueError(f"the snapshot's {key} is {number}, below 0")
    return number


def _loaded_detail(stored: Any, loaded: State, batch_size: int) -> float | None:
    if stored is _ABSENT:  # older files: as if the last batch had been a full one
        if loaded.epoch_detail == 0:
            return None
        return max(0.0, loaded.epoch + (loaded.position - batch_size) / loaded.epoch_size)
    if stored is None:
        return None
    try:
        detail = float(stored)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the snapshot's previous_epoch_detail is {stored!r}, which is no number"
        ) from error
    if not math.isfinite(detail):
        raise ValueError(f"the snapshot's previous_epoch_detail is {detail}, which is not finite")
    return None if detail < 0 else detail


def _ask(serializer: Callable[[str, Any], Any], key: str, value: Any) -> Any:
    try:
        return serializer(key, value)
    except KeyError:
        return _ABSENT
    except (TypeError, OverflowError) as error:
        # A deserializer's refusal to turn what is stored into the type of our value.
        raise ValueError(f"the snapshot's {key} cannot be read: {error}") from error


def _ask_order(serializer: Callable[[str, Any], Any], current: Order | None) -> Any:
    """What is stored as the order; ``current`` if the serializer was told to leave it alone."""
    answered = []
    for key in _ORDER_KEYS:
        stored = _ask(serializer, key, None)
        if stored is not None and stored is not _ABSENT:
            return stored
        if stored is None:
            answered.append(key)
    if current is None:
        return _ABSENT
    # None is what was stored, or the answer of a lenient deserializer that has no such key and
    # returns what it is given: an array of ours comes back untouched in the second case only.
    for key in answered:
        probe = np.full(len(current), _UNTOUCHED, dtype=np.int64)
        if _ask(serializer, key, probe) is probe and (probe == _UNTOUCHED).all():
            continue
        return -1
    return current if answered else _ABSENT

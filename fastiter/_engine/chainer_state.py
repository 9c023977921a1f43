"""Exchange of an iteration's record with a serializer of Chainer's protocol.

A serializer is called as ``serializer(key, value)`` to save as well as to load, and does not
say which of the two it does. Saving returns the value given; loading returns what was stored,
turned into the type of the value given. An array given is overwritten in place, with
broadcasting, so an order is asked for with None, which returns what was stored as it is.

Keys: current_position, epoch, is_new_epoch, order (int64[n], or -1 where the iteration has no
order), previous_epoch_detail (-1 before the first batch), example_seed (int64[2]), cuts (JSON,
uint8[n]); where orders have numbers also order_sampler (int64[7]), with ``on_error`` skipped (JSON,
uint8[n]). Of a `StreamDataset` stream (JSON, uint8[n]) in place of order, seed and cuts. An order
that is computed as it is read has the record of its sampler in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastiter._plan.drawing import is_virtual
from fastiter._plan.epoch_sampler import RECORD_SIZE, SamplerRecord
from fastiter._plan.record import ABSENT, VERSION, check_version, record_of, unreadable

if TYPE_CHECKING:
    from fastiter._plan.epochs import Planner

_NUMBERS = {"current_position": "position", "epoch": "epoch", "is_new_epoch": "is_new_epoch"}
_DETAIL = "previous_epoch_detail"
_OTHERS = ("stream", "cuts", "order_sampler", "example_seed", "skipped")
_ORDER_KEYS = ("order", "_order")  # the second in snapshots of Chainer's MultithreadIterator
_MISSING = ("delivered", "of_all_ranks")  # entries of a record's ``missing``, among the cuts
_UNTOUCHED = -2  # in no order that was ever stored


def exchange(serializer: Callable[[str, Any], Any], planner: Planner) -> dict[str, Any] | None:
    """Save a planner's state to a serializer, or return the record that the serializer loads."""
    state = planner.state
    # A float made here, so that identity tells whether it was stored or replaced. A constant would
    # be the one that an earlier call has stored.
    detail = (-1.0 if state.previous_epoch_detail is None else state.previous_epoch_detail) * 1.0
    stored = {_DETAIL: _ask(serializer, _DETAIL, detail)}
    given = {key: getattr(state, name) for key, name in _NUMBERS.items()}
    for key, value in given.items():
        stored[key] = _ask(serializer, key, value)
    if _is_saving(serializer, stored, {**given, _DETAIL: detail}):
        _save(serializer, planner)
        return None
    for key, value in stored.items():
        # Once more, as it was stored: int() has made 3 of a 3.7, and bool() True of a NaN.
        raw = None if value is ABSENT else _ask(serializer, key, None)
        stored[key] = value if raw is None or raw is ABSENT else raw
    stored |= {key: _ask(serializer, key, None) for key in _OTHERS}
    stored["order"] = _ask_order(serializer, state.order)
    return as_record({key: value for key, value in stored.items() if value is not ABSENT})


def as_record(state_dict: Any) -> dict[str, Any]:
    """The record that ``state_dict()`` has returned, or of a mapping with a serializer's keys."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"state_dict must be a dict, as state_dict() returns it, not {state_dict!r} of type "
            f"{type(state_dict).__qualname__}"
        )
    if "kind" in state_dict:
        return dict(state_dict)
    stored = {key: value for key, value in state_dict.items() if value is not None}
    record: dict[str, Any] = {"version": VERSION, "kind": "epochs"}
    for key, name in _NUMBERS.items():
        if key not in state_dict:
            raise ValueError(f"the snapshot has no {key!r}")
        record[name] = state_dict[key]
    record |= {_DETAIL: state_dict[_DETAIL]} if _DETAIL in state_dict else {}
    if "stream" in stored:
        record |= {**_parted("stream", stored), "kind": "sources"}
    elif "cuts" in stored:
        record |= _parted("cuts", stored)
        missing = {key: record["cut"].pop(key) for key in _MISSING if key in record["cut"]}
        record |= {"missing": missing} if missing else {}
    sampled, order = (stored.get(key, ABSENT) for key in ("order_sampler", "order"))
    order = stored.get("_order", ABSENT) if order is ABSENT else order
    if sampled is ABSENT or _is_record(order):
        record |= {} if order is ABSENT else {"order": order}
    elif _is_record(sampled):
        record |= {"order": sampled} if order is ABSENT else {"order": sampled, "drawn": order}
    else:
        raise ValueError("the snapshot's order_sampler is damaged")
    record["seed"], record["skipped"] = stored.get("example_seed"), _of_json("skipped", stored)
    return record


def as_records(state_dict: Any) -> dict[str, Any] | list[dict[str, Any]]:
    """The record of a state, or those of a list of all ranks' states."""
    if not isinstance(state_dict, (list, tuple)):
        return as_record(state_dict)
    if not state_dict or not all(isinstance(state, Mapping) for state in state_dict):
        raise TypeError(
            "state_dict must be a dict, as state_dict() returns it, or a list of one for each "
            f"rank, not {state_dict!r:.80}"
        )
    return [as_record(state) for state in state_dict]


def _save(serializer: Callable[[str, Any], Any], planner: Planner) -> None:
    if planner.delivered_early or planner.is_filling:
        raise ValueError(
            "batches have overtaken others (in_order=False), which a snapshot has no room for: "
            "use state_dict(), or save where no batch is missing"
        )
    record, state = record_of(planner), planner.state
    head = {"version": VERSION, "step": state.step}
    if "stream" in record:
        serializer("stream", _as_bytes({**head, **record["stream"]}))
    else:
        order = record["order"]
        if isinstance(order, list):  # a sampler's record
            sampled = np.array(order, dtype=np.int64)
            if isinstance(state.order, np.ndarray) and state.cuts is None:
                serializer("order", state.order)
                serializer("order_sampler", sampled)
            else:
                serializer("order", sampled)
        else:
            serializer("order", -1 if order is None else order)
        serializer("example_seed", np.array(record["seed"]))
        serializer("cuts", _as_bytes({**head, **record["cut"]}))
    if "skipped" in record:
        serializer("skipped", _as_bytes(record["skipped"]))


def _as_bytes(saved: Any) -> Any:
    import json  # here, so that importing fastiter stays fast

    return np.frombuffer(json.dumps(saved, separators=(",", ":")).encode(), dtype=np.uint8)


def _is_saving(serializer: Any, stored: dict[str, Any], given: dict[str, Any]) -> bool:
    loads, saves = hasattr(serializer, "load"), hasattr(serializer, "save")
    if loads != saves:  # Chainer's own, and those derived from its base classes
        return saves
    if all(value is None for value in stored.values()):
        return True  # a plain function that keeps what it is given
    return all(stored[key] is value for key, value in given.items())


def _is_record(order: Any) -> bool:
    is_array = order is not ABSENT and not is_virtual(order)
    return is_array and SamplerRecord.of(order) is not None


def _parted(key: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """An entry without its version, which is checked, and its step, which stands beside it."""
    try:
        entry = dict(_of_json(key, stored))
    except (TypeError, ValueError) as error:
        raise unreadable(key, error) from error
    check_version(entry.pop("version", None))
    return {"step": entry.pop("step", None), key.removesuffix("s"): entry}


def _ask(serializer: Callable[[str, Any], Any], key: str, value: Any) -> Any:
    try:
        return serializer(key, value)
    except KeyError:
        return ABSENT
    except (TypeError, OverflowError) as error:
        # A deserializer's refusal to turn what is stored into the type of our value.
        raise ValueError(f"the snapshot's {key} cannot be read: {error}") from error


def _of_json(key: str, stored: Mapping[str, Any]) -> Any:
    """An entry that was stored as JSON in an array of bytes, or as it is; None if there is none."""
    value = stored.get(key)
    if value is None or isinstance(value, Mapping):
        return value
    try:
        array = np.asarray(value)
        if array.dtype != np.uint8 or array.ndim != 1:
            raise ValueError(f"an array of shape {array.shape} and dtype {array.dtype}")
        import json

        return json.loads(array.tobytes())
    except (TypeError, ValueError) as error:
        raise unreadable(key, error) from error


def _ask_order(serializer: Callable[[str, Any], Any], current: Any) -> Any:
    """Stored order; ``current`` if the serializer leaves it alone."""
    answered = []
    for key in _ORDER_KEYS:
        stored = _ask(serializer, key, None)
        if stored is not None and stored is not ABSENT:
            return stored
        if stored is None:
            answered.append(key)
    if current is None:
        return ABSENT
    # None is what was stored, or the answer of a lenient deserializer that has no such key and
    # returns what it is given: an array of ours comes back untouched in the second case only.
    for key in answered:
        n_probed = RECORD_SIZE if is_virtual(current) else len(current)
        probe = np.full(n_probed, _UNTOUCHED, dtype=np.int64)
        if _ask(serializer, key, probe) is probe and (probe == _UNTOUCHED).all():
            continue
        return -1
    return current if answered else ABSENT

"""Snapshots: exchange of an iteration's state with a serializer of Chainer's protocol.

A serializer is called as ``serializer(key, value)`` to save as well as to load, and does not
say which of the two it does. Saving returns the value given; loading returns what was stored,
turned into the type of the value given. An array given is overwritten in place, with
broadcasting, so an order is asked for with None, which returns what was stored as it is.

Of a sampler whose orders have numbers, the snapshot has a record of sampler and number besides,
from which this order and the ones that follow are drawn again. Where the order is computed as it is
read, the record stands in the order's place.
"""

from __future__ import annotations

import binascii
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastiter._order.plan import size_within
from fastiter.iterators._skips import KEY as SKIPS_KEY
from fastiter.iterators._skips import SkipState
from fastiter.iterators._state import (
    Anchor,
    Holes,
    Order,
    Planner,
    State,
)
from fastiter.iterators.samplers._drawing import (
    checked_order,
    draw_epoch,
    examples_of,
    is_virtual,
)
from fastiter.iterators.samplers.epoch_sampler import (
    RECORD_SIZE,
    Cutting,
    EpochSampler,
    SamplerRecord,
    digest_of,
    is_epoch_sampler,
)
from fastiter.iterators.samplers.mixture import MixtureOrderSampler
from fastiter.iterators.samplers.shuffle import gives_permutations

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter._order.example_context import Seed

_KEYS = ("current_position", "epoch", "is_new_epoch", "previous_epoch_detail")
_ORDER_KEYS = ("order", "_order")  # the second in snapshots of Chainer's MultithreadIterator
_RECORD_KEY = "order_sampler"
SEED_KEY = "example_seed"
CUTS_KEY = "cuts"
_STREAM_KEY = "stream"
_CUTS_VERSION = 1
DELIVERED_KEY = "delivered"  # a bit for each step from that of the state on
WINDOW_KEY = "window"  # one at the position or before it, and the rows before it
DEFAULTS = {
    "batch_size": None,
    "num_ranks": 1,
    "repeat": True,
    "drop_last": False,
    "tail": "pad",
}
_NO_BATCHES = "the snapshot was saved without a batch_sampler, but this iterator has one"
_MOST_SIZES = 16  # of a mixture's sources, which a state tells
_UNTOUCHED = -2  # in no order that was ever stored
_ABSENT: Any = object()  # what a key has that is not in the snapshot


class Snapshot(NamedTuple):
    """Content of a snapshot."""

    state: State
    seed: Seed
    skips: SkipState | None  #: None if examples are not skipped
    anchor: Anchor
    recut: tuple[int, tuple[Cutting, ...]] | None = None  #: `Planner.recut`
    former_size: int | None = None  #: `Planner.former_size`
    holes: Holes | None = None
    ahead: tuple[Any, ...] = ()  #: what comes before ``state``, as `PlanQueue.restart` takes it


def exchange(
    serializer: Callable[[str, Any], Any], current: Snapshot, planner: Planner
) -> Snapshot | None:
    """Save ``current`` to a serializer, or return another snapshot that it has loaded, checked.

    Keys: current_position, epoch, is_new_epoch, order (int64[n], or -1 where the iteration has
    no order), previous_epoch_detail (-1 before the first batch), example_seed (int64[2]), cuts
    (JSON, uint8[n]); where orders have numbers also order_sampler (int64[7]), with ``on_error``
    skipped (JSON, uint8[n]).
    """
    state = current.state
    # A float made here, so that identity tells whether it was stored or replaced.
    detail = -1.0 if state.previous_epoch_detail is None else state.previous_epoch_detail * 1.0
    stored = {"previous_epoch_detail": _ask(serializer, "previous_epoch_detail", detail)}
    given = dict(zip(_KEYS, (state.position, state.epoch, state.is_new_epoch), strict=False))
    for key, value in given.items():
        stored[key] = _ask(serializer, key, value)
    if _is_saving(serializer, stored, {**given, "previous_epoch_detail": detail}):
        stream = planner.saved_stream(state)
        if stream is not None:
            serializer(_STREAM_KEY, _as_bytes(stream))
            if current.skips is not None:
                serializer(SKIPS_KEY, _as_bytes(current.skips.saved()))
            return None
        if planner.beyond or planner.has_holes:
            raise ValueError(
                "batches have overtaken others (in_order=False), which a snapshot has no room for: "
                "use state_dict(), or save where no batch is missing"
            )
        for key, value in _saved_order(state, planner).items():
            serializer(key, value)
        serializer(SEED_KEY, np.array(_signed(current.seed)))
        serializer(CUTS_KEY, _as_bytes(_saved_cuts(current, planner)))
        if current.skips is not None:
            serializer(SKIPS_KEY, _as_bytes(current.skips.saved()))
        return None
    for key, value in stored.items():
        # Once more, as it was stored: int() has made 3 of a 3.7, and bool() True of a NaN.
        raw = None if value is _ABSENT else _ask(serializer, key, None)
        stored[key] = value if raw is None or raw is _ABSENT else raw
    return _loaded(serializer, stored, current, planner, strict=True)


def as_dict(current: Snapshot, planner: Planner) -> dict[str, Any]:
    """State that `exchange` saves, in plain types that JSON has.

    An order is a text; where orders have numbers, the record alone says all.
    """
    state = current.state
    stream = planner.saved_stream(state)
    if stream is not None:
        saved: dict[str, Any] = {_STREAM_KEY: stream}
    else:
        record = _record_of(state, planner)
        if record is not None:
            saved = {_RECORD_KEY: record.array().tolist()}
        else:
            saved = {key: _as_text(order) for key, order in _saved_order(state, planner).items()}
        saved[SEED_KEY] = _signed(current.seed)
        saved[CUTS_KEY] = _saved_cuts(current, planner)
    values = state.position, state.epoch, state.is_new_epoch, state.previous_epoch_detail
    saved = {**dict(zip(_KEYS, values, strict=True)), **saved}
    return saved if current.skips is None else {**saved, SKIPS_KEY: current.skips.saved()}


def from_dict(
    stored: Mapping[str, Any], current: Snapshot, planner: Planner, *, strict: bool
) -> Snapshot:
    """The snapshot that `as_dict` has saved, or any snapshot in a mapping, checked."""
    if not isinstance(stored, Mapping):
        raise TypeError(
            f"state_dict must be a dict, as state_dict() returns it, not {stored!r} of type "
            f"{type(stored).__qualname__}"
        )
    given = {**stored}
    for key in _ORDER_KEYS:
        if isinstance(given.get(key), str):
            given[key] = _order_of_text(given[key])
    numbers = {key: given.get(key, _ABSENT) for key in _KEYS}
    return _loaded(lambda key, value: given[key], numbers, current, planner, strict=strict)


def _as_text(order: Any) -> Any:
    """An order as Base64 of as few bytes an index as the greatest one needs, behind their number;
    -1 as it is."""
    if not isinstance(order, np.ndarray):
        return order
    width = max(1, (int(order.max(initial=0)).bit_length() + 7) // 8)
    rows = order.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8)
    return f"{width}:" + binascii.b2a_base64(rows[:, :width].tobytes(), newline=False).decode()


def _order_of_text(text: str) -> npt.NDArray[np.int64]:
    try:
        width, packed = text.split(":")
        found = np.frombuffer(binascii.a2b_base64(packed), np.uint8).reshape(-1, int(width))
        rows = np.zeros((len(found), 8), np.uint8)
        rows[:, : int(width)] = found
    except ValueError as error:
        raise unreadable("order", error) from error
    return rows.view("<i8")[:, 0].astype(np.int64)


def _as_bytes(saved: Any) -> Any:
    import json

    return np.frombuffer(json.dumps(saved, separators=(",", ":")).encode(), dtype=np.uint8)


def _saved_cuts(current: Snapshot, planner: Planner) -> dict[str, Any]:
    """How epochs are cut into batches, and since when; with the sampler's seed and arguments as far
    as they are numbers, for those who have the state only."""
    sampler, state = planner._order_sampler, current.state
    saved: dict[str, Any] = {
        "version": _CUTS_VERSION,
        "step": state.step,
        "anchor": list(current.anchor),
        **_arguments_of(planner),
    }
    if planner.beyond:
        saved[DELIVERED_KEY] = sum(1 << (step - 1 - state.step) for step in planner.beyond)
    if sampler is None:
        saved["n_examples"] = state.epoch_size
    place = getattr(state.order, "place", None)
    if place is not None and (found := place(state.position)) is not None:
        saved[WINDOW_KEY] = list(found)
    if state.cuts is not None:
        cuttings = planner.cuttings_of(state.n_drawn - 1)
        saved["cuttings"] = [[start, n_ranks, list(limits)] for start, n_ranks, limits in cuttings]
    if is_epoch_sampler(sampler):
        seed = sampler.seed or (0, 0)
        if seed != current.seed:
            saved["seed"] = _signed(seed)
        arguments = [each for each in sampler.arguments() or () if type(each) in (int, bool)]
        if arguments:
            saved["arguments"] = arguments
        if isinstance(sampler, MixtureOrderSampler) and len(sampler._sizes) <= _MOST_SIZES:
            saved["sizes"] = list(sampler._sizes)
    return saved


def _arguments_of(planner: Planner) -> dict[str, Any]:
    """The arguments that decide about cuts, without those that have their defaults."""
    given = {
        "batch_size": planner.batch_size if planner.state.cuts is None else None,
        "num_ranks": planner.num_ranks,
        "repeat": planner.repeat,
        "drop_last": planner.drop_last,
        "tail": planner.tail,
    }
    return {name: value for name, value in given.items() if value != DEFAULTS[name]}


def _signed(seed: Seed) -> list[int]:
    """A seed as two signed words of 64 bits."""
    return np.array(seed, dtype=np.uint64).view(np.int64).tolist()  # type: ignore[no-any-return]


def _loaded_seed(stored: Any) -> Seed:
    words = np.asarray(stored)
    if words.shape != (2,) or words.dtype != np.int64:
        raise ValueError(f"the snapshot's {SEED_KEY} is {stored!r}, not two integers of 64 bits")
    first, second = words.view(np.uint64).tolist()
    return first, second


def _record_of(state: State, planner: Planner) -> SamplerRecord | None:
    sampler = planner._order_sampler
    if not is_epoch_sampler(sampler) or state.order is None or state.n_drawn == 0:
        return None
    n = examples_of(sampler, planner._dataset_len(), state.epoch_size)
    return sampler.record(state.n_drawn, n, state.position, lambda: planner.digest_of(state))


def _saved_order(state: State, planner: Planner) -> dict[str, Any]:
    if state.order is None:
        return {"order": -1}
    record = _record_of(state, planner)
    order = state.order
    if not isinstance(order, np.ndarray) or state.cuts is not None:
        if record is not None:
            return {"order": record.array()}
        order = np.asarray(order[:], dtype=np.int64)
    return {"order": order} if record is None else {"order": order, _RECORD_KEY: record.array()}


def _is_saving(serializer: Any, stored: dict[str, Any], given: dict[str, Any]) -> bool:
    loads, saves = hasattr(serializer, "load"), hasattr(serializer, "save")
    if loads != saves:  # Chainer's own, and those derived from its base classes
        return saves
    if all(value is None for value in stored.values()):
        return True  # a plain function that keeps what it is given
    same = stored["previous_epoch_detail"] is given["previous_epoch_detail"]
    return same and all(stored[key] is value for key, value in given.items())


def _loaded(
    serializer: Any,
    stored: dict[str, Any],
    current: Snapshot,
    planner: Planner,
    *,
    strict: bool,
) -> Snapshot:
    of_stream = planner.loaded_stream(_ask_json(serializer, _STREAM_KEY))
    if of_stream is not None:
        state = of_stream._replace(
            epoch=_loaded_int(stored, "epoch"),
            is_new_epoch=bool(_loaded_int(stored, "is_new_epoch")),
        )
        detail = _loaded_detail(stored["previous_epoch_detail"], state, 0)
        state = state._replace(previous_epoch_detail=detail)
        skips = None
        if current.skips is not None:
            skips = SkipState.loaded(_ask_json(serializer, SKIPS_KEY))
        return Snapshot(state, current.seed, skips, state.anchor)
    state, sampler = current.state, planner._order_sampler
    dataset_size = planner._dataset_len()
    position = _loaded_int(stored, "current_position")
    epoch = _loaded_int(stored, "epoch")
    is_new_epoch = _loaded_int(stored, "is_new_epoch")
    array = _ask_order(serializer, state.order)
    record = _loaded_record(serializer, array)
    n_drawn = state.n_drawn
    if record is not None and array is _ABSENT and not is_epoch_sampler(sampler):
        raise ValueError(
            "the snapshot was saved with an order sampler that has a seed: give this iterator the "
            "same one"
        )
    saved_cuts = loaded_cuts(_ask_json(serializer, CUTS_KEY))
    if DELIVERED_KEY in saved_cuts:
        raise ValueError("batches are missing in the state: load it by load_state_dict()")
    cuts = recut = former_size = None
    if record is not None and is_epoch_sampler(sampler):
        if state.cuts is not None:
            recut = _recut(saved_cuts, record, position, planner)
        if not saved_cuts:
            raise ValueError(f"the snapshot has {_RECORD_KEY!r}, but no {CUTS_KEY!r}")
        told = saved_cuts.get("seed")
        saved_seed = _loaded_seed(_ask(serializer, SEED_KEY, None) if told is None else told)
        order, cuts = _order_again(
            record,
            array,
            position,
            state,
            planner,
            recut=recut,
            saved_seed=saved_seed,
            saved_sizes=saved_cuts.get("sizes"),
            strict=strict,
        )
        n_drawn = record.n_drawn
        if not planner.varies and len(order) < dataset_size:
            former_size = None if len(order) == state.epoch_size else len(order)
    elif state.cuts is not None:
        raise ValueError(_NO_BATCHES)
    else:
        order = _loaded_order(array, state.order, dataset_size, strict=strict)
        told = saved_cuts.get("n_examples", dataset_size)
        if order is None and told != dataset_size:
            _check_growth(told, dataset_size, strict=strict)
            former_size = told
        if order is not None and not strict and len(order) < dataset_size == state.epoch_size:
            former_size = len(order)
        if order is not state.order and gives_permutations(sampler):
            _check_permutation(order)
        if order is not state.order and is_epoch_sampler(sampler):
            n_drawn = epoch + 1  # as if there had been no reset
    if WINDOW_KEY in saved_cuts and hasattr(order, "begin"):
        order.begin(*_window(saved_cuts[WINDOW_KEY], position))
    size = former_size or dataset_size if order is None else size_within(order, position + 1)
    # Of what was left, batches of other limits may leave all out.
    is_recut = recut is not None and len(recut[1]) > 1
    if position >= size + is_recut:
        raise ValueError(
            f"the snapshot's current_position is {position}, beyond the epoch's {size} examples"
        )
    if cuts is not None and cuts[np.searchsorted(cuts, position)] != position:
        raise ValueError(
            f"the snapshot's current_position is {position}, at which no batch of the "
            "batch_sampler begins"
        )
    if is_new_epoch > 1:
        raise ValueError(f"the snapshot's is_new_epoch is {is_new_epoch}, neither True nor False")
    loaded = State(position, epoch, bool(is_new_epoch), order, size, None, n_drawn, cuts)
    # Of Chainer's snapshots: as if all batches had been of this size.
    whole = planner.batch_size * planner.num_ranks
    step = saved_cuts.get("step", -(-(epoch * size + position) // whole))
    loaded = loaded._replace(step=step)
    anchor = loaded.anchor
    if saved_cuts and former_size is None:
        given = {key: saved_cuts[key] for key in DEFAULTS if key in saved_cuts}
        since = Anchor(*saved_cuts["anchor"])
        if given == _arguments_of(planner) and (
            recut is None or _holds_since(since, epoch, saved_cuts["cuttings"], planner)
        ):
            anchor = since
    detail = _loaded_detail(stored["previous_epoch_detail"], loaded, whole)
    loaded = loaded._replace(previous_epoch_detail=detail)
    seed = _ask(serializer, SEED_KEY, None)
    seed = current.seed if seed is None or seed is _ABSENT else _loaded_seed(seed)
    skips = None
    if current.skips is not None:
        skips = SkipState.loaded(_ask_json(serializer, SKIPS_KEY))
    return Snapshot(loaded, seed, skips, anchor, recut, former_size)


def _ask_json(serializer: Any, key: str) -> Any:
    """Value stored as JSON in an array of bytes, or as it is; None if the snapshot has none."""
    stored = _ask(serializer, key, None)
    if stored is None or stored is _ABSENT:
        return None
    if isinstance(stored, Mapping):
        return stored
    try:
        array = np.asarray(stored)
        if array.dtype != np.uint8 or array.ndim != 1:
            raise ValueError(f"an array of shape {array.shape} and dtype {array.dtype}")
        import json

        return json.loads(array.tobytes())
    except (TypeError, ValueError) as error:
        raise unreadable(key, error) from error


def unreadable(key: str, error: Exception) -> ValueError:
    return ValueError(f"the snapshot's {key!r} cannot be read: {error!r}")


def loaded_cuts(stored: Any) -> dict[str, Any]:
    """Result of `_saved_cuts`; empty if the snapshot has none."""
    if stored is None:
        return {}
    try:
        saved = dict(stored)
        version = saved.get("version")
        if version != _CUTS_VERSION:
            raise ValueError(f"version {version!r}, which this release does not know")
        saved["anchor"] = _naturals(saved["anchor"], len(Anchor._fields))
        saved["step"] = _naturals([saved["step"]], 1)[0]
        if "n_examples" in saved:
            saved["n_examples"] = _naturals([saved["n_examples"]], 1)[0]
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(CUTS_KEY, error) from error
    return saved


def _window(stored: Any, position: int) -> list[int]:
    try:
        window, before = _naturals(stored, 2)
        if before > position:
            raise ValueError(f"{before} rows before window {window}, but {position} before this")
    except (TypeError, ValueError) as error:
        raise unreadable(CUTS_KEY, error) from error
    return [window, before]


def _naturals(values: Any, count: int) -> list[int]:
    numbers = [operator.index(value) for value in values]
    if len(numbers) != count or min(numbers) < 0:
        raise ValueError(f"{values!r}")
    return numbers


def _recut(
    saved_cuts: dict[str, Any], record: SamplerRecord, position: int, planner: Planner
) -> tuple[int, tuple[Cutting, ...]]:
    """The number of the epoch that the snapshot was saved in, and how it is cut here."""
    number = record.n_drawn - 1
    ours = Cutting(0, planner.num_ranks, planner.limits)
    if "cuttings" not in saved_cuts:
        raise ValueError(_NO_BATCHES)
    try:
        cuttings = [
            Cutting(operator.index(start), operator.index(ranks), tuple(limits))
            for start, ranks, limits in saved_cuts["cuttings"]
        ]
        for start, ranks, limits in cuttings:
            are_limits = all(limit is None or 1 <= limit < 1 << 63 for limit in limits)
            if start < 0 or ranks < 1 or not are_limits or len(limits) != len(ours.limits):
                raise ValueError(f"cutting {[start, ranks, limits]}")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the snapshot's {CUTS_KEY!r} cannot be read: {error!r}") from error
    if position == 0 or not cuttings:
        return number, (ours,)
    if cuttings[-1][1:] != ours[1:]:
        if cuttings[-1].start == position:  # no batch was cut so; it may leave rows out
            cuttings.pop()
        cuttings.append(ours._replace(start=position))
    return number, tuple(cuttings)


def _holds_since(anchor: Anchor, epoch: int, cuttings: Sequence[Any], planner: Planner) -> bool:
    """Whether a batch sampler of these limits can tell the steps from an anchor on. Of an epoch
    before that was begun with other limits it does not know how it was cut."""
    is_told = anchor.position == 0 or anchor.epoch == epoch
    return is_told and len(cuttings) > 0 and [*cuttings[-1][2]] == [*planner.limits]


def _loaded_record(serializer: Callable[[str, Any], Any], order: Any) -> SamplerRecord | None:
    """Record of the sampler in the snapshot; it may replace the order."""
    if order is not _ABSENT and not is_virtual(order):
        record = SamplerRecord.of(order)
        if record is not None:
            return record
    stored = _ask(serializer, _RECORD_KEY, None)
    if stored is None or stored is _ABSENT:
        return None
    record = SamplerRecord.of(stored)
    if record is None:
        raise ValueError(f"the snapshot's {_RECORD_KEY} is damaged")
    return record


def _order_again(
    record: SamplerRecord,
    stored: Any,
    position: int,
    state: State,
    planner: Planner,
    *,
    recut: tuple[int, tuple[Cutting, ...]] | None,
    saved_seed: Seed,
    saved_sizes: Any,
    strict: bool,
) -> tuple[Order, Any]:
    """The order that the snapshot's record tells of, drawn by this iteration's sampler."""
    sampler, dataset_size = planner._order_sampler, planner._dataset_len()
    assert is_epoch_sampler(sampler)
    is_told = sampler.arguments() is not None  # else the epoch itself has to be compared
    n_examples = examples_of(sampler, dataset_size, state.epoch_size)
    ours = sampler.record(record.n_drawn, n_examples, position, lambda: record.key)
    if record.kind != ours.kind or (is_told and record.key != ours.key):
        raise _is_another(record, sampler, saved_seed, saved_sizes)
    size = state.epoch_size
    if record.n_examples != ours.n_examples:
        if not sampler.permutes:
            raise ValueError(
                f"the snapshot has an order of {record.n_examples} examples, but here are "
                f"{ours.n_examples}, and {type(sampler).__qualname__} cannot go on with others"
            )
        if record.n_examples != dataset_size:  # else the present epoch began before it has grown
            _check_growth(record.n_examples, dataset_size, strict=strict)
        size = record.n_examples
    if record.n_drawn < 1:
        raise ValueError("the snapshot's order sampler has drawn no order")
    cuttings = () if recut is None else recut[1]
    order, cuts = draw_epoch(
        sampler, record.n_drawn - 1, dataset_size, None if planner.varies else size, cuttings
    )
    if not is_told:
        ours = sampler.record(record.n_drawn, n_examples, position, lambda: digest_of(order, cuts))
        if record.key != ours.key:
            raise _is_another(record, sampler, saved_seed, saved_sizes)
    if (
        cuts is None
        and isinstance(order, np.ndarray)
        and stored is not _ABSENT
        and stored is not state.order
        and not np.array_equal(order, stored)
    ):
        raise ValueError("the snapshot's order is not the one that its order sampler has drawn")
    return order, cuts


def _check_growth(told: int, dataset_size: int, *, strict: bool) -> None:
    """Check that a dataset may have that length now, where the snapshot tells of another one."""
    if strict or told > dataset_size:
        raise ValueError(
            f"the snapshot has an order of {told} examples, but here are {dataset_size}"
            + ("; if the dataset has grown, load with strict=False" if told < dataset_size else "")
        )


def _is_another(
    record: SamplerRecord, sampler: EpochSampler, saved_seed: Seed, saved_sizes: Any
) -> ValueError:
    """Error of a sampler that is not the saved one; it names what differs, if that is known."""
    ours = list(sampler._sizes) if isinstance(sampler, MixtureOrderSampler) else []
    if record.kind != sampler.kind:
        difference = " (it is of another kind)"
    elif ours and saved_sizes not in (None, ours):
        difference = f" (its sources have {saved_sizes} examples, here they have {ours!r:.200})"
    elif ours and record.n_examples != sum(ours):
        difference = f" (its sources have {record.n_examples} examples, here they have {sum(ours)})"
    elif saved_seed != (sampler.seed or (0, 0)):
        difference = " (the seed differs)"
    elif sampler.arguments() is None:
        difference = f" ({sampler.label(record.n_drawn - 1)} gives another epoch)"
    else:
        difference = " (the arguments differ)"
    return ValueError(
        "the snapshot was saved with another order sampler than this "
        f"{type(sampler).__qualname__}, or with another seed or other arguments{difference}: "
        "give the iterator the same one"
    )


def _loaded_order(
    stored: Any, current: Order | None, dataset_size: int, *, strict: bool
) -> Order | None:
    if stored is _ABSENT and current is not None:
        raise ValueError("the snapshot has no order, but this iterator shuffles: set shuffle=False")
    if stored is _ABSENT or stored is current:
        return current
    array = np.asarray(stored)
    if SamplerRecord.of(array) is not None:
        raise ValueError(
            "the snapshot's order is one that its order sampler computes: give this iterator the "
            "same sampler, with the same seed"
        )
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
    fits = array.size == dataset_size or (not strict and array.size <= len(current))
    size = array.size if fits else len(current)
    return checked_order(array, dataset_size, size=size, source="the snapshot")


def _check_permutation(order: Any) -> None:
    seen = np.zeros(len(order), dtype=bool)
    if (order < len(order)).all():
        seen[order] = True
    if not seen.all():
        raise ValueError(
            f"the snapshot's order is no permutation of 0 .. {len(order) - 1}, which this "
            "iterator's order sampler gives: was it saved with another one?"
        )


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
    if stored is _ABSENT:  # as in Chainer's first versions: as if the last batch had been full
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
    """Stored order; ``current`` if the serializer leaves it alone."""
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
        n_probed = RECORD_SIZE if is_virtual(current) else len(current)
        probe = np.full(n_probed, _UNTOUCHED, dtype=np.int64)
        if _ask(serializer, key, probe) is probe and (probe == _UNTOUCHED).all():
            continue
        return -1
    return current if answered else _ABSENT

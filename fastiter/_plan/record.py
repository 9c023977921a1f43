"""The record of an iteration's state, a dict of plain values, and the way back from it.

Each record has version, kind, epoch, position (examples of the epoch, of all ranks), step,
is_new_epoch and previous_epoch_detail; skipped where examples may be skipped. One of epochs has

- order: of a sampler whose orders have numbers its `SamplerRecord`, from which this order and those
  that follow are drawn again; else the indices; None where the dataset's order is used
- drawn: the indices beside a `SamplerRecord`, if the record comes from a serializer; to compare
- cut: how epochs are cut into batches, and since when
- missing: the batches that were delivered before older ones (see `missing`)
- seed: two signed words of 64 bits

and one of sources has stream, the place in a `StreamDataset`.
"""

from __future__ import annotations

import binascii
import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastiter._order.plan import size_within
from fastiter._plan.drawing import (
    checked_order,
    draw_epoch,
    examples_of,
    gives_permutations,
    is_virtual,
)
from fastiter._plan.epoch_sampler import (
    Cutting,
    EpochSampler,
    SamplerRecord,
    digest_of,
    is_epoch_sampler,
)
from fastiter._plan.state import Anchor, Order, SkipState, Snapshot, State, natural

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter._order.example_context import Seed
    from fastiter._plan.epochs import Planner
    from fastiter._plan.state import Missing

VERSION = 1
CUT_DEFAULTS = {
    "batch_size": None,
    "num_ranks": 1,
    "repeat": True,
    "drop_last": False,
    "tail": "pad",
}
_NO_BATCHES = "the snapshot was saved without a batch_sampler, but this iterator has one"
_MOST_SIZES = 16  # of a mixture's sources that are in a record
ABSENT: Any = object()  # the value of a key that is not in a record


def record_of(planner: Planner) -> dict[str, Any]:
    """The record of the state after the batch delivered last, whatever was planned after it."""
    missing = planner.missing
    if missing is not None and planner.is_filling:
        record = filled_record(missing, len(planner.filled()))
    else:
        state = planner.state
        record = {
            "version": VERSION,
            "kind": planner.kind,
            "epoch": state.epoch,
            "position": state.position,
            "step": state.step,
            "is_new_epoch": state.is_new_epoch,
            "previous_epoch_detail": state.previous_epoch_detail,
        }
        if planner.kind == "sources":
            record["stream"] = planner.saved_place()
        else:
            record["order"] = _saved_order(planner)
            record["cut"] = _saved_cut(planner)
            record["seed"] = _signed(planner.seed)
            if planner.delivered_early:
                bits = sum(1 << (step - 1 - state.step) for step in planner.delivered_early)
                record["missing"] = {"delivered": bits}
    if planner.progress is not None:
        record["skipped"] = planner.progress.saved()
    return record


def filled_record(missing: Missing, n_filled: int) -> dict[str, Any]:
    """The record with missing batches after the first ones were delivered by each rank."""
    saved = missing.record["missing"]
    bits = saved["delivered"]
    for number in missing.numbers[: n_filled * missing.stride]:
        bits |= 1 << number
    return {**missing.record, "missing": {**saved, "delivered": bits}}


def packed(record: dict[str, Any]) -> dict[str, Any]:
    """A record of types that JSON has: indices are a text, Base64 of as few bytes an index as the
    greatest one needs, behind their number."""
    order = record.get("order")
    if not isinstance(order, np.ndarray):
        return record
    width = max(1, (int(order.max(initial=0)).bit_length() + 7) // 8)
    rows = order.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8)
    text = binascii.b2a_base64(rows[:, :width].tobytes(), newline=False).decode()
    return {**record, "order": f"{width}:{text}"}


def _unpacked(text: str) -> npt.NDArray[np.int64]:
    try:
        width, digits = text.split(":")
        found = np.frombuffer(binascii.a2b_base64(digits), np.uint8).reshape(-1, int(width))
        rows = np.zeros((len(found), 8), np.uint8)
        rows[:, : int(width)] = found
    except ValueError as error:
        raise unreadable("order", error) from error
    return rows.view("<i8")[:, 0].astype(np.int64)


def _saved_order(planner: Planner) -> Any:
    state, sampler = planner.state, planner._order_sampler
    order = state.order
    if order is None:
        return None
    if is_epoch_sampler(sampler) and state.n_drawn > 0:
        n = examples_of(sampler, planner._dataset_len(), state.epoch_size)
        record = sampler.record(state.n_drawn, n, state.position, lambda: planner.digest_of(state))
        return record.words()
    return order if isinstance(order, np.ndarray) else np.asarray(order[:], dtype=np.int64)


def _saved_cut(planner: Planner) -> dict[str, Any]:
    """The cutting of epochs into batches, and its begin; with the sampler's seed and arguments as
    far as they are numbers, for readers who have the state only."""
    sampler, state = planner._order_sampler, planner.state
    saved: dict[str, Any] = {"anchor": list(planner.anchor), **_arguments_of(planner)}
    if sampler is None:
        saved["n_examples"] = state.epoch_size
    place = getattr(state.order, "place", None)
    if place is not None and (found := place(state.position)) is not None:
        saved["window"] = list(found)  # one at the position or before it, and the rows before it
    if state.cuts is not None:
        cuttings = planner.cuttings_of(state.n_drawn - 1)
        saved["cuttings"] = [[start, n_ranks, list(limits)] for start, n_ranks, limits in cuttings]
    if is_epoch_sampler(sampler):
        seed = sampler.seed or (0, 0)
        if seed != planner.seed:
            saved["seed"] = _signed(seed)
        if arguments := _numbers_of(sampler):
            saved["arguments"] = arguments
        if 0 < len(sampler._source_sizes) <= _MOST_SIZES:
            saved["sizes"] = list(sampler._source_sizes)
    return saved


def _arguments_of(planner: Planner) -> dict[str, Any]:
    """The arguments that decide about cuts, without those that have their defaults."""
    given = ((name, getattr(planner, name), default) for name, default in CUT_DEFAULTS.items())
    found = {name: value for name, value, default in given if value != default}
    if planner.state.cuts is not None:
        del found["batch_size"]
    return found


def _numbers_of(sampler: EpochSampler) -> list[int]:
    return [each for each in sampler.arguments() or () if type(each) in (int, bool)]


def _signed(seed: Seed) -> list[int]:
    """A seed as two signed words of 64 bits."""
    return [word - (word >> 63 << 64) for word in seed]


# ---- loading -------------------------------------------------------------------------------------


def snapshot_of(record: Mapping[str, Any], planner: Planner, *, strict: bool) -> Snapshot:
    """The snapshot from which an iteration with this planner continues; changes nothing. ValueError
    if it cannot go on from the record."""
    check_version(record.get("version"))
    if (kind := record.get("kind")) != planner.kind:
        saved, here = ("with", "none") if kind == "sources" else ("without", "one")
        raise ValueError(
            f"the snapshot was saved {saved} a StreamDataset (its kind is {kind!r}), but this "
            f"iterator reads {here}"
        )
    skips = None if planner.progress is None else SkipState.loaded(record.get("skipped"))
    epoch, is_new_epoch = _loaded_int(record, "epoch"), _loaded_int(record, "is_new_epoch")
    if is_new_epoch > 1:
        raise ValueError(f"the snapshot's is_new_epoch is {is_new_epoch}, neither True nor False")
    if kind == "sources":
        state, sources = planner.loaded_place(record)
        state = state._replace(epoch=epoch, is_new_epoch=bool(is_new_epoch))
        state = state._replace(previous_epoch_detail=_loaded_detail(record, state, 0))
        return Snapshot(state, planner.seed, skips, state.anchor, sources=sources)
    if record.get("missing"):
        raise ValueError("batches are missing in the state: load it by load_state_dict()")
    dataset_size = planner._dataset_len()
    position, cut = _loaded_int(record, "position"), loaded_cut(record)
    order, cuts, n_drawn, former_size, recut = _loaded_epoch(
        record, cut, epoch, position, planner, strict=strict
    )
    begin = getattr(order, "begin", None)
    if begin is not None and "window" in cut:
        begin(*_window(cut["window"], position))
    size = former_size or dataset_size if order is None else size_within(order, position + 1)
    # Of what was left, batches of other limits may leave all out.
    is_recut = recut is not None and len(recut[1]) > 1
    if position >= size + is_recut:
        raise ValueError(
            f"the snapshot's position is {position}, beyond the epoch's {size} examples"
        )
    if cuts is not None and cuts[np.searchsorted(cuts, position)] != position:
        raise ValueError(
            f"the snapshot's position is {position}, at which no batch of the batch_sampler begins"
        )
    # Of Chainer's snapshots: as if all batches had been of this size.
    whole = planner.batch_size * planner.num_ranks
    step = record.get("step", ABSENT)
    step = -(-(epoch * size + position) // whole) if step is ABSENT else naturals("step", [step])[0]
    state = State(position, epoch, bool(is_new_epoch), order, size, None, n_drawn, cuts, step)
    anchor, since = state.anchor, cut.get("anchor", state.anchor)
    if n_drawn:  # without ``repeat`` the order behind the end is not drawn
        anchor = anchor._replace(n_drawn=max(n_drawn, since.n_drawn_at(epoch)))
    if former_size is None and anchor.n_drawn == since.n_drawn_at(epoch):
        given = {key: cut[key] for key in CUT_DEFAULTS if key in cut}
        if given == _arguments_of(planner) and (
            recut is None or _holds_since(since, epoch, cut["cuttings"], planner)
        ):
            anchor = since
    state = state._replace(previous_epoch_detail=_loaded_detail(record, state, whole))
    seed = record.get("seed")
    seed = planner.seed if seed is None else _loaded_seed(seed)
    return Snapshot(state, seed, skips, anchor, recut, former_size)


def check_version(version: Any) -> None:
    """Raises ValueError if this release does not know the version of a record."""
    if type(version) is not int or version != VERSION:
        raise ValueError(
            f"the snapshot is of version {version!r:.80}, which this release does not know: it "
            f"loads version {VERSION}"
        )


def _loaded_epoch(
    record: Mapping[str, Any],
    cut: dict[str, Any],
    epoch: int,
    position: int,
    planner: Planner,
    *,
    strict: bool,
) -> tuple[Order | None, Any, int, int | None, tuple[int, tuple[Cutting, ...]] | None]:
    """Order, cuts, orders drawn, `PlanQueue.former_size` and `Planner.recut` of a record."""
    state, sampler = planner.state, planner._order_sampler
    dataset_size = planner._dataset_len()
    stored, sampled = record.get("order", ABSENT), None
    if isinstance(stored, str):
        stored = _unpacked(stored)
    if stored is not ABSENT and not is_virtual(stored):
        sampled = SamplerRecord.of(stored)
        if sampled is not None:
            stored = record.get("drawn", ABSENT)
    if sampled is not None and is_epoch_sampler(sampler):
        recut = None if state.cuts is None else _recut(cut, sampled, position, planner)
        if not cut:
            raise ValueError("the snapshot has a record of its sampler, but no 'cut'")
        cuttings = () if recut is None else recut[1]
        facts = {"seed": record.get("seed"), **cut}
        order, cuts = _order_again(
            sampled, stored, position, planner, cuttings, facts, strict=strict
        )
        n_drawn = max(sampled.n_drawn, cut["anchor"].n_drawn_at(epoch))
        if planner.repeat and n_drawn > sampled.n_drawn:  # saved at the end, without ``repeat``
            size = None if planner.varies else len(order)
            order, cuts = draw_epoch(sampler, n_drawn - 1, dataset_size, size, cuttings)
            sampled = sampled._replace(n_drawn=n_drawn)
        size = None if planner.varies or len(order) >= dataset_size else len(order)
        former_size = None if size == state.epoch_size != planner.former_size else size
        return order, cuts, sampled.n_drawn, former_size, recut
    if sampled is not None and stored is ABSENT:
        raise ValueError(
            "the snapshot was saved with an order sampler that has a seed: give this iterator the "
            "same one"
        )
    if state.cuts is not None:
        raise ValueError(_NO_BATCHES)
    former_size, n_drawn = None, state.n_drawn
    order = _loaded_order(stored, state.order, dataset_size, strict=strict)
    n_examples = cut.get("n_examples", dataset_size)
    if order is None and n_examples != dataset_size:
        _check_growth(n_examples, dataset_size, strict=strict and n_examples != planner.former_size)
        former_size = n_examples
    if order is not None and len(order) < dataset_size:
        is_told = not strict and dataset_size == state.epoch_size
        former_size = len(order) if is_told or len(order) == planner.former_size else None
    if order is not state.order and gives_permutations(sampler):
        _check_permutation(order)
    if order is not state.order and is_epoch_sampler(sampler):
        n_drawn = epoch + 1  # as if there had been no reset
    return order, None, n_drawn, former_size, None


def unreadable(key: str, error: Exception) -> ValueError:
    return ValueError(f"the snapshot's {key!r} cannot be read: {error!r}")


def loaded_cut(record: Mapping[str, Any]) -> dict[str, Any]:
    """The entry ``cut``, as far as it is read without a sampler; empty if there is none."""
    stored = record.get("cut")
    if stored is None:
        return {}
    try:
        cut = dict(stored)
        cut["anchor"] = Anchor(*naturals("cut", cut["anchor"], len(Anchor._fields)))
        if "n_examples" in cut:
            cut["n_examples"] = naturals("cut", [cut["n_examples"]])[0]
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable("cut", error) from error
    return cut


def _window(stored: Any, position: int) -> list[int]:
    window, before = naturals("cut", stored, 2)
    if before > position:
        text = f"{before} rows before window {window}, but {position} before this"
        raise unreadable("cut", ValueError(text))
    return [window, before]


def naturals(key: str, values: Any, count: int = 1) -> list[int]:
    """Integers from 0 on in the entry of this key."""
    try:
        numbers = [natural(value) for value in values]
        if len(numbers) != count:
            raise ValueError(f"{values!r}")
    except (TypeError, ValueError) as error:
        raise unreadable(key, error) from error
    return numbers


def _recut(
    cut: dict[str, Any], record: SamplerRecord, position: int, planner: Planner
) -> tuple[int, tuple[Cutting, ...]]:
    """The number of the epoch that the snapshot was saved in, and how it is cut here."""
    number = record.n_drawn - 1
    ours = Cutting(0, planner.num_ranks, planner.limits)
    if "cuttings" not in cut:
        raise ValueError(_NO_BATCHES)
    sampler = planner._order_sampler
    assert is_epoch_sampler(sampler)
    if record.kind != sampler.kind:  # its limits mean other things
        raise _is_another(record, sampler, cut)
    try:
        cuttings = [
            Cutting(operator.index(start), operator.index(ranks), tuple(limits))
            for start, ranks, limits in cut["cuttings"]
        ]
        for start, ranks, limits in cuttings:
            are_limits = all(limit is None or 1 <= limit < 1 << 63 for limit in limits)
            if start < 0 or ranks < 1 or not are_limits or len(limits) != len(ours.limits):
                raise ValueError(f"cutting {[start, ranks, limits]}")
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable("cut", error) from error
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
    is_known = anchor.position == 0 or anchor.epoch == epoch
    return is_known and len(cuttings) > 0 and [*cuttings[-1][2]] == [*planner.limits]


def _order_again(
    record: SamplerRecord,
    stored: Any,
    position: int,
    planner: Planner,
    cuttings: tuple[Cutting, ...],
    saved: dict[str, Any],
    *,
    strict: bool,
) -> tuple[Order, Any]:
    """The order of a record, drawn by this iteration's sampler; and its cuts."""
    state, sampler, dataset_size = planner.state, planner._order_sampler, planner._dataset_len()
    assert is_epoch_sampler(sampler)
    saved["seed"] = _loaded_seed(saved["seed"])
    has_facts = sampler.arguments() is not None  # else the epoch itself has to be compared
    n_examples = examples_of(sampler, dataset_size, state.epoch_size)
    ours = sampler.record(record.n_drawn, n_examples, position, lambda: record.key)
    if record.kind != ours.kind or (has_facts and record.key != ours.key):
        raise _is_another(record, sampler, saved)
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
    order, cuts = draw_epoch(
        sampler, record.n_drawn - 1, dataset_size, None if planner.varies else size, cuttings
    )
    if not has_facts:
        ours = sampler.record(record.n_drawn, n_examples, position, lambda: digest_of(order, cuts))
        if record.key != ours.key:
            raise _is_another(record, sampler, saved)
    if (
        cuts is None
        and isinstance(order, np.ndarray)
        and stored is not ABSENT
        and stored is not state.order
        and not np.array_equal(order, stored)
    ):
        raise ValueError("the snapshot's order is not the one that its order sampler has drawn")
    return order, cuts


def _check_growth(n_saved: int, dataset_size: int, *, strict: bool) -> None:
    """Check that a dataset may have that length now, where the snapshot tells of another one."""
    if strict or n_saved > dataset_size:
        has_grown = n_saved < dataset_size
        raise ValueError(
            f"the snapshot has an order of {n_saved} examples, but here are {dataset_size}"
            + ("; if the dataset has grown, load with strict=False" if has_grown else "")
        )


def _is_another(record: SamplerRecord, sampler: EpochSampler, saved: dict[str, Any]) -> ValueError:
    """Error of a sampler that is not the saved one; it names what differs, if that is known."""
    ours, numbers = list(sampler._source_sizes), _numbers_of(sampler)
    difference = "the arguments differ"
    if record.kind != sampler.kind:
        alike = [one for one in EpochSampler.__subclasses__() if one.kind == record.kind]
        names = [one.__qualname__ for one in alike if one.__module__.startswith("fastiter.")]
        difference = f"it is of another kind: {names[0] if names else 'a class of your own'}"
    elif ours and saved.get("sizes", ours) != ours:
        difference = f"its sources have {saved['sizes']} examples, here they have {ours!r:.200}"
    elif ours and record.n_examples != sum(ours):
        difference = f"its sources have {record.n_examples} examples, here they have {sum(ours)}"
    elif saved["seed"] != (words := sampler.seed or (0, 0)):
        difference = f"the seed differs: its words are {saved['seed']}, here they are {words}"
    elif saved.get("arguments", []) != numbers:
        difference = f"its arguments are {saved.get('arguments')}, here they are {numbers}"
    elif sampler.arguments() is None:
        difference = f"{sampler.label(record.n_drawn - 1)} gives another epoch"
    return ValueError(
        "the snapshot was saved with another order sampler than this "
        f"{type(sampler).__qualname__}, or with another seed or other arguments ({difference}): "
        "give the iterator the same one"
    )


def _loaded_order(
    stored: Any, current: Order | None, dataset_size: int, *, strict: bool
) -> Order | None:
    if stored is ABSENT and current is not None:
        raise ValueError("the snapshot has no order, but this iterator shuffles: set shuffle=False")
    if stored is ABSENT or stored is current:
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


def _loaded_int(record: Mapping[str, Any], key: str) -> int:
    if (value := record.get(key, ABSENT)) is ABSENT:
        raise ValueError(f"the snapshot has no {key!r}")
    try:
        number = operator.index(np.asarray(value).item() if not isinstance(value, int) else value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the snapshot's {key} is {value!r}, which is no integer") from error
    if number < 0:
        raise ValueError(f"the snapshot's {key} is {number}, below 0")
    return number


def _loaded_detail(record: Mapping[str, Any], loaded: State, batch_size: int) -> float | None:
    stored = record.get("previous_epoch_detail", ABSENT)
    if stored is ABSENT:  # as in Chainer's first versions: as if the last batch had been full
        if loaded.epoch_detail == 0:
            return None
        return max(0.0, loaded.epoch + (loaded.position - batch_size) / loaded.epoch_size)
    if stored is None:
        return None
    try:
        detail = float(stored)
        if not math.isfinite(detail):
            raise ValueError(f"{detail}, which is not finite")
    except (TypeError, ValueError) as error:
        raise unreadable("previous_epoch_detail", error) from error
    return None if detail < 0 else detail


def _loaded_seed(stored: Any) -> Seed:
    words = np.asarray(stored)
    if words.shape != (2,) or words.dtype != np.int64:
        raise ValueError(f"the snapshot's seed is {stored!r}, not two integers of 64 bits")
    first, second = words.view(np.uint64).tolist()
    return first, second

"""Snapshots: saved, loaded into every kind of iterator, and refused where they are wrong."""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import pytest

KEYS = {
    "current_position",
    "epoch",
    "is_new_epoch",
    "order",
    "previous_epoch_detail",
    "example_seed",
    "cuts",
}


def state(iterator: Any) -> tuple[Any, ...]:
    return (
        iterator.current_position,
        iterator.epoch,
        iterator.is_new_epoch,
        iterator.epoch_detail,
        iterator.previous_epoch_detail,
    )


def rest_of_epoch(iterator: Any) -> list[list[int]]:
    epoch = iterator.epoch
    return list(itertools.takewhile(lambda _: iterator.epoch == epoch, iterator))


# -- saving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_batches", [0, 1, 2, 3, 7])
def test_snapshot_is_that_of_the_batch_delivered_last(make, save, n_batches):
    iterator = make(range(5), 2, order_sampler=lambda order, position: np.roll(order, 1))
    for _ in range(n_batches):
        next(iterator)
    stored = save(iterator)
    assert stored.keys() == KEYS
    assert stored["current_position"] == 2 * n_batches % 5
    assert stored["epoch"] == 2 * n_batches // 5
    assert stored["order"].tolist() == np.roll(range(5), 1 + 2 * n_batches // 5).tolist()
    assert stored["order"].dtype == np.int64
    previous = iterator.previous_epoch_detail
    assert stored["previous_epoch_detail"] == (-1.0 if previous is None else previous)


def test_minus_one_stands_for_no_order(make, save):
    stored = save(make(range(5), 2, shuffle=False))
    assert stored["order"] == -1
    assert stored["previous_epoch_detail"] == -1


def test_saving_disturbs_nothing(make, save):
    iterator = make(range(5), 2, shuffle=False)
    batches = []
    for _ in range(6):
        batches.append(next(iterator))
        save(iterator)
    assert list(itertools.chain(*batches)) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_function_that_only_keeps_saves(make):
    iterator = make(range(5), 2, shuffle=False)
    next(iterator)
    stored: dict[str, Any] = {}
    iterator.serialize(stored.__setitem__)
    assert stored.keys() == KEYS
    assert stored["current_position"] == 2
    assert iterator.current_position == 2


def test_saving_after_finalize(make, save):
    iterator = make(range(5), 2, shuffle=False)
    next(iterator)
    iterator.finalize()
    assert save(iterator)["current_position"] == 2


# -- loading -------------------------------------------------------------------------------------


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("n_batches", "shuffle"), [(3, None), (0, None), (8, None), (1, False), (4, False)]
)
def test_snapshot_of_one_kind_loads_into_another(make_source, make, save, load, n_batches, shuffle):
    source = make_source(range(7), 2, shuffle=shuffle)
    for _ in range(n_batches):
        next(source)
    try:
        stored = save(source)
    except (TypeError, AttributeError):
        assert not make_source.kind.is_ours and shuffle is False  # Chainer's has no order to copy
        return
    target = make(range(7), 2, shuffle=shuffle)
    for _ in range(2):
        next(target)
    load(target, stored)
    assert state(target) == state(source)
    assert rest_of_epoch(target)[:2] == rest_of_epoch(source)[:2]


def test_a_snapshot_of_the_start_loads_where_nothing_was_delivered(make):
    first, second = make(range(50), 5), make(range(50), 5)
    stored: dict[str, Any] = {}
    first.serialize(stored.__setitem__)
    second.serialize(lambda key, value: stored[key])
    assert list(next(second)) == list(next(first))


def test_loading_drops_what_was_fetched_ahead(make, save, load):
    iterator = make(range(100), 3, shuffle=False)
    stored = save(iterator)
    for _ in range(5):
        next(iterator)
    load(iterator, stored)
    assert [next(iterator), next(iterator)] == [[0, 1, 2], [3, 4, 5]]


def test_snapshot_of_the_end_is_the_end(make, save, load):
    source = make(range(5), 2, shuffle=False, repeat=False)
    list(source)
    target = make(range(5), 2, shuffle=False, repeat=False)
    load(target, save(source))
    with pytest.raises(StopIteration):
        next(target)


def test_the_key_that_chainers_multithread_iterator_has_for_the_order(make, save, load):
    source = make(range(5), 2)
    next(source)
    stored = save(source)
    stored["_order"] = stored.pop("order")
    target = make(range(5), 2)
    load(target, stored)
    assert next(target) == next(source)


@pytest.mark.parametrize("order", [None, np.array(None), -1, np.array(-1)])
def test_ways_of_chainers_snapshots_to_have_no_order(make, load, order):
    stored = {"current_position": 4, "epoch": 1, "is_new_epoch": False, "_order": order}
    target = make(range(5), 2, shuffle=False)
    load(target, stored)
    assert next(target) == [4, 0]


@pytest.mark.parametrize(
    ("position", "epoch", "previous"), [(0, 0, None), (1, 0, 0.0), (4, 0, 0.4), (0, 3, 2.6)]
)
def test_snapshots_of_chainers_first_versions_have_no_previous_epoch_detail(
    make, load, position, epoch, previous
):
    stored = {"current_position": position, "epoch": epoch, "is_new_epoch": False}
    target = make(range(5), 2, shuffle=False)
    load(target, stored)
    assert target.previous_epoch_detail == (None if previous is None else pytest.approx(previous))


def test_none_as_previous_epoch_detail(make, save, load):
    target = make(range(5), 2)
    next(target)
    load(target, {**save(target), "previous_epoch_detail": None})
    assert target.previous_epoch_detail is None


def test_lenient_loading_keeps_what_is_missing(make, save, load):
    iterator = make(range(5), 2)
    next(iterator)
    before = state(iterator)
    order = save(iterator)["order"].tolist()
    load(iterator, {}, strict=False)
    assert state(iterator) == before
    assert save(iterator)["order"].tolist() == order
    load(iterator, {"current_position": 4}, strict=False)
    assert iterator.current_position == 4
    assert save(iterator)["order"].tolist() == order
    load(iterator, {"_order": np.arange(5)}, strict=False)
    assert save(iterator)["order"].tolist() == [0, 1, 2, 3, 4]


def test_loading_after_finalize(make, save, load):
    iterator = make(range(5), 2, shuffle=False)
    stored = save(iterator)
    next(iterator)
    iterator.finalize()
    if make.kind.is_reopenable:
        load(iterator, stored)
        assert next(iterator) == [0, 1]
    else:
        with pytest.raises(NotImplementedError):
            load(iterator, stored)
        assert iterator.current_position == 2


GOOD = {
    "current_position": 2,
    "epoch": 1,
    "is_new_epoch": False,
    "order": np.array([4, 3, 2, 1, 0]),
    "previous_epoch_detail": 1.0,
}

CORRUPT = {
    "position at the end": {"current_position": 5},
    "position beyond the end": {"current_position": 99},
    "negative position": {"current_position": -1},
    "fractional position": {"current_position": 1.5},
    "position NaN": {"current_position": np.nan},
    "position None": {"current_position": None},
    "position of many": {"current_position": np.array([1, 2])},
    "huge position": {"current_position": 2**70},
    "negative epoch": {"epoch": -1},
    "epoch NaN": {"epoch": np.nan},
    "is_new_epoch 2": {"is_new_epoch": 2},
    "is_new_epoch NaN": {"is_new_epoch": np.nan},
    "detail NaN": {"previous_epoch_detail": np.nan},
    "detail infinite": {"previous_epoch_detail": np.inf},
    "detail text": {"previous_epoch_detail": "x"},
    "order too short": {"order": np.arange(4)},
    "order too long": {"order": np.arange(6)},
    "order of one": {"order": np.array([0])},
    "order a number": {"order": np.array(0)},
    "order -1": {"order": -1},
    "order None": {"order": None},
    "order out of range": {"order": np.array([0, 1, 2, 3, 5])},
    "order negative": {"order": np.array([0, 1, 2, 3, -1])},
    "order of floats": {"order": np.arange(5.0)},
    "order 2-D": {"order": np.arange(5).reshape(1, 5)},
    "order of objects": {"order": np.array([0, 1, 2, 3, None])},
}


@pytest.mark.thinned(16)
@pytest.mark.parametrize("fault", CORRUPT)
def test_corrupt_snapshot_is_refused_and_changes_nothing(make, save, load, fault):
    iterator = make(range(5), 2)
    next(iterator)
    before, order = state(iterator), save(iterator)["order"].tolist()
    with pytest.raises(ValueError):
        load(iterator, {**GOOD, **CORRUPT[fault]})
    assert state(iterator) == before
    assert save(iterator)["order"].tolist() == order
    assert next(iterator) == order[2:4]
    load(iterator, GOOD)
    assert next(iterator) == [2, 1]


@pytest.mark.parametrize("missing", ["current_position", "epoch", "is_new_epoch", "order"])
def test_missing_key_is_refused_and_changes_nothing(make, load, missing):
    iterator = make(range(5), 2)
    next(iterator)
    before = state(iterator)
    with pytest.raises(ValueError, match=missing):
        load(iterator, {key: GOOD[key] for key in GOOD if key != missing})
    assert state(iterator) == before


def test_order_is_refused_where_there_is_none(make, load):
    iterator = make(range(5), 2, shuffle=False)
    with pytest.raises(ValueError, match="order"):
        load(iterator, GOOD)
    assert next(iterator) == [0, 1]


# -- Chainer's own serializers -------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [None, False])
def test_through_chainers_npz(make, shuffle):
    serializers = pytest.importorskip("chainer").serializers
    source = make(range(7), 3, shuffle=shuffle)
    for _ in range(4):
        next(source)
    file = io.BytesIO()
    serializers.save_npz(file, source)
    file.seek(0)
    target = make(range(7), 3, shuffle=shuffle)
    serializers.load_npz(file, target)
    assert state(target) == state(source)
    assert rest_of_epoch(target)[:1] == rest_of_epoch(source)[:1]


def test_chainers_npz_cannot_broadcast_a_missing_order(make):
    serializers = pytest.importorskip("chainer").serializers
    source = make(range(7), 3, shuffle=False)
    next(source)
    file = io.BytesIO()
    serializers.save_npz(file, source)
    target = make(range(7), 3)
    with pytest.raises(ValueError, match="order"):
        file.seek(0)
        serializers.load_npz(file, target)
    assert target.current_position == 0
    assert sorted(itertools.chain(*itertools.islice(target, 7))) == sorted([*range(7)] * 3)


def test_chainers_serial_iterator_takes_our_snapshot(make, save, load):
    theirs = pytest.importorskip("chainer").iterators.SerialIterator(range(7), 3)
    ours = make(range(7), 3)
    for _ in range(2):
        next(ours)
    load(theirs, save(ours))
    assert theirs.next()[:1] == next(ours)[:1]
    assert theirs.epoch == ours.epoch

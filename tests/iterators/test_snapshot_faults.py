"""Snapshots damaged at random: refused with a ValueError, and nothing has changed; or what was
loaded is a state that the iteration can be in."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serializers import Loader, Saver
from test_samplers import SAMPLERS

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator

N = 23
BATCH = 4

ITERATIONS: dict[str, Any] = {
    **{name: lambda make=make: {"order_sampler": make()} for name, make in SAMPLERS.items()},
    "by index": lambda: {"shuffle": False},
    "shuffled": lambda: {"shuffle": True},
    "function": lambda: {"order_sampler": _rolled},
}

CLASSES: dict[str, Any] = {
    "serial": SerialIterator,
    "threads": lambda *a, **k: MultithreadIterator(*a, n_threads=1, **k),
    # Loading is the caller's part: no worker is needed for what is tested here.
    "processes": lambda *a, **k: MultiprocessIterator(*a, n_processes=0, **k),
}


def _rolled(order: Any, position: int) -> Any:
    return np.roll(order, 1)


_NUMBERS = st.one_of(
    st.integers(-3, N + 3),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.complex_numbers(),
    st.booleans(),
)
_DTYPES = ["i1", "u1", "i4", ">i8", "u8", "f4", "f8", "c16", "?", "S3", "U2", "M8[s]", "m8[s]"]


def _changed_array(draw: Any, old: Any) -> Any:
    """An array like the old one, and yet not it."""
    array = np.array(old).ravel()
    how = draw(st.sampled_from(["value", "twice", "cut", "longer", "dtype", "shape", "object"]))
    at = draw(st.integers(0, max(0, array.size - 1)))
    if how == "value":
        value = draw(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, N + 1))
        array[at : at + 1] = np.array(value).astype(array.dtype)  # bytes, too, take what is left
    elif how == "twice":
        array[at : at + 1] = array[:1]
    elif how == "cut":
        array = array[:at]
    elif how == "longer":
        array = np.append(array, array[:1])
    elif how == "dtype":
        dtype = draw(st.sampled_from(_DTYPES))
        with np.errstate(all="ignore"), contextlib.suppress(TypeError, ValueError):
            array = array.astype(dtype)
    elif how == "shape":
        array = array.reshape(draw(st.sampled_from([(1, -1), (-1, 1), (1, 1, -1)])))
    else:
        array = array.astype(object)
        array[at : at + 1] = draw(st.none() | _NUMBERS | st.text(max_size=3))
    return array


@st.composite
def damage(draw: Any, stored: dict[str, Any]) -> dict[str, Any]:
    """The snapshot with one key or several damaged or missing."""
    damaged = dict(stored)
    keys = st.sampled_from(sorted(stored))
    for key in draw(st.lists(keys, min_size=1, max_size=2, unique=True)):
        how = draw(st.sampled_from(["missing", "number", "junk", "array", "array"]))
        if how == "missing":
            del damaged[key]
        elif how == "number":
            number = draw(_NUMBERS)
            damaged[key] = draw(st.sampled_from([number, [number], [number, number], [[number]]]))
        elif how == "junk":
            damaged[key] = draw(st.sampled_from([None, "x", b"x", [], {}, (), [None], object()]))
        else:
            damaged[key] = _changed_array(draw, stored[key])
    return damaged


def _all_of(iterator: Any) -> tuple[Any, ...]:
    dict_ = iterator.state_dict()
    return (
        iterator.current_position,
        iterator.epoch,
        iterator.is_new_epoch,
        iterator.previous_epoch_detail,
        {key: np.asarray(value).tolist() for key, value in dict_.items()},
    )


def _load(iterator: Any, stored: dict[str, Any], way: str) -> None:
    if way == "serialize":
        loader = Loader({key: _as_stored(value) for key, value in stored.items()})
        iterator.serialize(loader)
    else:
        iterator.load_state_dict(stored)


def _as_stored(value: Any) -> Any:
    """As a file of arrays gives it back."""
    return value if value is None else np.asarray(value)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("iteration", ITERATIONS)
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_snapshots(cls, iteration, data):
    arguments = ITERATIONS[iteration]()
    iterator = CLASSES[cls](range(N), BATCH, **arguments)
    source = copy.copy(iterator)
    for _ in range(data.draw(st.integers(0, 8), "batches of the source")):
        next(source)
    next(iterator)
    way = data.draw(st.sampled_from(["serialize", "load_state_dict"]), "way")
    if way == "serialize":
        saver = Saver()
        source.serialize(saver)
        stored = saver.stored
    else:
        stored = source.state_dict()
    damaged = data.draw(damage(stored), "damaged")
    expected = copy.copy(iterator)
    before = _all_of(iterator)
    try:
        _load(iterator, damaged, way)
    except ValueError:
        assert _all_of(iterator) == before
    else:
        expected = copy.copy(iterator)
        assert 0 <= iterator.current_position < len(iterator) * BATCH
        assert iterator.epoch >= 0
    for _ in range(12):
        batch = next(iterator)
        assert len(batch) == BATCH and all(0 <= index < N for index in batch)
        if iteration != "shuffled":  # its generator is one for both
            assert batch == next(expected)
    for made in (iterator, source, expected):
        made.finalize()

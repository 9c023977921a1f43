"""States that earlier code has written load, with the batches that came then."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from serializers import Loader
from support.frozen_states import PLACES, SPECIAL, arrays, frozen
from support.state_cases import CASES, taken

from fastiter import MultithreadIterator, SerialIterator

FROZEN = frozen()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator])
def test_a_state_goes_on(kind: Any, case: str, place: int) -> None:
    known = FROZEN[f"{case}, {place}"]
    with CASES[case](kind) as by_dict, CASES[case](kind) as by_serializer:
        by_dict.load_state_dict(known["state"])
        by_serializer.serialize(Loader(arrays(known["stored"])))
        for iterator in by_dict, by_serializer:
            assert taken(iterator, len(known["batches"])) == known["batches"]
        by_dict.load_state_dict(arrays(known["stored"]))
        assert taken(by_dict, 1) == known["batches"][:1]


@pytest.mark.parametrize("name", SPECIAL)
def test_a_state_after_something_else_goes_on(name: str) -> None:
    """Batches were overtaken, the dataset has grown, or the batch size was another one."""
    known = FROZEN[name]
    iterator = SPECIAL[name][1]()
    iterator.load_state_dict(known["state"], strict=not name.startswith("grown"))
    assert taken(iterator, len(known["batches"])) == known["batches"]


def test_a_state_that_is_written_now_says_the_same() -> None:
    for case, make in CASES.items():
        iterator, other = make(SerialIterator), make(SerialIterator)
        iterator.load_state_dict(FROZEN[f"{case}, {PLACES[0]}"]["state"])
        other.load_state_dict(iterator.state_dict())
        assert iterator.state_dict() == other.state_dict(), case
        for name in ("epoch", "current_position", "is_new_epoch", "previous_epoch_detail"):
            assert getattr(other, name) == getattr(iterator, name), case
        stored: dict[str, Any] = {}
        iterator.serialize(stored.__setitem__)
        known = arrays(FROZEN[f"{case}, {PLACES[0]}"]["stored"])
        assert stored.keys() == known.keys(), case
        assert {key: content(stored[key]) for key in stored} == {
            key: content(known[key]) for key in known
        }, case


def content(value: Any) -> Any:
    """The content of an entry: of bytes, what their JSON says."""
    array = np.asarray(value)
    return json.loads(array.tobytes()) if array.dtype == np.uint8 else array.tolist()

"""States that a release has written, and the batches that come after each of them.

``tests/data/make_golden_states.py`` has written them; they must load for ever.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from support.grid_kinds import Gated
from support.state_cases import BATCH, CASES, N, taken

from fastiter import (
    LengthBucketBatchSampler,
    MultiprocessIterator,
    SerialIterator,
    ShuffleOrderSampler,
)

STATES = Path(__file__).resolve().parents[1] / "data" / "states.json"
PLACES, AFTER = (4, 17), 6  # batches: in the first epoch, and in the second one
_LONG = 200  # characters of a text that is written once


def written(states: dict[str, Any]) -> str:
    """States as JSON, a line each. Long texts, which come several times, stand apart."""
    texts: list[str] = []

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(each) for key, each in value.items()}
        if isinstance(value, list):
            return [short(each) for each in value]
        if isinstance(value, str) and len(value) > _LONG:
            if value not in texts:
                texts.append(value)
            return f"text {texts.index(value)}"
        return value

    lines = {name: json.dumps(short(each), separators=(",", ":")) for name, each in states.items()}
    lines["texts"] = json.dumps(texts, indent=0)
    rows = ",\n".join(f"{json.dumps(name)}: {line}" for name, line in lines.items())
    return f"{{\n{rows}\n}}\n"


def frozen() -> dict[str, Any]:
    """By name, dicts of a state, and of the batches that follow."""

    def long(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: long(each) for key, each in value.items()}
        if isinstance(value, list):
            return [long(each) for each in value]
        if isinstance(value, str) and value.startswith("text "):
            return texts[int(value.removeprefix("text "))]
        return value

    states: dict[str, Any] = json.loads(STATES.read_text())
    texts = states.pop("texts")
    return {name: long(each) for name, each in states.items()}


def arrays(stored: dict[str, Any]) -> dict[str, Any]:
    """Entries given to a serializer of Chainer's protocol, from JSON."""
    return {key: np.array(value, dtype) for key, (dtype, value) in stored.items()}


def of_arrays(stored: dict[str, Any]) -> dict[str, Any]:
    given = {key: np.asarray(value) for key, value in stored.items()}
    return {key: [value.dtype.str, value.tolist()] for key, value in given.items()}


# ---- those that no one call of `state_dict` gives ------------------------------------------------


def shuffled(kind: Any = SerialIterator, n: int = N, batch_size: int = BATCH, **more: Any) -> Any:
    return kind(range(n), batch_size, order_sampler=ShuffleOrderSampler(7), **more)


def in_buckets(kind: Any = SerialIterator, batch_size: int = BATCH, **more: Any) -> Any:
    sampler = LengthBucketBatchSampler(np.arange(N), batch_size=batch_size, seed=7)
    return kind(range(N), batch_sampler=sampler, **more)


def without_a_seed(kind: Any = SerialIterator, **more: Any) -> Any:
    np.random.seed(5)
    return kind(range(N), BATCH, **more)


def overtaken(make: Callable[..., Any], step: int, **more: Any) -> dict[str, Any]:
    """The state of an iterator whose batch of that step has been overtaken by others."""
    gate = multiprocessing.get_context("fork").Event()
    serial = make(**more)
    slow = [next(serial) for _ in range(step + 1)][-1][0]

    def gated(dataset: Any, *args: Any, **given: Any) -> Any:
        options = {"n_processes": 3, "context": "fork", "in_order": False}
        return MultiprocessIterator(Gated(dataset, slow, gate), *args, **given, **options)

    with make(gated, **more) as iterator:
        for _ in range(step + 2):
            next(iterator)
        state: dict[str, Any] = iterator.state_dict()
        gate.set()
    return state


def of_two_ranks() -> list[dict[str, Any]]:
    return [overtaken(shuffled, 2 + rank, rank=rank, num_ranks=2) for rank in range(2)]


def half_delivered() -> dict[str, Any]:
    iterator = shuffled(batch_size=5)
    iterator.load_state_dict(of_two_ranks())
    next(iterator)
    state: dict[str, Any] = iterator.state_dict()
    return state


def after_growth(seed: int | None) -> dict[str, Any]:
    make = shuffled if seed is not None else lambda n: SerialIterator(range(n), BATCH)
    former, grown = make(n=N // 2), make(n=N)
    taken(former, 4)
    grown.load_state_dict(former.state_dict(), strict=False)
    taken(grown, 1)
    state: dict[str, Any] = grown.state_dict()
    return state


def of_two_sizes() -> dict[str, Any]:
    former, later = in_buckets(), in_buckets(batch_size=4)
    taken(former, 4)
    later.load_state_dict(former.state_dict())
    taken(later, 2)
    state: dict[str, Any] = later.state_dict()
    return state


#: state, and the iterator that goes on from it
SPECIAL: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "missing": (lambda: overtaken(shuffled, 2), shuffled),
    "missing of buckets": (lambda: overtaken(in_buckets, 2), in_buckets),
    "missing without a seed": (lambda: overtaken(without_a_seed, 2), without_a_seed),
    "missing, loaded with another size": (
        lambda: overtaken(shuffled, 2),
        lambda: shuffled(batch_size=5),
    ),
    "missing of two ranks": (of_two_ranks, lambda: shuffled(batch_size=5)),
    "missing of two ranks, in part delivered": (half_delivered, lambda: shuffled(batch_size=4)),
    "grown": (lambda: after_growth(7), shuffled),
    "grown without a seed": (lambda: after_growth(None), without_a_seed),
    "of two sizes": (of_two_sizes, in_buckets),
}


def new_states() -> Iterator[tuple[str, dict[str, Any]]]:
    """Entries of iterators that `make_golden_states` writes."""
    for case, make in CASES.items():
        for place in PLACES:
            iterator, stored = make(SerialIterator), {}
            taken(iterator, place)
            state = iterator.state_dict()
            iterator.serialize(stored.__setitem__)
            yield (
                f"{case}, {place}",
                {
                    "state": state,
                    "stored": of_arrays(stored),
                    "batches": taken(iterator, AFTER),
                },
            )
    for name, (state_of, make_other) in SPECIAL.items():
        state, other = state_of(), make_other()
        other.load_state_dict(state, strict=not name.startswith("grown"))
        yield name, {"state": state, "batches": taken(other, AFTER)}

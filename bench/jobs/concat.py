"""Equal shapes: a batch from a list of arrays or numbers, and from whole examples."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.harness.micro import (
    AtMost,
    Case,
    Goal,
    Measured,
    Prepared,
    expect_equal,
    limits,
    pointers,
    rotating,
)

NAME = "concat"
TITLE = "one batch from a list of arrays, numbers or examples of one shape"

# A batch of small examples that lie in the cache may take 0.5 us, and 6 ns for each of them.
SMALL_NS = 6 + 500 / 256


def _fastiter() -> Any:
    from fastiter.kernels import stack

    return stack


def _numpy() -> Any:
    return np.stack


def _chainers_way(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([array[None] for array in arrays])


def _torch() -> Any:
    import torch

    torch.set_num_threads(1)
    return Prepared(lambda arrays: list(map(torch.from_numpy, arrays)), torch.stack)


def _default_collate() -> Any:
    import torch
    from torch.utils.data import default_collate

    torch.set_num_threads(1)
    return default_collate


def _limit() -> Any:
    """A loop of memcpy into one warm buffer."""
    library = limits()

    outputs: dict[Any, np.ndarray] = {}

    def prepare(arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        shape = (len(arrays), *arrays[0].shape)
        out = outputs.setdefault(shape, np.zeros(shape, arrays[0].dtype))
        return out, pointers(arrays), len(arrays), arrays[0].nbytes

    def run(prepared: tuple[Any, ...]) -> Measured:
        out, addresses, count, nbytes = prepared
        return Measured(library.limit_copy(out.ctypes.data, addresses.ctypes.data, count, nbytes))

    return Prepared(prepare, run)


ARRAYS: dict[str, Callable[[], Any]] = {
    "fastiter": _fastiter,
    "numpy.stack": _numpy,
    "numpy.concatenate": lambda: _chainers_way,
    "torch.stack": _torch,
    "torch.default_collate": _default_collate,
    "limit": _limit,
}
NUMBERS: dict[str, Callable[[], Any]] = {
    "fastiter": _fastiter,
    "numpy.array": lambda: np.array,
    "torch.default_collate": _default_collate,
}


def _arrays(seed: int, count: int, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    rng = np.random.RandomState(seed)
    if dtype == "u1":
        return [rng.randint(0, 256, shape, np.uint8) for _ in range(count)]
    return [rng.rand(*shape).astype(dtype) for _ in range(count)]


def _check(result: Any, source: Sequence[Any]) -> None:
    expect_equal(result, np.stack(source))


def _case(
    name: str, count: int, shape: tuple[int, ...], dtype: str, cold: bool, goals: Sequence[Any]
) -> Case:
    nbytes = count * math.prod(shape) * np.dtype(dtype).itemsize
    return Case(
        name=name,
        sources=rotating(
            lambda seed: _arrays(seed, count, shape, dtype),
            # A small array is mostly its object: about 200 bytes more.
            nbytes + 200 * count,
            cold=cold,
        ),
        candidates=ARRAYS,
        check=_check,
        items=count,
        item="example",
        nbytes=nbytes,
        goals=goals,
    )


def _array_cases(quick: bool) -> Iterator[Case]:
    large = [Goal("limit", 0.95), AtMost("p95_ratio", 1.3)]
    small = [AtMost("ns_per_item", SMALL_NS), Goal("numpy.stack", 20), Goal("torch.stack", 15)]
    yield _case("256 x float32[16], in cache", 256, (16,), "f4", False, small)
    yield _case(
        "64 x uint8[224, 224, 3]", 64, (224, 224, 3), "u1", True, [*large, Goal("best peer", 0.9)]
    )
    if quick:
        return
    yield _case("256 x float32[16], cold", 256, (16,), "f4", True, [Goal("best peer", 10)])
    yield _case("256 x float32[3, 32, 32]", 256, (3, 32, 32), "f4", True, [Goal("best peer", 1.3)])
    yield _case(
        "32 x float32[3, 224, 224]",
        32,
        (3, 224, 224),
        "f4",
        True,
        [*large, Goal("best peer", 0.9)],
    )
    yield _case(
        "4 x float32[3145728]",
        4,
        (3 << 20,),
        "f4",
        True,
        [*large, Goal("best peer", 0.95), Goal("torch.stack", 5)],
    )
    for side, count in itertools.product((64, 1024, 16384, 131072), (32,)):
        name = f"{count} x float32[{side}]"
        yield _case(name, count, (side,), "f4", True, [Goal("best peer", 0.95)])


def _number_cases() -> Iterator[Case]:
    kinds: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
        "int": (int, [Goal("numpy.array", 5), Goal("torch.default_collate", 20)]),
        "float": (float, [Goal("numpy.array", 5), Goal("torch.default_collate", 20)]),
        "numpy.float32": (np.float32, [Goal("torch.default_collate", 5)]),
        "numpy.int64": (np.int64, [Goal("torch.default_collate", 5)]),
    }
    for name, (kind, goals) in kinds.items():
        values = [kind(x) for x in np.random.RandomState(0).randint(0, 100_000, 256)]
        yield Case(
            name=f"256 x {name}",
            sources=functools.partial(list, [values]),
            candidates=NUMBERS,
            check=_check_numbers,
            items=256,
            item="example",
            goals=goals,
        )


def _check_numbers(result: Any, source: list[Any]) -> None:
    # torch makes float64 of Python floats and int64 of ints, as NumPy does.
    expect_equal(result, np.array(source))


# ---- whole examples ----


def _concat_examples() -> Any:
    from fastiter import concat_examples

    return concat_examples


def _chainers_concat(batch: Sequence[Any]) -> Any:
    """Chainer's way of concat_examples."""
    if isinstance(batch[0], dict):
        return {key: _chainers_field([e[key] for e in batch]) for key in batch[0]}
    return tuple(_chainers_field([e[i] for e in batch]) for i in range(len(batch[0])))


def _chainers_field(field: Any) -> np.ndarray:
    if not isinstance(field[0], np.ndarray):
        field = np.asarray(field)
    return _chainers_way(field)


EXAMPLES: dict[str, Callable[[], Any]] = {
    "fastiter": _concat_examples,
    "numpy.concatenate": lambda: _chainers_concat,
    "torch.default_collate": _default_collate,
}


def _check_fields(result: Any, source: list[Any]) -> None:
    expected = _chainers_concat(source)
    if isinstance(expected, dict):
        result, expected = [result[key] for key in expected], list(expected.values())
    for array, correct in zip(result, expected, strict=True):
        expect_equal(array, correct)


def _example_cases() -> Iterator[Case]:
    arrays = _arrays(0, 256, (16,), "f4")
    tuples = [(array, number) for number, array in enumerate(arrays)]
    dicts = [{"x": array, "y": number} for array, number in tuples]
    for name, batch in (("tuple", tuples), ("dict", dicts)):
        yield Case(
            name=f"256 x {name} of float32[16] and int",
            sources=functools.partial(list, [batch]),
            candidates=EXAMPLES,
            check=_check_fields,
            items=256,
            item="example",
            goals=[Goal("best peer", 15)],
        )


def cases(quick: bool) -> Iterator[Case]:
    yield from _array_cases(quick)
    yield from _number_cases()
    yield from _example_cases()

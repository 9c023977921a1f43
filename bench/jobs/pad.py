"""Different shapes: ragged rows padded to one array."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.harness.micro import (
    Case,
    Goal,
    Measured,
    Prepared,
    expect_equal,
    limits,
    rotating,
)

NAME = "pad"
TITLE = "one batch from a list of arrays of different shapes"

Arrays = Sequence[np.ndarray]


def _chainers_way(arrays: Arrays, fill: float) -> np.ndarray:
    shape = np.max([array.shape for array in arrays], axis=0)
    result = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for i, array in enumerate(arrays):
        result[(i, *map(slice, array.shape))] = array
    return result


def _fastiter(fill: float) -> Any:
    from fastiter.kernels import pad_stack

    return lambda arrays: pad_stack(arrays, fill)


def _numpy(fill: float) -> Any:
    return lambda arrays: _chainers_way(arrays, fill)


def _torch(fill: float) -> Any:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    torch.set_num_threads(1)
    return Prepared(
        lambda arrays: list(map(torch.from_numpy, arrays)),
        lambda tensors: pad_sequence(tensors, batch_first=True, padding_value=fill),
    )


def _runs(shape: tuple[int, ...], full: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The elements copied and then filled, in the order of memory, of one padded row."""
    inner, whole = int(np.prod(shape[1:])), int(np.prod(full[1:]))
    if inner == whole:
        yield shape[0] * inner, (full[0] - shape[0]) * whole
        return
    for line in range(shape[0]):
        pairs = list(_runs(shape[1:], full[1:]))
        if line == shape[0] - 1:
            copied, filled = pairs[-1]
            pairs[-1] = copied, filled + (full[0] - shape[0]) * whole
        yield from pairs


def _limit() -> Any:
    """memcpy of the real bytes, memset of the rest, into one warm buffer."""
    library = limits()
    # The library writes to the address that it is given: the buffer must live.
    buffer = np.zeros(0, np.uint8)

    def prepare(arrays: Arrays) -> tuple[Any, ...]:
        nonlocal buffer
        full = tuple(np.max([array.shape for array in arrays], axis=0))
        itemsize = arrays[0].itemsize
        nbytes = len(arrays) * int(np.prod(full)) * itemsize
        if buffer.nbytes < nbytes:
            buffer = np.zeros(nbytes, np.uint8)
        segments = []  # source, bytes copied, bytes filled
        for array in arrays:
            place = array.ctypes.data
            for copied, filled in _runs(array.shape, full):
                segments.append((place, copied * itemsize, filled * itemsize))
                place += copied * itemsize
        columns = [np.array(column, np.uintp) for column in zip(*segments, strict=True)]
        return columns, arrays

    def run(prepared: tuple[Any, ...]) -> Measured:
        columns, _ = prepared
        sources, copied, filled = (column.ctypes.data for column in columns)
        return Measured(
            library.limit_segments(buffer.ctypes.data, len(columns[0]), sources, copied, filled, 0)
        )

    return Prepared(prepare, run)


def _tokens(seed: int) -> list[np.ndarray]:
    rng = np.random.RandomState(seed)
    return [rng.randint(1, 30_000, length) for length in rng.randint(8, 513, 128)]


def _images(seed: int) -> list[np.ndarray]:
    rng = np.random.RandomState(seed)
    return [
        rng.randint(0, 256, (height, width, 3), np.uint8)
        for height, width in rng.randint(200, 501, (32, 2))
    ]


def _spectrograms(seed: int) -> list[np.ndarray]:
    rng = np.random.RandomState(seed)
    return [rng.rand(length, 80).astype("f4") for length in rng.randint(100, 1201, 32)]


def _case(
    name: str,
    make: Callable[[int], list[np.ndarray]],
    fill: float,
    *,
    cold: bool,
    torch: bool,
    goals: Sequence[Goal],
) -> Case:
    example = make(0)
    nbytes = sum(array.nbytes for array in example)
    candidates: dict[str, Callable[[], Any]] = {
        "fastiter": functools.partial(_fastiter, fill),
        "numpy.full": functools.partial(_numpy, fill),
    }
    if torch:
        candidates["torch.pad_sequence"] = functools.partial(_torch, fill)
    candidates["limit"] = _limit
    return Case(
        name=f"{name}, fill {fill}",
        sources=rotating(make, nbytes, cold=cold),
        candidates=candidates,
        check=lambda result, source: expect_equal(result, _chainers_way(source, fill)),
        items=len(example),
        item="example",
        nbytes=_chainers_way(example, fill).nbytes,
        goals=goals,
    )


def cases(quick: bool) -> Iterator[Case]:
    tokens = [Goal("numpy.full", 10), Goal("torch.pad_sequence", 15)]
    yield _case("128 x int64[8..512]", _tokens, 0, cold=False, torch=True, goals=tokens)
    if quick:
        return
    yield _case("128 x int64[8..512]", _tokens, -100, cold=False, torch=True, goals=tokens)
    yield _case(
        "32 x uint8[200..500, 200..500, 3]",
        _images,
        0,
        cold=True,
        torch=False,
        goals=[Goal("numpy.full", 1.1), Goal("limit", 0.85)],
    )
    for fill in (0, 1.5):
        yield _case(
            "32 x float32[100..1200, 80]",
            _spectrograms,
            fill,
            cold=True,
            torch=True,
            goals=[Goal("numpy.full", 1.5), Goal("torch.pad_sequence", 1.3)],
        )

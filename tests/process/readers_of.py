"""Readers for the tests, at module level so that spawn can import them."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np


class Pair(NamedTuple):
    image: np.ndarray
    label: int


class Numbers:
    """`n` tuples (reader, number, float), of which nothing repeats."""

    def __init__(self, number, n):
        self.number, self.n = number, n

    def __call__(self):
        for i in range(self.n):
            yield self.number, i, i / 2


class Images:
    """`n` pairs (array, number); the array says which it is, all over."""

    def __init__(self, number, n, shape=(40, 50)):
        self.number, self.n, self.shape = number, n, shape

    def __call__(self):
        image = np.empty(self.shape, np.int32)  # one for all: it is copied when it is yielded
        for i in range(self.n):
            image[...] = 1000 * self.number + i
            yield image, i


class Failing:
    """Three samples, then what `how` says."""

    def __init__(self, how):
        self.how = how

    def __call__(self):
        yield from range(3)
        if self.how == "raise":
            raise LookupError("no such record", 17)
        if self.how == "kill":
            os.kill(os.getpid(), 9)
        if self.how == "exit":
            os._exit(0)
        if self.how == "sys.exit":
            raise SystemExit(5)
        if self.how == "none":
            yield None
        if self.how == "unpicklable":
            yield lambda: None
        if self.how == "unloadable":
            yield Unloadable()


def fail_to_load():
    raise OSError("it cannot be loaded")


class Unloadable:
    def __reduce__(self):
        return fail_to_load, ()


def samples_of_every_kind():
    read_only = np.arange(3)
    read_only.flags.writeable = False
    for _ in range(3):
        yield from (
            "",
            b"",
            0,
            2**70,
            -1.5,
            True,
            (),
            (1,),
            [],
            [1, (2, [3])],
            {},
            {"a": 1, 2: "b"},
            {3, 4},
            np.zeros(0),
            np.zeros((0, 3), np.float16),
            np.array(7),
            np.int8(3),
            np.float32(0.1),
            np.datetime64("2020-01-01"),
            np.arange(6).reshape(2, 3).T,
            np.arange(4, dtype=">i4"),
            np.array(["ab", "c"]),
            np.array([None, 1], object),
            np.ma.masked_array([1, 2], [True, False]),
            np.zeros(2, [("x", "i4"), ("y", "f8")]),
            read_only,
            (np.arange(5), "text", None),
            {"image": np.ones((2, 2), np.uint8), "label": 3},
            Pair(np.arange(3.0), 1),
            [np.arange(2), np.arange(3)],
            float("nan"),
            "x" * 100_000,
            np.arange(300_000),
        )
    for length in range(50):
        yield np.arange(length), length
    for i in range(50):
        yield (i, "odd") if i % 5 == 0 else (np.full(3, i), i)


def pids():
    for _ in range(3):
        yield os.getpid()


def nothing():
    return iter(())


class Text(str):
    pass


def plain_samples():
    """Tuples of plain values, up to the limits of what is sent without pickle, and just beyond."""
    yield ("first", 0, 0)
    for text in ("", "\0", "abc", "naïve", "ÿ" * 9, "Δx", "\ud800 alone", "😀", "7 bytes" * 10_000):
        yield text, text + "!", len(text)
    for number in (0, -1, 255, 2**62, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**40):
        yield "number", number
    for real in (0.0, -0.0, 5e-324, float("inf"), float("nan")):
        yield real, True, False, None
    for data in (b"", b"\0", b"12345678", b"123456789", bytes(100_000)):
        yield data, "after"
    yield ()
    yield tuple(range(64))
    yield tuple(map(str, range(65)))
    yield "nested", ("in", 1), 2
    yield Text("of a class"), np.float64(1.5), np.str_("text"), np.bool_(True)
    yield "last", 1

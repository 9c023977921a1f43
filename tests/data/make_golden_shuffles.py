"""Writes golden orders of the fast shuffle, made in plain Python from its definition.

    python tests/data/make_golden_shuffles.py

makes ``shuffles.csv`` beside this file. A line is one order: the seed (ints with spaces between),
the stream, n, SHA-256 of the order as little-endian int64, and the first of it. fastiter is not
imported; csrc/order/fi_shuffle.h describes what is done here. If the file changes, seeds give other
orders than in earlier releases: that must not happen.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import numpy as np

M64 = 2**64 - 1
M32 = 2**32 - 1
GOLDEN = 0x9E3779B97F4A7C15
ORDER, SPLIT, BUCKET, BLOCK = range(4)
BLOCK_SIZE = 2**16
FIRST = 8
CASES = [
    *(([seed], 0, n) for seed in (0, 20261) for n in (0, 1, 2, 3, 10, 16, 17, 18, 100, 1000)),
    *(([0], stream, 50) for stream in (1, 2, 2**64 - 1)),
    *((seed, 0, 50) for seed in ([2**32 - 1], [2**32], [2**200 + 7], [1, 2, 3], [0, 2**40])),
    *(([5], 1, n) for n in (60_000, 65_535, 65_536, 65_537, 300_000)),
    *(([5], 1, n) for n in (1_048_576, 1_048_577, 1_281_167, 3_500_000)),
]


def mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def mixed_with(key: tuple[int, int], number: int) -> tuple[int, int]:
    return (
        mixed(key[0] ^ mixed(number + GOLDEN & M64)),
        mixed(key[1] ^ mixed(number - GOLDEN & M64)),
    )


def rotated(x: int, k: int) -> int:
    return (x << k | x >> (64 - k)) & M64


def xoshiro(s: list[int]) -> int:
    """The next word of xoshiro256++."""
    word = (rotated(s[0] + s[3] & M64, 23) + s[0]) & M64
    t = s[1] << 17 & M64
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= t
    s[3] = rotated(s[3], 45)
    return word


class Unit:
    """The generator of one unit: eight lanes in turn, and one for rejected draws."""

    def __init__(self, key: tuple[int, int], kind: int, number: int) -> None:
        first, second = mixed_with(key, kind << 32 | number)
        words = []
        for _ in range(9):
            first, second = first + GOLDEN & M64, second + GOLDEN & M64
            words += [mixed(first), mixed(second)]
            first, second = first + GOLDEN & M64, second + GOLDEN & M64
            words += [mixed(first), mixed(second)]
        self.lanes = [words[4 * lane : 4 * lane + 4] for lane in range(9)]
        self.lane = 0
        self.half: int | None = None

    def word(self) -> int:
        self.lane = self.lane % 8 + 1
        return xoshiro(self.lanes[self.lane - 1])

    def draw(self, bound: int) -> int:
        if self.half is None:
            word = self.word()
            half, self.half = word & M32, word >> 32
        else:
            half, self.half = self.half, None
        product = half * bound
        while product & M32 < 2**32 % bound:
            product = (xoshiro(self.lanes[8]) >> 32) * bound
        return product >> 32

    def shuffle(self, values: list[int]) -> None:
        for i in range(len(values) - 1, 0, -1):
            j = self.draw(i + 1)
            values[i], values[j] = values[j], values[i]

    def split(self, size: int, buckets: int) -> list[int]:
        counts = [size]
        while len(counts) < buckets:
            halves = []
            for count in counts:
                left = 0
                for start in range(0, count, 64):
                    left += (self.word() >> 64 - min(64, count - start)).bit_count()
                halves += [left, count - left]
            counts = halves
        return counts


def order_of(seed: list[int], stream: int, n: int) -> list[int]:
    words = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    key = mixed_with(mixed_with((int(words[0]), int(words[1])), n), stream)
    if n <= 2**20:
        order = list(range(n))
        Unit(key, ORDER, 0).shuffle(order)
        return order
    buckets = 1
    while n // buckets > 49152:
        buckets *= 2
    sizes = [min(BLOCK_SIZE, n - start) for start in range(0, n, BLOCK_SIZE)]
    counts = [Unit(key, SPLIT, c).split(size, buckets) for c, size in enumerate(sizes)]
    tops, start = [], 0
    for b in range(buckets):
        size = sum(row[b] for row in counts)
        bucket = list(range(start, start + size))
        Unit(key, BUCKET, b).shuffle(bucket)
        tops.append(iter(bucket))
        start += size
    order = []
    for c, row in enumerate(counts):
        block = [next(tops[b]) for b in range(buckets) for _ in range(row[b])]
        Unit(key, BLOCK, c).shuffle(block)
        order += block
    return order


def main() -> None:
    with Path(__file__).with_name("shuffles.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "stream", "n", "sha256", "first"])
        for seed, stream, n in CASES:
            order = order_of(seed, stream, n)
            digest = hashlib.sha256(np.array(order, "<i8").tobytes()).hexdigest()
            first = " ".join(map(str, order[:FIRST]))
            writer.writerow([" ".join(map(str, seed)), stream, n, digest, first])


if __name__ == "__main__":
    main()

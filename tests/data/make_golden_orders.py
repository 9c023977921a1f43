"""Writes golden orders: what NumPy's own RandomState.permutation gives.

    python tests/data/make_golden_orders.py

makes ``orders-numpy-<version>.csv`` beside this file, of the NumPy that runs it. A line is one
call on a fresh generator: the bit generator's class, its seed, n, SHA-256 of the order as
little-endian int64, the first of it, and the next 32-bit word of the generator, which tells in
what state the call left it. fastiter is not imported.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import numpy as np

SIZES = [
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 100, 255, 256, 257, 258, 511, 512, 513, 1000),
    *(4095, 4096, 4097, 10_000, 65_535, 65_536, 65_537, 100_000, 1_000_000),
]
BIT_GENERATORS = ["MT19937", "PCG64", "Philox", "SFC64"]
FIRST = 8


def line(bit_generator: str, seed: int, n: int) -> list[object]:
    if bit_generator == "MT19937":
        state = np.random.RandomState(seed)
    else:
        state = np.random.RandomState(getattr(np.random, bit_generator)(seed))
    order = state.permutation(n)
    digest = hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()
    word = state.randint(0, 2**32, dtype=np.uint32)
    return [bit_generator, seed, n, digest, " ".join(map(str, order[:FIRST])), word]


def main() -> None:
    path = Path(__file__).with_name(f"orders-numpy-{np.__version__}.csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["bit_generator", "seed", "n", "sha256", "first", "next_word"])
        for bit_generator in BIT_GENERATORS:
            for seed in (0, 1, 20261):
                for n in SIZES:
                    writer.writerow(line(bit_generator, seed, n))


if __name__ == "__main__":
    main()

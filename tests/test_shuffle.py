"""The fast shuffle: the same order by every instruction set, method and number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from fastiter import _order, random

CELLS16, CELLS32, DEAL = range(3)
WORDS = _order.seed_words(20261)
# (label_bits, block_bits) of a deal, with piles of many sizes, empty ones included
DEALS = [(0, 5), (1, 6), (3, 5), (6, 9), (12, 18)]


def made_by(n, method, *, isa=0, threads=1, label_bits=0, block_bits=5, cells32=False, stream=0):
    return _order.fast_permutation_by(
        n, WORDS, stream, threads, isa, method, label_bits, block_bits, cells32
    )


@pytest.mark.parametrize("n", [*range(70), 255, 256, 257, 4095, 65_535, 65_536])
def test_cells_of_both_widths_and_all_instruction_sets_agree(n):
    order = random.permutation(n, 20261)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))
    for isa in _order.isa_levels():
        for method in (CELLS16, CELLS32):
            assert np.array_equal(made_by(n, method, isa=isa), order), (isa, method)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 32, 33, 100, 1000, 5000])
@pytest.mark.parametrize(("label_bits", "block_bits"), DEALS)
def test_deals_agree(n, label_bits, block_bits):
    order = made_by(n, DEAL, label_bits=label_bits, block_bits=block_bits)
    assert np.array_equal(np.sort(order), np.arange(n))
    for isa in _order.isa_levels():
        for threads in (1, 3):
            for cells32 in (False, True):
                other = made_by(
                    n,
                    DEAL,
                    isa=isa,
                    threads=threads,
                    label_bits=label_bits,
                    block_bits=block_bits,
                    cells32=cells32,
                )
                assert np.array_equal(other, order), (isa, threads, cells32)

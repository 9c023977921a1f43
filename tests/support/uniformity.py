"""Whether counts are what chance gives."""

from __future__ import annotations

import numpy as np


def chi_square_z(counts: np.ndarray, expected: np.ndarray | float, freedom: int) -> float:
    """Standard deviations by which Pearson's sum lies above what chance gives.

    By the approximation of Wilson and Hilferty (PNAS 17(12), 1931), good from a few dozen degrees
    of freedom on. Seeds are fixed in tests, so that a bound of 4 is no matter of luck.
    """
    total = float(((counts - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    return float(((total / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


def pair_z(orders: np.ndarray, i: int, j: int) -> float:
    """Of the values at two positions of many orders: (m, n) array, z of their joint counts."""
    m, n = orders.shape
    counts = np.bincount(orders[:, i] * n + orders[:, j], minlength=n * n).reshape(n, n)
    assert not counts.diagonal().any()
    apart = ~np.eye(n, dtype=bool)
    return chi_square_z(counts[apart], m / (n * (n - 1)), n * (n - 1) - 1)


def place_z(orders: np.ndarray) -> float:
    """Of each value at each position of many orders."""
    m, n = orders.shape
    counts = np.stack([np.bincount(orders[:, i], minlength=n) for i in range(n)])
    # Rows and columns have fixed sums, which takes (n - 1) / n off Pearson's sum.
    return chi_square_z(counts, m / n * n / (n - 1), (n - 1) ** 2)


def lag_z(order: np.ndarray, lag: int) -> float:
    """Of the correlation of values that far apart in one order."""
    values = (order - order.mean()) / order.std()
    return float((values[lag:] * values[:-lag]).sum() / (len(order) - lag) ** 0.5)

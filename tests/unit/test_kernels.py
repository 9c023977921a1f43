"""fastiter.kernels: the public names; what they do is tested beside their parts."""

from __future__ import annotations

import numpy as np

from fastiter import kernels


def test_stack_and_pad_stack():
    rows = [np.arange(3.0), np.arange(3.0) + 1]
    assert np.array_equal(kernels.stack(rows), np.stack(rows))
    out = np.empty((2, 3))
    assert kernels.stack(rows, out) is out
    padded = kernels.pad_stack([rows[0], rows[1][:1]], -1)
    assert np.array_equal(padded, [[0, 1, 2], [1, -1, -1]])
    assert set(kernels.__all__) >= {"stack", "pad_stack", "trim_buffers"}

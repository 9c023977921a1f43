"""The benchmark of copies to a GPU, rehearsed over a stand-in for CuPy: that it runs, and nothing
about its figures.
"""

from __future__ import annotations

import numpy as np
import pytest

from bench import device


class Stamps:
    """Images that are small."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return np.full((6, 6, 3), i, np.uint8), i


@pytest.fixture
def small(world, monkeypatch):
    monkeypatch.setattr(device, "Images", Stamps)
    monkeypatch.setattr(device, "BATCH", 4)
    monkeypatch.setattr(device, "WARM_UP", 3)
    monkeypatch.setenv("FASTITER_REGISTER", "")
    return world


@pytest.mark.parametrize("name", ["fastiter", "staged", "host", "pinned"])
def test_a_candidate_is_measured(small, name):
    found = device.run_one(name, n_workers=2, n_batches=5, kernel_ms=0.1)
    assert (found["name"], found["workers"]) == (name, 2)
    assert found["alone"]["batches"] == 5
    assert found["cpu_s"] >= 0
    assert ("busy" in found) is (name != "host")
    assert device.CANDIDATES[name][0] in device._line(found)
    if name in ("fastiter", "staged"):
        assert bool(small.machine.registrations) is (name == "fastiter")
    small.machine.finish()

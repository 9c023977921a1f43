"""The benchmark of copies to a GPU, rehearsed over a stand-in for CuPy: that it runs, and nothing
about its figures.
"""

from __future__ import annotations

import itertools

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
    return world()


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


def test_a_slow_loader_is_measured_on_fewer_batches(monkeypatch):
    monkeypatch.setattr(device, "LOOP_SECONDS", 0.01)
    found = device.measure(itertools.count(), None, 10**9, busy=False)
    assert 0 < found["batches"] < 10**9
    assert found["next_ms"] <= found["loop_ms"]


def test_the_limits_and_the_summary(small):
    limits = device.ceiling(20)
    assert set(limits) == {"pinned_GBps", "registered_GBps", "one_registered_GBps"}
    assert not small.machine.registered
    alone = {"fastiter": 2.0, "host": 1.5, "torch": 30.0, "torch-pin": 20.0}
    results = [{"name": "ceiling", "pinned_GBps": 50.0, "one_registered_GBps": 49.0}]
    for name, milliseconds in alone.items():
        results.append({"name": name, "workers": 8, "alone": {"loop_ms": milliseconds}})
        results[-1] |= {"kernel_ms": 5.0, "busy": {"loop_ms": 5.5}}
    results.append({"name": "torch", "workers": 2, "error": "no result after 120 s"})
    assert device.summary(results) == [
        "one batch out of registered memory: 0.98 of pinned copies (goal 0.95)",
        "beside torch's best: 10.0x (goal 10)",
        "beside the same ring on the host: 0.75 (goal 0.85)",
        "busy beside the longer of copies and kernel, 8 workers: 1.10 (goal 1)",
    ]
    assert device.summary(results[:1])[1:] == []

"""The example of two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import environment, run

pytest.importorskip("torch", reason="torch is not installed")


def test_two_ranks_with_remote_workers(cluster, tmp_path):
    example = Path(__file__).resolve().parents[2] / "examples" / "cluster.py"
    done = run(example, cluster.address, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert "2 ranks, 160 examples each an epoch, every example once" in done.stdout
    assert "weights [3.0, 1.0], loss 0.000" in done.stdout

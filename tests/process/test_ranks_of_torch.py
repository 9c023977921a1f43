"""Ranks that are processes of torch.distributed, over gloo: one start for all cases."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 5


def test_ranks_over_gloo_resume_each_other():
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch has no gloo here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(COUNT)}
    program = str(Path(__file__).with_name("ranks_of_torch.py"))
    processes = [
        subprocess.Popen(
            [sys.executable, program],
            env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(COUNT)
    ]
    try:
        errors = [process.communicate(timeout=150)[1] for process in processes]
        assert [process.returncode for process in processes] == [0] * COUNT, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()

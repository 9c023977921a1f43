"""Ranks that are processes of torch.distributed, over gloo, or of MPI: one start for all cases."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 5
PROGRAM = str(Path(__file__).with_name("ranks_of.py"))


def test_ranks_over_gloo_resume_each_other():
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch has no gloo here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(COUNT)}
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, "gloo"],
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


def test_ranks_over_mpi_resume_each_other():
    launcher = shutil.which("mpirun")
    if launcher is None:
        pytest.skip("there is no mpirun here")
    # Open MPI refuses root, and more ranks than cores, unless it is told.
    told = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
    told |= {
        f"OMPI_MCA_{name}": "1" for name in ("rmaps_base_oversubscribe", "mpi_yield_when_idle")
    }
    told |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    found = run(sys.executable, "-c", "from mpi4py import MPI")
    if found.returncode != 0:
        pytest.skip(f"mpi4py does not work here: {found.stderr.splitlines()[-1]}")
    done = run(launcher, "-n", str(COUNT), sys.executable, PROGRAM, "mpi")
    assert done.returncode == 0, done.stderr

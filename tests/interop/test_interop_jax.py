"""`as_jax`: each test runs a case of ``jax_cases.py`` in a program with two CPU devices."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from programs import environment, run

PROGRAM = Path(__file__).parents[1] / "support" / "jax_cases.py"
CASES = re.findall(r"^def (\w+)\(\) -> None:", PROGRAM.read_text(), re.MULTILINE)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="JAX is not installed"
)


def settings() -> dict[str, str]:
    flags = "--xla_force_host_platform_device_count=2"
    # JAX warns of every fork after its first computation.
    warnings = "ignore:os.fork:RuntimeWarning"
    return environment(JAX_PLATFORMS="cpu", XLA_FLAGS=flags, PYTHONWARNINGS=warnings)


@pytest.mark.parametrize("case", CASES)
def test_with_two_devices(case: str) -> None:
    if "torch" in case:
        pytest.importorskip("torch", reason="torch is not installed")
    result = run(PROGRAM, case, env=settings())
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_two_processes_hold_a_part_of_each_batch() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(PROGRAM), "two_processes_hold_a_part_each", port]
    both = subprocess.STDOUT
    programs = [
        subprocess.Popen(
            [*command, rank], env=settings(), stdout=subprocess.PIPE, stderr=both, text=True
        )
        for rank in "01"
    ]
    try:
        printed = "\n\n".join(program.communicate(timeout=100)[0] for program in programs)
        assert [program.returncode for program in programs] == [0, 0], printed
        seen = re.findall(r"^seen ([\d ]+)$", printed, re.MULTILINE)
        assert sorted(int(i) for part in seen for i in part.split()) == list(range(32)), printed
    finally:
        for program in programs:
            program.kill()
            program.communicate()

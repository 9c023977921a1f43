"""Fixtures of the tests of the process iterator."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outside import run_script

from fastiter import MultiprocessIterator


@pytest.fixture
def make(processes: Callable[..., MultiprocessIterator]) -> Callable[..., MultiprocessIterator]:
    """Makes the iterators under test, which here are process iterators only."""
    return processes


@pytest.fixture
def output_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Runs a program, the test file's HEAD and these lines, to its end, and gives what it prints.
    It has to succeed, and to print nothing on stderr."""
    head = textwrap.dedent(getattr(request.module, "HEAD", ""))

    def run(lines: str, **options: Any) -> str:
        status, out, err = run_script(tmp_path, head + textwrap.dedent(lines), **options)
        assert (status, err) == (0, "")
        return out

    return run

"""What the tests of the process iterator share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastiter import MultiprocessIterator


@pytest.fixture
def make(processes: Callable[..., MultiprocessIterator]) -> Callable[..., MultiprocessIterator]:
    """Makes the iterators under test, which here are process iterators only."""
    return processes

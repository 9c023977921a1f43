"""What the tests of the process iterator share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastiter import MultiprocessIterator


@pytest.fixture
def make() -> Iterator[Callable[..., MultiprocessIterator]]:
    """Makes iterators as MultiprocessIterator does, and ends them with the test."""
    made = []

    def build(dataset: Any, batch_size: int, **arguments: Any) -> MultiprocessIterator:
        defaults = {"n_processes": 2, "shuffle": False, "context": "fork"}
        made.append(MultiprocessIterator(dataset, batch_size, **{**defaults, **arguments}))
        return made[-1]

    yield build
    for iterator in made:
        iterator.finalize()

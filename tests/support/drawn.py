"""Examples and seeds that tests draw: a change's run takes a part of the nightly run's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

#: Examples of a test that names no number, in the nightly run and in that of a change.
NIGHTLY, CHANGE = 100, 40


def draw_examples(number: int, **others: Any) -> settings:
    """So many in the nightly run."""
    share = settings.default.max_examples / NIGHTLY
    return settings(max_examples=max(1, round(number * share)), **others)


def seeds(change: int, nightly: int) -> list[Any]:
    """Seeds of a test that makes its own choices, as parameters."""
    rest = (pytest.param(seed, marks=pytest.mark.stress) for seed in range(change, nightly))
    return [*range(change), *rest]

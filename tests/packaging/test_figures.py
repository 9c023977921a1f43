"""The figures of the documentation that show what the sources say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMAND = "python docs/figures/segment.py > docs/_static/segment.svg"


@pytest.fixture(scope="module")
def segment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("segment", DOCS / "figures" / "segment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_byte_map_is_that_of_the_compiler(segment: ModuleType) -> None:
    drawn = segment.draw(segment.measure())
    assert drawn == (DOCS / "_static" / "segment.svg").read_text(), f"draw it anew: {COMMAND}"

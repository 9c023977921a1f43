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


def test_the_byte_map_has_every_area_and_field(segment: ModuleType) -> None:
    layout = segment.measure()
    assert list(layout.areas.values()) == sorted(layout.areas.values())
    for struct, fields in layout.fields.items():
        ends = [0, *(field.offset + field.size for field in fields)]
        assert all(field.offset >= end for field, end in zip(fields, ends, strict=False))
        assert layout.sizes[struct] - ends[-1] < 64  # less than what aligns it to a line
    assert sum(bits for _, bits in layout.word.values()) == 64

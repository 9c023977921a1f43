"""The vocabulary of the sources: one noun means one thing, and former nouns do not come back.

A noun of the list names classes of the packages beside it only, and classes that are derived from
those.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

TOP = Path(__file__).resolve().parents[2]

#: noun -> the packages that define its classes. The last word counts: `BatchTask` is a Task.
HOMES = {
    "Arena": ("_ring",),
    "Lease": ("_ring",),
    "Schema": ("_ring",),
    "Ring": ("_ring",),
    "Scheduler": ("_ring",),
    "Pool": ("_workers",),
    "Job": ("_workers", "reader"),  # `ReadingJob` is the protocol's second implementation
    "Image": ("_workers",),
    "Task": ("_threads",),
    "Counters": ("_threads",),
    "Device": ("_device",),
    "Padding": ("_collate",),
    "Diagnosis": ("_stats",),
    "Stats": ("_stats",),
    "Trace": ("_stats",),
    "Timer": ("_stats",),
    "Converter": ("dataset", "_workers"),  # those of `_workers` are batch converters
    "Dataset": ("dataset", "datasets"),
    "Sampler": ("iterators",),
    "State": ("iterators",),
    "Trials": ("_cli",),
}

#: Words that these sources used before for worker group, worker process, batch converter and so on.
FORMER = re.compile(
    r"(?<![A-Za-z])(?:crew|seat|tally|tallies|guises?|ledger|fi_cell|doze|spoilt"
    r"|departure|parent_?end|worker_?end|beyond_streams|stay_away|close_up|hand_over"
    r"|came_through|keep_for_ever|is_torn|let_in|end_text)(?![A-Za-z])",
    re.IGNORECASE,
)


class Class(NamedTuple):
    name: str
    bases: str
    path: str


def classes(sources: Mapping[str, str]) -> Iterator[Class]:
    """The classes at the top level of these sources, by path below ``fastiter/``."""
    for path, text in sources.items():
        for match in re.finditer(r"^(?:cdef )?class (\w+)(?:\((.*?)\))?:", text, re.M | re.S):
            yield Class(match[1].lstrip("_"), match[2] or "", path)


def second_meanings(sources: Mapping[str, str]) -> list[str]:
    """What is wrong: names of two classes, and nouns of the list away from their homes."""
    found = list(classes(sources))
    places = defaultdict(list)
    for one in found:
        places[one.name].append(one.path)
    wrong = [f"{name}: {', '.join(paths)}" for name, paths in places.items() if len(paths) > 1]
    for one in found:
        noun = re.findall(r"[A-Z][a-z0-9]*|[A-Z]+(?=[A-Z]|$)", one.name)[-1]
        home = HOMES.get(noun)
        is_derived = re.search(rf"{noun}(?:Mixin)?(?:\[.*\])?\b", one.bases)
        if home and one.path.split("/")[0] not in home and not is_derived:
            wrong.append(f"{one.name} in {one.path}: a {noun} belongs to {' or '.join(home)}")
    return wrong


def product() -> dict[str, str]:
    top = TOP / "fastiter"
    files = sorted(path for path in top.rglob("*") if path.suffix in (".py", ".pyx"))
    return {path.relative_to(top).as_posix(): path.read_text() for path in files}


def test_a_noun_means_one_thing() -> None:
    assert second_meanings(product()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("reader/reading.py", "class Lease:\n    pass\n"),
        ("reader/reading.py", "class _StreamLease(Buffer):\n    pass\n"),
        ("_fetch/gather.pyx", "cdef class BatchTask:\n    pass\n"),
        ("_cli/demo/digits.py", "class RowWriter:\n    pass\n"),
    ],
)
def test_a_second_meaning_is_found(path: str, source: str) -> None:
    assert second_meanings({**product(), path: source})


def test_former_words_are_gone() -> None:
    suffixes = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".pml"}
    folders = ("fastiter", "csrc", "tests", "bench", "examples")
    paths = [path for folder in folders for path in (TOP / folder).rglob("*")]
    found = [
        f"{path.relative_to(TOP)}: {match[0]}"
        for path in paths
        if path.suffix in suffixes and path != Path(__file__)
        for match in FORMER.finditer(path.read_text())
    ]
    assert found == []

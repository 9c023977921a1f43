"""The vocabulary of the sources: one noun means one thing, and former nouns do not come back.

A noun of the list names classes of the packages beside it only, and classes that are derived from
those.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

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
    "Sampler": ("_plan", "iterators"),
    "State": ("_plan",),
    "Trials": ("_cli",),
}

#: Words that these sources used before for worker group, worker process, batch converter and so on.
FORMER = (
    r"(?<![A-Za-z])(?:crew|seat|tally|tallies|guises?|ledger|fi_cell|doze|spoilt"
    r"|departure|parent_?end|worker_?end|beyond_streams|stay_away|close_up|hand_over"
    r"|came_through|keep_for_ever|is_torn|let_in|end_text)(?![A-Za-z])"
)


def test_a_noun_means_one_thing() -> None:
    top = TOP / "fastiter"
    places, wrong = defaultdict(list), []
    for path in sorted(path for path in top.rglob("*") if path.suffix in (".py", ".pyx")):
        place = path.relative_to(top)
        pattern = r"^(?:cdef )?class (\w+)(?:\((.*?)\))?:"
        for name, bases in re.findall(pattern, path.read_text(), re.M | re.S):
            name = name.lstrip("_")
            places[name].append(str(place))
            noun = re.findall(r"[A-Z][a-z0-9]*|[A-Z]+(?=[A-Z]|$)", name)[-1]
            home = HOMES.get(noun)
            is_derived = re.search(rf"{noun}(?:Mixin)?(?:\[.*\])?\b", bases)
            if home and place.parts[0] not in home and not is_derived:
                wrong.append(f"{name} in {place}: a {noun} belongs to {' or '.join(home)}")
    assert wrong == []
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


HEADLESS = "what|which|whose|how|where"
#: First words of a description that leaves out the thing that it describes.
NO_NOUNS = (
    "of|its|it|that|those|one|at least|has|called|held|takes|reads|opens|makes|runs|pads|joined"
    "|each|with|usually|keep|leave|need|require|save|none (?:is|leaves)"
)


def found_in(pattern: str, *folders: str) -> list[str]:
    """Matches of a pattern in the sources of folders, with their files."""
    suffixes = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".pml"}
    return [
        f"{path.relative_to(TOP)}: {match[0].strip()}"
        for folder in folders
        for path in sorted((TOP / folder).rglob("*.*"))
        if path.suffix in suffixes and path != Path(__file__)
        for match in re.finditer(pattern, path.read_text(), re.IGNORECASE | re.MULTILINE)
    ]


def test_descriptions_of_parameters_begin_with_a_noun() -> None:
    """A parameter is a value, a path, a number of seconds: not "what" or "how often"."""
    name = r"^( *)\*{0,2}\w+(?:, \*{0,2}\w+)* :"
    assert found_in(rf"{name} ?(?:{HEADLESS})\b.*", "fastiter") == []
    assert found_in(rf"{name}(?: .*)?\n\1 {{4}}(?:{HEADLESS}|{NO_NOUNS})\b.*", "fastiter") == []


def test_definitions_have_a_head() -> None:
    """A thing is named by a noun, not by "what" it does or "which" it is."""
    definition = (
        rf'"""(?:{HEADLESS})\b.*|/\* (?-i:What|Which|Whose|How)\b.*|#: (?:what|which|whose)\b.*'
    )
    assert found_in(definition, "fastiter", "csrc", "tests", "bench", "examples", "docs") == []


def test_former_words_are_gone() -> None:
    folders = "fastiter", "csrc", "tests", "bench", "examples"
    assert found_in(FORMER, *folders) == []


def test_extras_are_those_of_the_distribution() -> None:
    """The name fastiter belongs to another project on PyPI."""
    metadata = (TOP / "pyproject.toml").read_text()
    section = metadata.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", section, re.M))
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, capture_output=True, check=True)
    wrong = []
    for name in listing.stdout.decode().split("\0"):
        path = TOP / name
        if path.suffix in {".py", ".pyx", ".pyi", ".md", ".rst"} and path != Path(__file__):
            # '../fastiter[image]' is a path, and \\ stands in patterns of tests.
            for extra in re.findall(r"(?<![\w./-])fastiter\\?\[[^\]\\]*", path.read_text()):
                wrong.append(f"{name}: {extra}]: write fastiter-loader[...]")
            for extra in re.findall(r"fastiter-loader\\?\[(\w+)", path.read_text()):
                if extra not in extras:
                    wrong.append(f"{name}: there is no extra {extra!r}")
    assert wrong == []

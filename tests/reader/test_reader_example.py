"""The example of merging files: what it prints, and what its batches hold."""

from __future__ import annotations

import ast
from pathlib import Path

from programs import run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "merge_files.py"
FIRST = [[1, 2], [3, 4], [5, 6], [7, 8]]
SECOND = [[9, 10], [11, 12], [13, 14]]


def test_the_example_batches_all_but_the_last_sample():
    done = run(EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    found = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert len(found) == 3
    rows = [sample[0] for images in found for sample in images]
    assert all(len(images) == 2 and all(len(s) == 1 for s in images) for images in found)
    # Which file's samples come first is chance; the order within a file is not.
    for file in (FIRST, SECOND):
        came = [row for row in rows if row in file]
        assert came == file[: len(came)]
    assert len(rows) == 6
    assert all(row in FIRST + SECOND for row in rows)

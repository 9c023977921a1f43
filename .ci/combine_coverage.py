"""Combine the coverage data files of a directory, but not those cut off by a kill.

Tests kill processes, some of them while they save what they have counted. ``coverage combine``
would take such a file as it is, and fail: without a table it cannot be read, and a Cython file that
has lines but no note of the plugin which found them conflicts with all other data. Processes that
outlive the tests may write while this runs, so the result lies elsewhere: ``coverage report`` takes
up what it finds beside its data file.

    python .ci/combine_coverage.py DIRECTORY RESULT    # DIRECTORY/.coverage.* into the file RESULT
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from coverage import CoverageData
from coverage.exceptions import CoverageException


def is_whole(path: Path) -> bool:
    """Whether all that belongs to a data file is in it."""
    try:
        with closing(sqlite3.connect(path)) as database:
            query = "select path, tracer from file left join tracer on tracer.file_id = file.id"
            rows = database.execute(query).fetchall()
            database.execute("select count(*) from line_bits").fetchone()
    except sqlite3.DatabaseError:
        return False
    return all(tracer for name, tracer in rows if name.endswith(".pyx"))


def main(directory: Path, result: Path) -> int:
    """Combine them, and say how many were left out."""
    paths = sorted(directory.glob(".coverage.*"))
    combined = CoverageData(str(result))
    top = f"{Path.cwd()}{os.sep}"

    def shortened(name: str) -> str:
        # Processes in another directory have noted whole paths, those in / without the slash.
        return name.removeprefix(top).removeprefix(top[1:])

    seen: set[bytes] = set()
    partial = 0
    for path in paths:
        content = path.read_bytes()
        if content in seen:  # hundreds of processes ran the same lines
            continue
        piece = CoverageData(str(path))
        try:
            if not is_whole(path):
                raise CoverageException(f"{path} is a part of a data file")
            piece.read()
            combined.update(piece, map_path=shortened)
        except CoverageException:
            partial += 1
        finally:
            piece.close()
        seen.add(content)
    print(f"{len(paths)} data files, {partial} of them of processes killed while they wrote")
    return 0 if len(paths) > partial else 1


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))

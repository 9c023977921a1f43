"""Remove the coverage data files below this directory whose writers were killed amid writing.

Tests kill processes, some of them while they save what they have counted. coverage.py would take
such a file as it is: without a table it cannot be combined, and a Cython file that has lines but no
note of the plugin which found them conflicts with all other data.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path


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


def main() -> int:
    """Remove them, and say how many."""
    paths = [path for path in Path().rglob(".coverage.*") if ".venv" not in path.parts]
    partial = [path for path in paths if path.stat().st_size == 0 or not is_whole(path)]
    for path in partial:
        path.unlink()
    print(f"{len(paths)} data files, {len(partial)} of them of processes killed amid writing")
    return 0


if __name__ == "__main__":
    sys.exit(main())

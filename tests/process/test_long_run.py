"""The long run, a short one of its kind: what it counts and compares still works."""

from __future__ import annotations

import re
import subprocess
import sys

from outside import HERE, environment


def test_a_short_run_with_kills():
    arguments = ["--examples", "60000", "--kills", "6", "--epoch", "9973"]
    out = subprocess.run(
        [sys.executable, str(HERE / "long_run.py"), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert re.search(r"^60\d\d\d examples of 6 epochs .* 6 kills, [2-6] workers", out.stdout, re.M)

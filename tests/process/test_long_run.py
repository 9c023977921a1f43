"""The long run, a short one of its kind: what it counts and compares still works."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from long_run import SLACK, Expected, Look, Recorded, Told, check_flat, told
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


@pytest.mark.parametrize("wrong", ["swapped", "twice", "missing", "content", None])
def test_what_is_wrong_is_noticed(wrong):
    orders = Recorded(20, 0)
    order = np.concatenate([orders(None, 0), orders(None, 0)])
    expected = Expected(orders)
    blocks = told(order)
    if wrong == "swapped":
        order[[4, 5]] = order[[5, 4]]
        blocks = told(order)
    elif wrong == "twice":
        order[5] = order[4]
        blocks = told(order)
    elif wrong == "missing":
        order, blocks = np.delete(order, 25), np.delete(blocks, 25, axis=0)
    elif wrong == "content":
        blocks[39, 7] += 1

    def compare_all():
        for start in range(0, 40, 8):
            expected.compare(blocks[start : start + 8], order[start : start + 8])

    assert np.array_equal(Told(20)[3][0], told(np.array([3]))[0])
    if wrong is None:
        compare_all()
        assert (expected.epochs, expected.examples) == (2, 40)
    else:
        with pytest.raises(AssertionError):
            compare_all()


@pytest.mark.parametrize("what", ["resident", "shared", "proportional", "descriptors", "mappings"])
def test_growth_is_noticed(what):
    looks = [Look(50 << 20, 20 << 20, 60 << 20, 24, 2, 1, 4) for _ in range(20)]
    check_flat(looks)
    for number, look in enumerate(looks):
        setattr(look, what, getattr(look, what) + number * (SLACK // 8 if what[0] in "rsp" else 1))
    with pytest.raises(AssertionError, match=what):
        check_flat(looks)

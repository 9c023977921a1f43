"""Results of ``python -m fastiter profile`` from figures: limits, advice, and the table of runs."""

from __future__ import annotations

import dataclasses

import pytest
from statistics_of import figures

from fastiter._cli.profile import dataset_cost
from fastiter._cli.profile.limits import Limits, advice, limits_of
from fastiter._cli.profile.report import Measured, show_result
from fastiter._cli.profile.trials import Settings, Trials

FOUND = dataset_cost.DatasetCost(
    length=100,
    layout="int",
    is_ragged=False,
    nbytes=1e6,
    first=0.1,
    seconds=1e-2,
    median=1e-2,
    high=1e-2,
    n_timed=100,
    group=1,
    cpu=1.0,
    gain=1.0,
    trouble="",
    is_repeatable=True,
    by_columns=False,
    by_many=False,
)


def test_no_run_is_beyond_the_limits() -> None:
    runs = [
        Trials(Settings("serial"), rates=[90.0]),
        Trials(Settings("processes", 1, 2), rates=[125.0]),
        Trials(Settings("processes", 64, 2), rates=[400.0]),
        Trials(Settings("threads", 1, 2), error="broken"),
    ]
    slower = limits_of(FOUND, runs[:1], 1e12)
    assert slower.seconds == FOUND.seconds
    limits = limits_of(FOUND, runs, 1e12)
    assert limits.seconds == 1 / 125
    assert all(run.rate <= 1.001 * limits.rate(run.settings.workers) for run in runs)


def test_limits_and_advice() -> None:
    limits = Limits(cpus=2, seconds=1e-2, cpu_seconds=5e-3, copy_rate=1e9, nbytes=1e6)
    assert [limits.rate(n) for n in (0, 1, 3, 100)] == [100, 100, 300, 400]
    assert limits.memory_rate == 1000
    serial = Trials(Settings("serial"), rates=[100.0])
    best = Trials(Settings("processes", 2, 2), rates=[190.0, 200.0, 220.0])
    told = advice(FOUND, limits, [serial, best], best, 20, 0.0)
    assert told[0] == "2.0 times as fast as SerialIterator."
    assert told[1].startswith("A batch takes 100 ms:")
    assert told[2] == "The dataset holds the GIL: threads do not help, processes do."
    with_steps = advice(FOUND, limits, [serial, best], best, 20, 0.05)
    assert "waits" in with_steps[1]
    assert "50%" in with_steps[1]
    worse = Trials(Settings("threads", 2, 2), rates=[50.0])
    tiny = advice(FOUND._replace(seconds=1e-6), limits, [serial, worse], serial, 20, 0.0)
    assert tiny[0].startswith("Workers gain nothing here")
    failed = Trials(Settings("threads", 2, 2), error="broken")
    for runs in ([serial], [serial, failed]):  # nothing is concluded from no measurement
        told = advice(FOUND, limits, runs, serial, 20, 0.0)
        assert told[0].startswith("No iterator with workers could be measured")
    told = advice(FOUND, limits, [best], best, 20, 0.0)
    assert told[0] == "2.0 times as fast as the dataset by itself."
    assert any("__getitems__" in sentence for sentence in tiny)
    assert best.settings.code(20, "f") == (
        "fastiter.MultiprocessIterator(dataset, 20, n_processes=2, n_prefetch=2, converter=f)"
    )


#: A loop that waits for batches although the workers are idle for half of the time.
LATE = figures(n_prefetch=4)
LATE = dataclasses.replace(
    LATE, workers=tuple(dataclasses.replace(one, busy_seconds=5.0) for one in LATE.workers)
)


def test_nothing_is_advised_that_the_table_shows_to_be_slower() -> None:
    limits = Limits(cpus=2, seconds=1e-2, cpu_seconds=5e-3, copy_rate=1e9, nbytes=1e6)
    settings = Settings("processes", 2, 4)
    best = Trials(settings, rates=[200.0], stats=LATE)
    assert best.stats.change == {"n_prefetch": 8}  # type: ignore[union-attr]
    deeper = Trials(settings._replace(prefetch=8), rates=[190.0])
    (told,) = (t for t in advice(FOUND, limits, [best], best, 20, 0.0) if "stats()" in t)
    assert told.endswith("set n_prefetch=8 to have more ready.")
    (told,) = (t for t in advice(FOUND, limits, [best, deeper], best, 20, 0.0) if "stats()" in t)
    assert told.endswith("gained nothing in these trials.")


def test_each_column_has_a_heading_and_the_fastest_is_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = Limits(cpus=2, seconds=1e-2, cpu_seconds=5e-3, copy_rate=1e9, nbytes=1e6)
    serial = Trials(Settings("serial"), rates=[204.0], firsts=[0.1])
    best = Trials(Settings("processes", 2, 4), rates=[200.0], firsts=[0.1], stats=LATE)
    measured = Measured(
        "x:y", 20, 20, "", 0.0, FOUND, limits, [serial, best], {}, best, [], [], None
    )
    show_result(measured)
    lines = capsys.readouterr().out.splitlines()
    heading = next(line for line in lines if "iterator" in line and "workers" in line)
    names = heading.replace("of limit", "limit").replace("first batch", "first").split()
    first, second = (line for line in lines if line.endswith(("best", "fastest")))
    for line, mark in ((first, "fastest"), (second, "best")):
        cells, found = line.split("  <- ")
        assert found == mark
        assert len(cells.replace(" ms", "").split()) == len(names) == 8
    assert any("simplest setting within 5% of the fastest" in line for line in lines)

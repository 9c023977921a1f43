"""The benchmarks themselves: that each runs, and that wrong content does not pass for speed."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastiter

TOP = Path(__file__).resolve().parents[2]
sys.path.append(str(TOP))  # last: it may hold a fastiter that is not built, beside an installed one

from bench.__main__ import micro_jobs  # noqa: E402
from bench.harness import micro, micro_runner, render  # noqa: E402
from bench.harness.verify import Verifier, WrongContent  # noqa: E402
from bench.jobs import exact, images  # noqa: E402
from bench.thirdparty import checkout  # noqa: E402

BATCH = 4
N = 16
WITHOUT_PEERS = {"fastiter", "limit", "numpy", "python"}


class Pairs:
    """Rows of two pages with their index; rows of different lengths, if `ragged`."""

    distinct = N
    index_field = 1

    def __init__(self, ragged=False):
        rng = np.random.default_rng(0)
        lengths = rng.integers(1, 9, N) if ragged else [8192] * N
        self.rows = [rng.integers(1, 200, length, dtype=np.uint8) for length in lengths]

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.rows[i], i

    reference = __getitem__


def batch_of(dataset, indices):
    rows = [dataset[i][0] for i in indices]
    padded = np.full((len(rows), max(map(len, rows))), 255, dtype=np.uint8)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded, np.array(indices)


def epoch_of(dataset):
    return [batch_of(dataset, range(start, start + BATCH)) for start in range(0, N, BATCH)]


def consume(dataset, batches, padding=None, fully=False):
    verifier = Verifier(dataset, BATCH, padding)
    for batch in batches:
        (verifier.check_fully if fully else verifier.check)(batch)
    return verifier


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("fully", [False, True])
def test_right_epochs_pass(ragged, fully):
    dataset = Pairs(ragged)
    padding = (255, None) if ragged else None
    verifier = consume(dataset, epoch_of(dataset) * 2, padding, fully)
    assert (verifier.epochs, verifier.number) == (2, 0)


def wrong_epochs():
    """Batches as a loader that errs gives them, by what is wrong with them."""
    dataset = Pairs()
    first, second, third, last = epoch_of(dataset)
    unwritten = last[0].copy()
    unwritten[2, 4096:] = 0
    return {
        "a batch repeated": [first, second, second, third, last],
        "a batch lost": [first, third, last],
        "an example repeated": [first, batch_of(dataset, [4, 5, 5, 7]), third, last],
        "two examples swapped": [first, batch_of(dataset, [4, 6, 5, 7]), third, last],
        "an example lost": [first, batch_of(dataset, [4, 5, 6]), third, last],
        "the next epoch early": [first, second, third, first],
        "old content": [first, second, (second[0], third[1]), last],
        "a page not written": [first, second, third, (unwritten, last[1])],
        "another dtype": [(first[0].astype(np.int16), first[1]), second, third, last],
    }


@pytest.mark.parametrize("batches", wrong_epochs().values(), ids=wrong_epochs())
def test_a_loader_that_errs_is_caught(batches):
    with pytest.raises(WrongContent):
        consume(Pairs(), batches)


@pytest.mark.parametrize("place", ["first", "last", "padding"])
def test_a_wrong_padded_batch_is_caught(place):
    dataset = Pairs(ragged=True)
    batches = epoch_of(dataset)
    padded = batches[1][0]
    lengths = [len(dataset[i][0]) for i in range(4, 8)]
    row = int(np.argmin(lengths))
    padded[row, {"first": 0, "last": lengths[row] - 1, "padding": lengths[row]}[place]] ^= 1
    with pytest.raises(WrongContent):
        consume(dataset, batches, (255, None))


def test_a_byte_between_the_probes_is_caught_by_the_full_check():
    dataset = Pairs()
    batches = epoch_of(dataset)
    batches[0][0][1, 77] ^= 1
    consume(dataset, batches)
    with pytest.raises(WrongContent):
        consume(dataset, batches, fully=True)


class Nested(Pairs):
    """Examples like W9's: containers in each other, and a text."""

    def __getitem__(self, i):
        return {"rows": self.rows[i], "meta": {"id": i, "name": f"row {i}"}, "target": (i / 7,)}

    reference = __getitem__


def nested_epoch():
    dataset = Nested()
    batches = []
    for start in range(0, N, BATCH):
        rows, indices = batch_of(Pairs(), range(start, start + BATCH))
        names = [f"row {i}" for i in range(start, start + BATCH)]
        meta = {"id": indices, "name": names}
        batches.append({"rows": rows, "meta": meta, "target": [indices / 7]})
    return dataset, batches


def test_nested_batches_are_compared():
    dataset, batches = nested_epoch()
    assert consume(dataset, batches * 2, fully=True).epochs == 2


@pytest.mark.parametrize("wrong", ["text", "key", "length", "number"])
def test_a_wrong_nested_batch_is_caught(wrong):
    dataset, batches = nested_epoch()
    meta, target = batches[1]["meta"], batches[1]["target"]
    if wrong == "text":
        meta["name"][2] = "row 0"
    elif wrong == "key":
        meta["names"] = meta.pop("name")
    elif wrong == "length":
        target.append(target[0])
    else:
        target[0][3] = 0
    with pytest.raises(WrongContent):
        consume(dataset, batches)


def run_bench(*arguments):
    if Path(fastiter.__file__).parent.parent != TOP:
        pytest.skip("it runs the fastiter beside it, and the one tested is installed elsewhere")
    return subprocess.run(
        [sys.executable, "-m", "bench", *map(str, arguments)],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A run of the smallest jobs through the command line, as a document."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    arguments = ["W7", "import", "--peers", "none", "--quick", "--rounds", "1"]
    done = run_bench(*arguments, "--seconds", "0.01", "--json", path)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text())


def rows_of(document, job, case):
    return {row["name"]: row for row in document["jobs"][job]["cases"][case]["rows"]}


def compare_and_render(results, tmp_path):
    a, b, other = (tmp_path / name for name in ("a.json", "b.json", "other.json"))
    a.write_text(json.dumps(results))
    b.write_text(json.dumps(changed(results, 0.01)))
    other.write_text("[]")
    assert run_bench("compare", a, a).returncode == 0
    slower = run_bench("compare", a, b)
    assert slower.returncode == 1
    assert "slower: pipelines, W7, fastiter.mp: 0.01x" in slower.stdout
    assert run_bench("compare", a, other).returncode == 2
    assert "| W7: 2 ms of waiting per example, 8 workers |" in render.markdown(results)


@pytest.mark.stress
def test_a_run_measures_every_row_and_can_be_compared(results, tmp_path):
    rows = rows_of(results, "pipelines", "W7")
    loader = "fastiter.mp-torch-loader"
    assert set(rows) == {"limit", "fastiter.mp", "fastiter.mp-list", "fastiter.serial", loader}
    if importlib.util.find_spec("torch") is None:
        assert rows.pop(loader)["status"] == "skipped"
    assert {row["status"] for row in rows.values()} == {"ok"}, rows
    assert rows_of(results, "import", "import")["fastiter"]["status"] == "ok"
    for row in rows.values():
        assert len(row["slices"]) == 1
        assert all(one["rate"] > 0 for one in row["slices"])
    assert rows["fastiter.mp"]["pss_added"] > 0
    assert all(one["cpu_us_per_example"] > 0 for one in rows["fastiter.mp"]["slices"])
    compare_and_render(results, tmp_path)


def test_an_unknown_job_is_refused():
    done = run_bench("W99")
    assert done.returncode == 2
    assert "W99" in done.stderr


jobs = micro_jobs()


def has_memfd():
    try:
        os.close(os.memfd_create("x"))
    except OSError:
        return False
    return True


def jobs_to_try():
    """A few with every change, the rest nightly: each takes seconds."""
    for name in jobs:
        nightly = name not in ("concat", "pad", "reader", "ring")
        yield pytest.param(name, marks=[pytest.mark.stress] if nightly else [])


@pytest.mark.parametrize("name", list(jobs_to_try()))
def test_the_first_case_of_each_job_runs(name):
    """In this process, what needs no peer: results are checked, before and after a short slice.

    Where a call starts processes and so takes long, the checked calls are enough.
    """
    if name == "transport" and not has_memfd():
        pytest.skip("the system refuses memfd_create, by which the limit is measured")
    case = next(iter(jobs[name].cases(True)))
    slices = micro_runner.Slices({case.name: case})
    candidates = [c for c in case.candidates if c.partition(".")[0] in WITHOUT_PEERS]
    refused = slices.open(case.name, candidates)["refused"]
    try:
        for kind, reason in refused.values():
            library = re.search(r"No module named '(\w+)'", reason)
            assert kind == "skipped", refused
            assert library and importlib.util.find_spec(library[1]) is None, refused
        assert any(candidate.startswith("fastiter") for candidate in candidates)
        for candidate in candidates if not case.processes else ():
            if candidate in refused:
                continue
            figures = slices.run(candidate, 0.001, last=True)
            assert figures.get("rate", 0) > 0, figures
    finally:
        slices.close()


def a_case(run, **changes):
    given = {
        "name": "a case",
        "sources": lambda: [np.arange(5), np.arange(7)],
        "candidates": {"fastiter": lambda: run},
        "check": lambda result, source: micro.expect_equal(result, source + 1),
        **changes,
    }
    return micro.Case(**given)


def refusals(run, **changes):
    slices = micro_runner.Slices({"a case": a_case(run, **changes)})
    refused = slices.open("a case", ["fastiter"])["refused"]
    if not refused:
        refused = slices.run("fastiter", 0.001, last=True).get("refused")
    slices.close()
    return refused


def test_a_right_micro_candidate_is_timed():
    assert refusals(lambda source: source + 1) is None
    prepared = micro.Prepared(lambda source: source * 2, lambda double: double // 2 + 1)
    assert refusals(prepared) is None


@pytest.mark.parametrize(
    "run",
    [
        lambda source: source,
        lambda source: (source + 1).astype(np.float32),
        lambda source: (source + 1)[:-1],
        lambda source: source + (1 if len(source) == 5 else 2),
        lambda source: "nonsense",
    ],
)
def test_a_wrong_micro_candidate_has_no_figure(run):
    assert refusals(run)["fastiter"][0] == "WRONG"


def test_a_missing_peer_is_skipped_and_a_failing_one_told():
    def missing():
        raise ImportError("no such library")

    slices = micro_runner.Slices(
        {"a case": a_case(None, candidates={"a": missing, "b": lambda: lambda source: 1 // 0})}
    )
    refused = slices.open("a case", ["a", "b"])["refused"]
    slices.close()
    assert refused["a"] == ["skipped", "ImportError: no such library"]
    assert refused["b"][0] == "FAILED"


class Resumed:
    """A loader of 240 numbers in batches, as `exact` runs it, that errs when it goes on."""

    def __init__(self, wrong):
        self.wrong = wrong

    def __call__(self, kind, how, state):
        rows = list(range(exact.N))
        if state is not None:
            rows = self.wrong(rows, state)
        self.place = 0
        return [(self.batches(rows, how.batch_size), lambda: self.place)]

    def batches(self, rows, size):
        for start in range(0, len(rows), size):
            self.place += size
            yield rows[start : start + size]


RESUMES = {
    "same": lambda rows, place: rows[place:],
    "same rows": lambda rows, place: [*rows[place : place + 32][::-1], *rows[place + 32 :]],
    "each once": lambda rows, place: rows[place:][::-1],
    "differs": lambda rows, place: rows[place + 1 :],
}


@pytest.mark.parametrize("verdict", RESUMES)
def test_what_a_resumed_run_is_said_to_do(verdict):
    assert exact.cell(Resumed(RESUMES[verdict]), "map", "nothing") == verdict


def test_a_resumed_run_that_repeats_rows_or_raises():
    assert exact.cell(Resumed(lambda rows, place: rows[place - 1 :]), "map", "nothing") == "differs"
    assert exact.cell(Resumed(lambda rows, place: rows[999]), "map", "nothing") == "error"


@pytest.mark.parametrize(
    ("kind", "change", "verdict"),
    [
        ("map", "batch size", "same"),
        ("map", "ranks", "same"),
        ("map, shuffle=True", "no workers", "same"),
        ("map, DistributedSampler", "ranks", "same rows"),
        ("global random numbers", "no workers", "same"),
        ("mixture", "ranks", "same"),
        ("length buckets", "batch size", "each once"),
        ("stream", "workers", "same"),
        ("IterableDataset", "workers", "error"),
    ],
)
def test_the_torch_loader_is_exact_or_refuses(kind, change, verdict):
    pytest.importorskip("torch", reason="torch is not installed")
    assert exact.cell(exact.of_fastiter_torch, kind, change) == verdict


def changed(document, factor, name="fastiter.mp", **facts):
    """The document with all rates of a row multiplied."""
    document = copy.deepcopy(document)
    row = next(r for r in document["jobs"]["pipelines"]["cases"]["W7"]["rows"] if r["name"] == name)
    row["rate"] *= factor
    for one in row["slices"]:
        one["rate"] *= factor
    row.update(facts)
    return document


def test_two_installed_versions_are_measured_in_turns(tmp_path):
    done = run_bench("builds", *[sys.executable] * 2, "calls", "--quick", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^ *([\d.]+) +[\d,]+ +[\d,]+  calls, .*, fastiter\S*$", done.stdout, re.M)
    last = re.search(r"geometric mean ([\d.]+), lowest ([\d.]+), (\d+) rows", done.stdout)
    assert last is not None and len(rows) > 1
    assert float(last[1]) == pytest.approx(statistics.geometric_mean(map(float, rows)), abs=2e-3)
    assert last.groups()[1:] == (min(rows, key=float), str(len(rows)))
    missing = run_bench("builds", sys.executable, tmp_path / "python", "calls")
    assert missing.returncode == 2 and f"after: {tmp_path}/python: " in missing.stderr


def test_the_chart_is_drawn(request, tmp_path):
    pytest.importorskip("matplotlib")
    document = copy.deepcopy(request.getfixturevalue("results"))
    document["jobs"]["startup"] = {
        "cases": {"1 GiB": {"rows": [{"name": "fastiter.spawn", "status": "ok", "rate": 2.0}]}}
    }
    render.chart(document, str(tmp_path / "chart.png"))
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


IMPORTS = {
    "from torch.utils.data import DataLoader  # noqa\n": "from fastiter.torch import DataLoader\n",
    "    from torch.utils.data import DataLoader, Dataset\n": (
        "    from torch.utils.data import Dataset\n    from fastiter.torch import DataLoader\n"
    ),
    "import torch\nimport os\nx = torch.utils.data.DataLoader(y)\n": (
        "import torch\nfrom fastiter.torch import DataLoader\nimport os\nx = DataLoader(y)\n"
    ),
}


@pytest.mark.parametrize("source", IMPORTS)
def test_one_import_of_a_harness_is_replaced(source):
    assert checkout.replaced(source, checkout.TORCH, checkout.FASTITER) == IMPORTS[source]


def test_a_loader_of_another_name_keeps_it_in_the_harness():
    source = "from litdata import StreamingDataLoader, StreamingDataset\n"
    found = checkout.replaced(source, "litdata.StreamingDataLoader", checkout.FASTITER)
    assert found == (
        "from litdata import StreamingDataset\n"
        "from fastiter.torch import DataLoader as StreamingDataLoader\n"
    )


@pytest.mark.parametrize("source", ["import torch\n", "torch.utils.data.DataLoader(x)\n", ""])
def test_a_harness_without_the_import_is_refused(source):
    with pytest.raises(ValueError, match=r"0 imports of .*DataLoader, expected one"):
        checkout.replaced(source, checkout.TORCH, checkout.FASTITER)


def test_synthetic_photographs_have_the_size_that_the_pages_tell() -> None:
    pytest.importorskip("PIL")
    sizes = [len(images.photograph(375, 500, seed)) for seed in range(10)]
    assert 105_000 < statistics.mean(sizes) < 115_000
    assert images.photograph(375, 500, 0) == images.photograph(375, 500, 0)

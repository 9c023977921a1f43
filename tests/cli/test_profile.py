"""``python -m fastiter profile``: what it measures, advises and draws, and its errors."""

from __future__ import annotations

import importlib.util
import itertools
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run

import fastiter.random
from fastiter.__main__ import main
from fastiter._cli.profile import chart, dataset_cost, loading
from fastiter._cli.profile import profile as profile_tool
from fastiter._cli.profile.search import Search
from fastiter._cli.profile.trials import Settings, Subject, Trials, record
from fastiter._ring.serialization import are_same
from fastiter.datasets import TupleDataset

DATASETS = """
    import os
    import threading
    import time

    import numpy as np


    class Sleepy:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            time.sleep(0.002)
            return np.full(5, i, np.float32), i


    class Slow(Sleepy):
        def __getitem__(self, i):
            time.sleep(0.2)
            return i


    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no text")


    class FailsBadly(Sleepy):
        def __getitem__(self, i):
            raise Silent


    class Exits(Sleepy):
        def __getitem__(self, i):
            raise SystemExit(3)


    def exits():
        raise SystemExit(3)


    class Ragged:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            return np.full(1 + i % 3, i, np.float32)


    class Broken:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            if i == 40:
                raise KeyError("no such file")
            return i


    class Crashes(Sleepy):
        def __getitem__(self, i):
            os.abort()


    class Unpicklable(Sleepy):
        def __init__(self):
            self.lock = threading.Lock()


    def nothing():
        return []


    def needs(argument):
        return [argument]


    number = 5
    ready = list(range(10))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "some_data.py").write_text(textwrap.dedent(DATASETS))
    return tmp_path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as that of this process, which has not imported its module."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "some_data", raising=False)
    return folder


def profile(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "fastiter", "profile", *arguments, cwd=folder)


def test_measures_advises_and_draws(folder: Path) -> None:
    answer = profile(
        folder,
        *("some_data:Sleepy", "--batch-size", "4", "--budget", "1", "--workers", "1,3"),
        *("--prefetch", "2", "--start-methods", "fork", "--trace", "trace.json"),
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Sleepy, 64 examples" in answer.stdout
    assert "(float32[5], int)" in answer.stdout
    assert "The dataset waits" in answer.stdout
    line = next(line for line in answer.stdout.splitlines() if line.startswith("    fastiter."))
    iterator = eval(line.strip(), {"fastiter": fastiter, "dataset": list(range(8))})
    iterator.finalize()
    assert iterator.batch_size == 4
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert "matplotlib is not installed" in answer.stdout
    else:
        assert (folder / "fastiter-profile.png").read_bytes().startswith(b"\x89PNG")
    # Which settings are the best, and who had to wait, is up to the machine's load.
    best = eval(line.strip(), {"fastiter": Called(), "dataset": None})
    found = json.loads((folder / "trace.json").read_text())
    assert set(found) == {"traceEvents", "displayTimeUnit"}
    lanes = lanes_of(found["traceEvents"])
    assert list(lanes) == ["loop", *workers_of(*best)]
    assert len(spans(lanes["loop"], "next()")) >= 8
    fetches = [fetch for lane in lanes.values() for fetch in spans(lane, "fetch")]
    assert bool(fetches) == (len(lanes) > 1)
    assert all(fetch["dur"] >= 2000 * fetch["args"]["rows"] for fetch in fetches)


class Called:
    """Instead of fastiter: the names of iterators give their name and keywords."""

    concat_examples = None

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: (name, options)


def workers_of(iterator: str, options: dict[str, Any]) -> list[str]:
    """The names of its workers in a trace."""
    name = "thread" if iterator == "MultithreadIterator" else "worker"
    count = options.get("n_threads", options.get("n_processes", 0))
    return [f"{name} {number}" for number in range(count)]


def lanes_of(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The events of a trace, but for those that give names, by the name of their thread."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            lanes[names[event["tid"]]].append(event)
    return lanes


def spans(lane: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in lane if event["name"] == name]


def test_padding_and_json(folder: Path) -> None:
    """As JSON, of a file: padding joins what differs in shape."""
    answer = profile(
        folder,
        *(str(folder / "some_data.py") + ":Ragged", "--batch-size", "4", "--budget", "1"),
        *("--workers", "2", "--prefetch", "2", "--padding", "-1", "--start-methods", "fork"),
        *("--json", "--output", "no/such/folder.png"),
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    found = json.loads(answer.stdout)
    assert found["alone"]["is_ragged"]
    tried = {run["iterator"] for run in found["runs"]}
    # A machine under load may not come to all of them in time; then that is told.
    is_told = any("not tried" in note for note in found["notes"])
    assert is_told or {"SerialIterator", "MultiprocessIterator"} <= tried
    assert [run["error"] for run in found["runs"]] == [""] * len(found["runs"])
    assert not any("--padding" in sentence for sentence in found["advice"])
    assert "functools.partial(fastiter.concat_examples, padding=-1)" in found["code"]
    assert found["chart"].startswith("not drawn")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("some_data", "expected MODULE:DATASET, not 'some_data'"),
        ("no_such_module:x", "no module 'no_such_module' is found"),
        ("no_such_file.py:x", "there is no file no_such_file.py"),
        ("some_data:nope", "some_data has no 'nope' outside of functions; it has"),
        ("some_data:nothing", "is empty: its length is 0"),
        ("some_data:needs", "some_data:needs needs argument: give these defaults"),
        ("some_data:number", "is int, which is no dataset"),
        ("json.py:x", "cannot be imported as 'json': that is another module"),
    ],
)
def test_what_leads_nowhere_is_told(here: Path, name: str, text: str) -> None:
    (here / "json.py").write_text("x = [1]\n")
    with pytest.raises(loading.UsageError) as caught:
        loading.load_dataset(name)
    assert text in str(caught.value)


def test_the_index_that_raises_is_told(folder: Path) -> None:
    answer = profile(folder, "some_data:Broken", "--budget", "2")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "KeyError: 'no such file'" in answer.stderr
    last = answer.stderr.splitlines()[-1]
    assert last == "fastiter profile: the dataset raised at index 40: KeyError: 'no such file'"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "FailsBadly",
            "the dataset raised at index [0-9]+: some_data.Silent: <its __str__ raised>",
        ),
        ("Exits", "the dataset raised at index [0-9]+: SystemExit: 3"),
        ("exits", "some_data:exits, called without arguments, raised SystemExit: 3"),
    ],
)
@pytest.mark.usefixtures("here")
def test_no_error_ends_it_without_a_word(name: str, text: str, capfd: Any) -> None:
    assert main(["profile", f"some_data:{name}", "--budget", "1"]) == 2
    assert re.fullmatch(f"fastiter profile: {text}", capfd.readouterr().err.splitlines()[-1])


@pytest.mark.usefixtures("here")
def test_objects_are_found() -> None:
    assert loading.load_dataset("some_data:ready") == list(range(10))
    assert len(loading.load_dataset("some_data.py:Sleepy")) == 64
    assert loading.load_converter("none", None) == (None, "")
    converter, code = loading.load_converter("some_data:needs", None)
    assert converter is not None
    assert (converter(3), code) == ([3], "needs")
    with pytest.raises(loading.UsageError, match="is for --converter concat"):
        loading.load_converter("none", 0.0)


def test_figures_are_shown_where_no_timeline_can_be_had(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any) -> None:
        raise MemoryError("no memory for a trace")

    monkeypatch.setattr(profile_tool, "record", refuse)
    options = ["--budget", "0.5", "--workers", "1", "--start-methods", "fork"]
    assert main(["profile", "some_data:ready", *options, "--trace", "trace.json"]) == 0
    printed = capsys.readouterr().out
    assert "Measured with batches of 10: the dataset has no more examples." in printed
    assert "No timeline: recording it raised MemoryError: no memory for a trace" in printed
    assert "Best, with batches of 10" in printed
    assert "Trace: not written, since recording it failed" in printed
    assert not (here / "trace.json").exists()
    is_drawn = importlib.util.find_spec("matplotlib") is not None
    assert (here / "fastiter-profile.png").exists() == is_drawn


class Numbers:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return {"x": np.full(3, i, np.int64), "rng": fastiter.random.example_rng().random()}


def test_the_dataset_alone() -> None:
    """An example's own generator is there, as inside of an iterator."""
    found, examples = dataset_cost.measure(
        Numbers(), np.arange(40), 8, seconds=0.05, warn=pytest.fail
    )
    assert [set(example) for example in examples] == [{"x", "rng"}] * 2
    assert found.layout == "{'x': int64[3], 'rng': float}"
    assert (found.length, found.nbytes, found.is_ragged) == (40, 32, False)
    assert found.is_repeatable
    assert not found.by_columns
    assert not found.by_many
    assert 0 < found.median <= found.high
    assert found.gain is not None


def test_a_busy_machine_does_not_make_a_dataset_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time in line for a CPU does not count while nothing was fetched."""
    seconds = itertools.count()
    monkeypatch.setattr(dataset_cost, "thread_times", lambda _: (0.0, float(next(seconds))))
    found, _ = dataset_cost.measure([5] * 40, np.arange(40), 8, seconds=0.05, warn=pytest.fail)
    assert 0 < found.cpu < 2


class Stuck:
    """Does not give an example until it was told of."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._told = threading.Event()

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> int:
        assert i != 3 or self._told.wait(60)
        return i

    def say(self, text: str) -> None:
        self.said.append(text)
        self._told.set()


@pytest.mark.parametrize(
    ("indices", "named"), [([3], "index 3"), ([1, 2, 3, 4, 5, 6], "6 indices (1, 2, 3, 4, ...)")]
)
def test_a_dataset_that_does_not_come_back_is_told_of(indices: list[int], named: str) -> None:
    dataset = Stuck()
    fetch = dataset_cost.Fetcher(dataset, dataset.say)
    fetch.patience = 0.05
    threads = set(threading.enumerate())
    with fetch.watched():
        assert fetch(np.array(indices)) == indices
    assert set(threading.enumerate()) <= threads
    assert re.fullmatch(f"fetching {re.escape(named)} has taken \\d+\\.\\d s", dataset.said[0])


def test_the_stack_of_a_dataset_that_crashes(folder: Path) -> None:
    answer = profile(folder, "some_data:Crashes")
    assert answer.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in answer.stderr
    assert re.search(r'some_data\.py", line \d+ in __getitem__', answer.stderr)


def test_tensors_are_compared() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (torch.float32, torch.bfloat16):
        one = torch.tensor([1.0, float("nan")], dtype=dtype)
        assert are_same((one, 1), (one.clone(), 1))
        assert not are_same((one, 1), (one + 1, 1))


def test_damage_is_found() -> None:
    """The first batch is compared with what the dataset gives by itself."""
    indices = [int(i) for i in fastiter.VirtualShuffleOrderSampler(0)(range(40), 0)[:4]]
    right = [(np.full(3, i), i) for i in indices]
    data = [(np.full(3, i), i) for i in range(40)]
    task = Subject(data, 4, None, 0, 0.0, right)
    trials = Trials(Settings("serial"))
    task.run(trials, 0.0)
    assert (trials.error, len(trials.firsts)) == ("", 1)
    right[2][0][1] += 1
    task.run(trials, 0.0)
    assert trials.error == "its first batch differs from the dataset's own results"


class Inherited(list[int]):
    """A dataset that a fork takes along, and nothing else."""

    def __reduce__(self) -> Any:
        raise TypeError("has a lock")


def test_a_start_method_that_works_is_found() -> None:
    task = Subject(Inherited(range(16)), 4, None, 0, 0.0, None)
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    try:
        search = Search(task, {"processes": [2]}, [2], ["spawn", "fork"], 0.0, 32.0)
        best = search.search()
    finally:
        multiprocessing.set_start_method(before, force=True)
    errors = {trials.settings: trials.error for trials in search.tried.values()}
    assert "has a lock" in errors[Settings("processes", 2, 2)]
    assert errors[Settings("processes", 2, 2, "fork")] == ""
    assert best.rates
    assert search.method == "fork"


class Waits:
    """So slow that no more than one setting can be tried."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, i: int) -> Any:
        threading.Event().wait(0.05)
        return np.full(5, i)


@pytest.mark.parametrize("seconds", [0.0, -0.3, -100.0])
def test_workers_are_tried_though_there_is_no_time_left(seconds: float) -> None:
    """Of those that are done soonest, the fewest: one worker would take as long as the caller."""
    task = Subject(Waits(), 8, None, 0, 0.0, None)
    numbers = {"threads": [1, 2, 8], "processes": [1, 2, 8]}
    search = Search(task, numbers, [2], ["fork"], seconds, 40.0, example_seconds=0.05)
    assert search.search().settings == Settings("threads", 8, 2)
    assert list(search.tried) == [Settings("threads", 8, 2)]
    assert Settings("serial") in search.left_out


def test_a_slow_dataset_keeps_to_the_budget(folder: Path) -> None:
    """One batch in the caller would take longer than all of it."""
    answer = profile(folder, "some_data:Slow", "--budget", "1", "--start-methods", "fork", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    found = json.loads(answer.stdout)
    assert found["best"]["kind"] == "threads"
    assert found["best"]["workers"] >= 4
    fetched = found["alone"]["n_timed"] + sum(
        len(run["examples_per_second"]) for run in found["runs"]
    )
    assert fetched < 10


class Noting:
    """Notes its calls, in the process that makes them."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        self.calls.append(index)
        return np.full(5, index)


@pytest.mark.parametrize(
    "settings",
    [Settings("serial"), Settings("threads", 2, 2), Settings("processes", 2, 2, "fork")],
)
def test_recording(settings: Settings) -> None:
    """Eight batches, and what workers did for them; the batches of the start are no part of it."""
    dataset = Noting()
    trace = record(Subject(dataset, 4, None, 0, 0.001, None), settings, 0.0)
    loop, *workers = lanes_of(trace.events()).values()
    assert len(workers) == settings.workers
    assert [call["args"]["rows"] for call in spans(loop, "next()")] == [4] * 8
    assert all(span["dur"] >= 1000 for span in spans(loop, "loop"))
    fetches = [fetch for lane in workers for fetch in spans(lane, "fetch")]
    assert {fetch["args"]["index"] for fetch in fetches} <= set(range(400))
    fetched = sum(fetch["args"]["rows"] for fetch in fetches)
    if settings.kind == "serial":
        assert len(dataset.calls) == 4 * (1 + 8)
    elif settings.kind == "threads":
        assert 0 < fetched <= len(dataset.calls) - 4 * (settings.prefetch + 2)
    else:
        assert min(fetch["args"]["batch"] for fetch in fetches) >= settings.prefetch + 2


def test_columns_are_recorded_too() -> None:
    columns = TupleDataset(np.zeros((400, 3)), np.arange(400))
    task = Subject(columns, 4, fastiter.concat_examples, 0, 0.0, None)
    lanes = lanes_of(record(task, Settings("processes", 1, 2, "fork"), 0.0).events())
    assert spans(lanes["worker 0"], "fetch")


def test_the_timeline_shows_whole_batches() -> None:
    """Five of them, a lane for each of the first sixteen workers, and the loop's last."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    names = ["loop", *(f"worker {number}" for number in range(20))]
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "ts": 0, "tid": tid, "args": {"name": name}}
        for tid, name in enumerate(names, 1)
    ]
    for batch in range(8):
        for tid, name, ts, dur in [
            (1, "next()", 0, 4000), (1, "wait", 500, 3000), (1, "loop", 4000, 6000),
            (2, "fetch", 0, 10_000), (21, "fetch", 0, 10_000),
        ]:  # fmt: skip
            start = 10_000 * batch + ts
            events.append({"name": name, "ph": "X", "tid": tid, "ts": start, "dur": dur})
    chart._timeline(axes, events, "Iterator")
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [*names[1:17], "loop"]
    assert axes.get_xlim() == (0, 50)
    widths = {bars.get_label(): sum(bar.get_width() for bar in bars) for bars in axes.containers}
    assert widths == {
        "loop is in next()": 20,
        "waiting: for work, for a batch": 15,
        "loop's own work": 30,
        "in the dataset": 50,
    }

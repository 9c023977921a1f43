"""The iterators under test, and the serializers that snapshots go through."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# OpenBLAS starts a thread for each processor in each program that imports NumPy; each spins for a
# tenth of a second, which made a tenth of the suite's time. The mark `blas` has these threads; the
# nightly run has them in all tests.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import fast
import pytest
import stuck_rows
from cupy_standin import Machine, make_cupy
from drawn import CHANGE, NIGHTLY
from hypothesis import settings
from serializers import LenientLoader, Loader, Saver

from fastiter import iterators
from fastiter._device import transfer
from fastiter._util.cpus import whole_cpus
from fastiter._workers import start_method

try:
    import chainer
except ImportError:  # it needs NumPy 1.23; where it is there, it is the oracle
    chainer = None

HERE = Path(__file__).resolve().parent


def gpu_missing(library: str = "cupy") -> str | None:
    """Why tests marked gpu cannot run here, with CuPy or with torch; None if they can."""
    if library == "torch":
        return (
            None if importlib.import_module("torch").cuda.is_available() else "torch finds no GPU"
        )
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed: {error}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no device: {error}"
    return None if count else "CuPy finds no device"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rehearse-gpu",
        action="store_true",
        help="run the tests marked gpu over the stand-in for CuPy: it shows that they run, and "
        "nothing of a GPU",
    )
    parser.addoption(
        "--stuck-rows",
        choices=stuck_rows.WAYS,
        help="have datasets hang in forked workers now and then, and iterators retry or hedge such "
        "rows: tests of other faults pass all the same, but for those that count what workers do",
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three at a time on two CPUs: tests of processes wait as much as they compute."""
    n_cpus = whole_cpus()
    return n_cpus if config.option.markexpr == "fast" else n_cpus + n_cpus // 2


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("--rehearse-gpu"):
        return "gpu: a rehearsal over the stand-in for CuPy, which is no GPU"
    return f"gpu: {gpu_missing() or 'there is one'}"


def pytest_configure(config: pytest.Config) -> None:
    _begin_apart(config)
    # What is started in the background ignores them, and hands that on to all that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Tests start hundreds of interpreters; each would compile the package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _begin_apart(config: pytest.Config) -> None:
    """Has each of xdist's workers begin with other folders: what one compiles, with pytest's own
    asserts, the others find. Side by side all compiled everything, which took 6 s of each."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and [Path(name).resolve() for name in config.args] == [HERE]:
        folders = sorted(str(path) for path in HERE.glob("[a-z]*") if any(path.glob("test_*.py")))
        n_workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = int(worker.removeprefix("gw")) * len(folders) // n_workers
        config.args[:] = folders[first:] + folders[:first]


@pytest.hookimpl(tryfirst=True)  # -m chooses by the marks that are there then
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The spawn of what forkserver has, too, is left to the nightly run: both start from nothing but
    # the image and the main module, and each worker that is spawned imports NumPy anew.
    by_name = {item.nodeid: item for item in items}
    for name, item in by_name.items():
        twin = re.sub(r"\bspawn\b", "forkserver", name)
        if twin != name and twin in by_name and not item.get_closest_marker("each_method"):
            item.add_marker(pytest.mark.stress)
    # Cases that differ in what all kinds of iterators do alike.
    counts: Counter[Any] = Counter()
    for item in items:
        if mark := item.get_closest_marker("thinned"):
            values = item.callspec.params.values()
            kinds = [str(x) for x in values if isinstance(x, Kind) or "process" in str(x)]
            case = (item.function, *kinds)
            if any("process" in name for name in kinds) and counts[case] % mark.args[0]:
                item.add_marker(pytest.mark.stress)
            counts[case] += 1
    for item in items:
        if fast.is_fast(item):
            item.add_marker(pytest.mark.fast)
        if fast.traces_lines(getattr(item, "function", None)):
            item.add_marker(pytest.mark.traces)
    if config.getoption("--stuck-rows"):
        for item in items:
            if mark := item.get_closest_marker("no_stuck_rows"):
                item.add_marker(pytest.mark.skip(reason=f"rows are stuck: {mark.args[0]}"))
    # First those that fork most: a fork takes longer the more memory pytest holds, and that grows
    # with each test, to twice as much.
    # By path then: workers collect in different orders, and have to have one.
    items.sort(key=lambda item: ("/process/" not in str(item.path), str(item.path)))
    on_gpu = [(item, mark) for item in items if (mark := item.get_closest_marker("gpu"))]
    if config.getoption("--rehearse-gpu"):
        for item, mark in on_gpu:
            if "real" in mark.kwargs:
                item.add_marker(pytest.mark.skip(reason=f"no rehearsal: {mark.kwargs['real']}"))
        return
    libraries = {mark.kwargs.get("library", "cupy") for _, mark in on_gpu}
    reasons = {library: gpu_missing(library) for library in libraries}
    for item, mark in on_gpu:
        reason = reasons[mark.kwargs.get("library", "cupy")]
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module", autouse=True)
def _objects_that_stay() -> None:
    """Spares the collections that tests ask for a look at all that pytest and libraries hold, which
    took a fifth of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    watch = fast.Watch() if item.get_closest_marker("fast") else None
    result = yield
    if watch is not None and watch.has_started():
        pytest.fail(
            "a test that is marked fast starts a process: name what does in support/fast.py"
        )
    return result


# One fixture for all of them: each that is automatic costs every test a tenth of a millisecond.
@pytest.fixture(autouse=True)
def _prepare_each_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # A program is warned once of an unsafe fork; which test that were depended on their order.
    # Programs of their own test the warning.
    monkeypatch.setattr(start_method, "_warned", True)
    if request.node.get_closest_marker("blas"):
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    # The stand-in in CuPy's place for tests marked gpu.
    if request.config.getoption("--rehearse-gpu") and request.node.get_closest_marker("gpu"):
        request.getfixturevalue("world")
    if way := request.config.getoption("--stuck-rows"):
        stuck_rows.switch_on(way, monkeypatch)


@pytest.fixture
def long_loop(request: pytest.FixtureRequest) -> int:
    """A number of many batches: enough for a GPU to show a leak, few in a rehearsal."""
    return 1_000 if request.config.getoption("--rehearse-gpu") else 10_000


# No deadline: on a busy machine any example can be slow. The same examples in every run, so that a
# change fails for what it changed; --hypothesis-profile=explore draws others, as nightly does, and
# more of them.
settings.register_profile("explore", deadline=None, max_examples=NIGHTLY)
settings.register_profile("fastiter", deadline=None, derandomize=True, max_examples=CHANGE)
settings.load_profile("fastiter")


@dataclass(frozen=True)
class Kind:
    """One way to make an iterator: ``make(dataset, batch_size, ...)`` as in the class itself."""

    name: str
    make: Callable[..., Any]
    is_ours: bool = True
    is_reopenable: bool = True  #: whether reset() works after finalize()

    def __str__(self) -> str:
        return self.name


def kind(name: str, cls: type, fixed: dict[str, Any] | None = None, **facts: bool) -> Kind:
    def make(dataset: Any, batch_size: Any, **arguments: Any) -> Any:
        return cls(dataset, batch_size, **{**(fixed or {}), **arguments})

    return Kind(name, make, **facts)


def _our_kinds() -> list[Kind]:
    processes = {"n_processes": 2, "n_prefetch": 2, "context": "fork"}
    return [
        kind("serial", iterators.SerialIterator),
        kind("threads", iterators.MultithreadIterator, {"n_threads": 3}),
        kind("threads-ahead", iterators.MultithreadIterator, {"n_threads": 2, "n_prefetch": 5}),
        kind("processes", iterators.MultiprocessIterator, processes, is_reopenable=False),
    ]


def _chainer_kinds() -> list[Kind]:
    if chainer is None:
        return []
    theirs = chainer.iterators
    return [
        kind("chainer-serial", theirs.SerialIterator, is_ours=False),
        kind("chainer-threads", theirs.MultithreadIterator, {"n_threads": 2}, is_ours=False),
        kind(
            "chainer-processes",
            theirs.MultiprocessIterator,
            {"n_processes": 1, "shared_mem": 64},
            is_ours=False,
            is_reopenable=False,
        ),
    ]


OUR_KINDS = _our_kinds()
ALL_KINDS = OUR_KINDS + _chainer_kinds()


class Maker:
    """Makes iterators of one kind, and finalizes them all when the test is over."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._made: list[Any] = []

    def __call__(self, dataset: Any, batch_size: Any, **arguments: Any) -> Any:
        return self.keep(self.kind.make(dataset, batch_size, **arguments))

    def keep(self, iterator: Any) -> Any:
        """Have an iterator that came about otherwise, like a copy, finalized too."""
        self._made.append(iterator)
        return iterator

    def finalize(self) -> None:
        for iterator in self._made:
            iterator.finalize()


def _maker(kind: Kind) -> Iterator[Maker]:
    maker = Maker(kind)
    yield maker
    maker.finalize()


@pytest.fixture(params=ALL_KINDS, ids=str)
def make_any(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Every iterator there is, Chainer's too: for what they must have in common."""
    yield from _maker(request.param)


@pytest.fixture(params=OUR_KINDS, ids=str)
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Every iterator of ours."""
    yield from _maker(request.param)


@pytest.fixture(params=ALL_KINDS, ids=str)
def make_source(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """A second one beside ``make``, for snapshots that go from one kind to another."""
    yield from _maker(request.param)


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def make_started(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """The process iterator under each start method."""
    fixed = {"n_processes": 2, "context": request.param}
    yield from _maker(kind(request.param, iterators.MultiprocessIterator, fixed))


@pytest.fixture
def processes() -> Iterator[Callable[..., iterators.MultiprocessIterator]]:
    """Makes process iterators as the class does, with two forked workers and in order unless told
    otherwise, and ends them with the test."""
    made = []

    def build(
        dataset: Any, batch_size: int = 4, **arguments: Any
    ) -> iterators.MultiprocessIterator:
        defaults = {"n_processes": 2, "shuffle": False, "context": "fork"}
        made.append(
            iterators.MultiprocessIterator(dataset, batch_size, **{**defaults, **arguments})
        )
        return made[-1]

    yield build
    for iterator in made:
        iterator.finalize()


@pytest.fixture
def save() -> Callable[[Any], dict[str, Any]]:
    """Takes a snapshot of an iterator: a dict of arrays."""

    def take(iterator: Any) -> dict[str, Any]:
        saver = Saver()
        iterator.serialize(saver)
        return saver.stored

    return take


@pytest.fixture
def load() -> Callable[..., None]:
    """Loads a snapshot into an iterator."""

    def put(iterator: Any, stored: dict[str, Any], *, strict: bool = True) -> None:
        iterator.serialize(Loader(stored) if strict else LenientLoader(stored))

    return put


@pytest.fixture
def cupy() -> Any:
    """CuPy, or the stand-in of a rehearsal, for a test marked gpu."""
    return importlib.import_module("cupy")


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Puts the stand-in in the place of CuPy; gives it and its machine. It is no GPU."""

    def make(seed: int = 0, n_devices: int = 2) -> SimpleNamespace:
        machine = Machine(seed, n_devices)
        cupy: Any = make_cupy(machine)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        monkeypatch.setitem(sys.modules, "cupy.cuda", cupy.cuda)
        monkeypatch.setattr(transfer, "_copy_streams", {})
        return SimpleNamespace(cupy=cupy, machine=machine, stream=cupy.cuda.Stream)

    return make


@pytest.fixture
def world(make_world: Callable[..., SimpleNamespace]) -> SimpleNamespace:
    return make_world()

"""Parts of jobs of micro-benchmarks: cases, their candidates, goals, the C limits.

A job is a module of `bench` with

``NAME``
    what it is called on the command line, ``TITLE`` what it measures, in a line;
``cases(quick)``
    gives its `Case` objects. It must be cheap and import no peer, since the benchmark calls it in
    several processes, of other interpreters too. ``quick`` asks for the few cases that show that
    everything runs; the first of them is also a test, and should take no second. All cases together
    should take at most 25 s on 2 cores, the quick ones 5 s.

`python -m bench` finds it by these names. All of this is a job::

    NAME = "stack"
    TITLE = "one batch from a list of arrays of one shape"

    def _numpy():
        import numpy
        return numpy.stack                      # called with a source, is timed

    def _fastiter():
        from fastiter.kernels import stack
        return stack

    def _torch():
        import torch                            # ImportError: the row is left out, with the reason
        torch.set_num_threads(1)
        return Prepared(lambda arrays: list(map(torch.from_numpy, arrays)), torch.stack)

    def _limit():
        library = limits()                      # bench/c/limits.c, compiled at first use

        def run(prepared):
            out, addresses, count, nbytes = prepared
            return Measured(library.limit_copy(out.ctypes.data, addresses, count, nbytes))

        return Prepared(prepare, run)

    def _check(result, source):                 # raises for a wrong result
        expect_equal(result, numpy.stack(source))

    def _case(count, shape, cold):              # a function, so that lambdas keep its arguments
        nbytes = 4 * count * math.prod(shape)
        return Case(
            name=f"{count} x float32{shape}, {'cold' if cold else 'in cache'}",
            sources=rotating(lambda seed: _make(seed, count, shape), nbytes, cold=cold),
            candidates={"fastiter": _fastiter, "numpy": _numpy, "torch": _torch, "limit": _limit},
            check=_check,
            items=count, item="example", nbytes=nbytes,
            goals=[Goal("numpy", 10), Goal("limit", 0.95), AtMost("p95_ratio", 1.3)],
        )

    def cases(quick):
        yield _case(256, (16,), cold=False)
        if not quick:
            yield _case(64, (3, 224, 224), cold=True)

`bench/jobs/importing.py` is a short one in full, whose candidates measure themselves.

What the benchmark does with it
    One process per library (the part of a candidate's name before the first dot) runs all cases of
    a job, so that neither heaps nor threads of one touch another's, and Chainer can have an
    interpreter of its own. In each, for each case: make the sources, open the candidates, compare
    their results with ``check`` (on up to three sources before the timing, and the last result of
    the last slice; a wrong one says WRONG and has no figure). Then rounds: each candidate gets a
    slice of time, in an order that changes with the round; only one of all runs at a time. Before a
    slice its garbage is collected, and for its time collection is off; calls that are not timed
    warm it up.

    Memory is looked at during the checks before the timing. Where one call of each candidate takes
    long, there are fewer rounds: as many as fit into 15 s, two at least, unless ``--rounds`` says
    otherwise.

    Calls shorter than 20 us are timed in bundles that last as long. A slice's ``seconds`` is the
    median of its calls, ``p95`` the 95th percentile; a figure is the median of the rounds. The loop
    itself costs about 20 ns per call. A result lives until the next one of the same candidate is
    made, as ``batch = f(...)`` in a loop does it.

Candidates
    The value is a function without arguments that imports what it needs and returns the function to
    time, or a context manager that gives it (for threads and processes; closed after the case).
    What it times gets the source as it is; where a library needs another form (tensors, addresses),
    return ``Prepared(prepare, run)``: ``prepare(source)`` is then called once per source, before
    the timing, and ``run`` with what it gave.
    ``fastiter`` and what begins with ``fastiter.`` are ours, ``limit`` is the machine's limit (its
    result is not checked), everything else a peer. What a candidate returns may be `Measured`: then
    the seconds (and other figures) in it count instead of the benchmark's clock.

Goals
    are judged by `bench.harness.goals`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.goals import AtMost, Goal

__all__ = [
    "AtMost",
    "Case",
    "Goal",
    "Measured",
    "Prepared",
    "WrongResult",
    "cache_bytes",
    "compile_c",
    "expect_equal",
    "limits",
    "pointers",
    "rotating",
]

Run = Callable[[Any], Any]


@dataclass(frozen=True)
class Prepared:
    """``run(prepare(source))``, of which only `run` is timed; `prepare` runs once per source."""

    prepare: Callable[[Any], Any]
    run: Run


Open = Callable[[], Run | Prepared | AbstractContextManager[Run | Prepared]]


@dataclass(frozen=True)
class Case:
    """One thing to measure, the same for all `candidates`.

    ``check(result, source)`` raises `WrongResult`, or anything, if the result is wrong. It is given
    ``Measured.result`` where a candidate returns `Measured`.
    """

    name: str  # unique within the job
    # What the candidates are called with, in turns: `rotating` makes it; ``lambda: [None]`` where
    # there is nothing to hand over.
    sources: Callable[[], Sequence[Any]]
    candidates: Mapping[str, Open]  # see above
    check: Callable[[Any, Any], None]
    items: int = 1  # of what, per call, the rate counts
    item: str = "call"  # names one: "index", "example", "batch"
    nbytes: int = 0  # output per call, for a column of GB/s
    goals: Sequence[Goal | AtMost] = ()
    share: float = 1.0  # length of this case's slices, as a share of the usual one
    # Whether candidates start processes. The memory is then that of all together, looked at from
    # outside (PSS); without, the kernel's high-water mark of the candidate's own process.
    processes: bool = False


@dataclass(frozen=True)
class Measured:
    """A candidate's own measurement of one call."""

    seconds: float  # what counts as the duration of the call
    result: Any = None  # for ``check``
    # More figures, of which less is better; columns of their own, goals may name them.
    figures: Mapping[str, float] = field(default_factory=dict)


class WrongResult(ValueError):
    """A candidate's result is not what the source asks for."""


def expect_equal(result: Any, expected: np.ndarray) -> None:
    """Raises `WrongResult` unless `result` (anything NumPy takes) is `expected`, dtype included."""
    array = np.asarray(result)
    if array.dtype != expected.dtype or array.shape != expected.shape:
        raise WrongResult(
            f"{array.dtype}{array.shape} came, {expected.dtype}{expected.shape} was due"
        )
    wrong = array != expected
    if expected.dtype.kind in "fc":
        wrong &= ~(np.isnan(array) & np.isnan(expected))
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise WrongResult(f"at {place}: {array[place]} came, {expected[place]} was due")


def cache_bytes() -> int:
    """Size of the largest cache that a core of this machine has, 32 MiB if it does not tell."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            text = path.read_text().strip()
            sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[text[-1]])
    return max(sizes) or 2**25


def rotating(
    make: Callable[[int], Any], nbytes: int, *, cold: bool, most: int = 2**30
) -> Callable[[], Sequence[Any]]:
    """Sources for a `Case`: one for all calls, or as many as keep them out of the caches.

    Parameters
    ----------
    make : callable
        Makes one source from a number 0, 1, 2, ...; must give the same in every process.
    nbytes : int
        Bytes that one source holds.
    cold : bool
        Take enough that together they are twice the largest cache: when a source's turn comes
        again, it is no longer there.
    most : int
        Never more than this many bytes in all (each library's process holds its own), but two.
    """
    count = 1
    if cold:
        count = max(2, min(math.ceil(2 * cache_bytes() / nbytes), most // nbytes))
    return lambda: [make(number) for number in range(count)]


def compile_c(source: Path, *options: str) -> Path:
    """Compiles a C source with ``-O3`` and `options`, once per content; the path of what came out.

    It lies in a directory of this user's under the temporary one.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        Where no C compiler does it; ``CC`` names another one than ``cc``.
    """
    compiler = os.environ.get("CC", "cc").split()
    command = [*compiler, "-std=c11", "-O3", *options, str(source)]
    digest = hashlib.sha256(repr(command).encode() + source.read_bytes()).hexdigest()[:16]
    directory = Path(tempfile.gettempdir(), f"fastiter-bench-{os.getuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user; set TMPDIR to a private one")
    target = directory / f"{source.stem}-{digest}"
    if not target.exists():
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
            subprocess.run([*command, "-o", file.name], check=True, capture_output=True, text=True)
        os.replace(file.name, target)  # several processes may compile at once
    return target


def limits() -> ctypes.CDLL:
    """The loops of ``bench/c/limits.c``, each of which returns the seconds that it took.

    Addresses are taken as integers (``array.ctypes.data``) or from `pointers`.

    Raises ImportError where no C compiler makes it, so that the row of the limit is left out.
    """
    try:
        library = ctypes.CDLL(
            str(compile_c(Path(__file__).parents[1] / "c" / "limits.c", "-shared", "-fPIC"))
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImportError(f"no C compiler for the machine's limit: {error}") from error
    address, size = ctypes.c_void_p, ctypes.c_size_t
    for name, types in {
        "limit_copy": (address, address, size, size),
        "limit_segments": (address, size, address, address, address, ctypes.c_int),
        "limit_widen": (address, address, size, size),
        "limit_fill": (address, size, ctypes.c_int),
        "limit_count": (address, size),
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, ctypes.c_double
    return library


def pointers(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The addresses of `arrays` as uintp (n,); valid as long as the arrays live."""
    return np.array([array.ctypes.data for array in arrays], dtype=np.uintp)

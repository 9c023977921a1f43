"""Thread pools in the parent: workers start and work whatever lives there, and what the program
says about their start is never overridden."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from outside import run_script

stress = pytest.mark.stress

PARALLEL_SUM = """
double parallel_sum(const double *values, long n)
{
    double sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (long i = 0; i < n; i++)
        sum += values[i];
    return sum;
}
"""

OPENMP = """
    import ctypes
    library = ctypes.CDLL({library!r})
    library.parallel_sum.restype = ctypes.c_double

    def work(index):
        values = np.full(100_000, index, dtype=float)
        return library.parallel_sum(values.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(100_000))
"""

BLAS = """
    def work(index):
        return float((np.full((300, 300), index, dtype=float) @ np.ones((300, 300))).sum())

    def toil(stop):
        while not stop:
            work(1)
"""

OPENCV = """
    import cv2

    def work(index):
        image = np.full((600, 600, 3), index, dtype=np.float32)
        cv2.GaussianBlur(image, (5, 5), 0)
        return float(cv2.resize(image, (500, 400), interpolation=cv2.INTER_AREA).sum())
"""

PROGRAM = """
    import logging
    import multiprocessing
    import os
    import threading
    import numpy as np
    from fastiter import MultiprocessIterator
    {pool}
    class Dataset:
        def __len__(self):
            return 16
        def __getitem__(self, index):
            return work(index)

    def main():
        if len(os.sched_getaffinity(0)) < 2:
            print("one processor")
            return
        expected = [work(index) for index in range(16)]
        dataset = Dataset()
        {before}
        iterator = MultiprocessIterator(dataset, 4, n_processes=2, shuffle=False, repeat=False)
        found = [value for batch in iterator for value in batch]
        print(iterator._pool._crew._method, found == expected)
        iterator.finalize()
        {after}

    {run}
"""

GUARDED = "if __name__ == '__main__':\n        main()"
UNGUARDED = "main()"
NOTHING = "pass"
UNPICKLABLE = "dataset.handle = lambda: None"


@pytest.fixture(scope="session")
def openmp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that computes by OpenMP's threads."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build an OpenMP program with")
    directory = tmp_path_factory.mktemp("openmp")
    (directory / "sum.c").write_text(PARALLEL_SUM)
    command = [compiler, "-O1", "-fopenmp", "-shared", "-fPIC", "sum.c", "-o", "libsum.so"]
    built = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip(f"gcc cannot build an OpenMP program: {built.stderr}")
    return str(directory / "libsum.so")


def run(
    directory: Path,
    pool: str,
    start: str = GUARDED,
    before: str = NOTHING,
    after: str = NOTHING,
) -> str:
    """Runs the program to its end; the start method, and whether the batches were right."""
    source = PROGRAM.format(pool=pool, run=start, before=before, after=after)
    status, out, err = run_script(directory, textwrap.dedent(source))
    assert status == 0, err
    return out.strip()


def test_openmp(tmp_path, openmp):
    assert run(tmp_path, OPENMP.format(library=openmp)) == "forkserver True"


@pytest.mark.parametrize(("start", "before"), [(UNGUARDED, NOTHING), (GUARDED, UNPICKLABLE)])
def test_openmp_where_only_a_fork_will_do(tmp_path, openmp, start, before):
    assert run(tmp_path, OPENMP.format(library=openmp), start, before) == "fork True"


def test_blas_busy_in_another_thread(tmp_path):
    before = "stop = []; beside = threading.Thread(target=toil, args=(stop,)); beside.start()"
    after = "stop.append(None); beside.join()"
    assert run(tmp_path, BLAS, GUARDED, before, after) == "forkserver True"


def test_blas_at_rest(tmp_path):
    """OpenBLAS lets its threads end before a fork: they are no reason against one. And to make an
    iterator fixes no start method for the rest of the program."""
    after = "assert multiprocessing.get_start_method(allow_none=True) is None"
    out = run(tmp_path, BLAS, after=after)
    assert out == f"{multiprocessing.get_all_start_methods()[0]} True"


THREADS_OF_WORKERS = """
    import os
    import numpy as np
    from fastiter import MultiprocessIterator

    class Dataset:
        def __len__(self):
            return 16
        def __getitem__(self, index):
            before = len(os.listdir("/proc/self/task"))
            np.ones((300, 300)) @ np.ones((300, 300))
            return before, len(os.listdir("/proc/self/task"))

    if __name__ == "__main__":
        OPTIONS = {{"n_processes": 2, "repeat": False, "context": {method!r}}}
        np.ones((300, 300)) @ np.ones((300, 300))
        alone = len(os.listdir("/proc/self/task"))
        with MultiprocessIterator(Dataset(), 4, **OPTIONS) as iterator:
            print({{pair for batch in iterator for pair in batch}})
        (np.ones((300, 300)) @ np.ones((300, 300))).sum()
        print(len(os.listdir("/proc/self/task")) - alone)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_forked_worker_has_no_threads_of_blas(tmp_path, method):
    """To start a worker must not start a pool of one thread for each processor, which would spin
    before they sleep; nor may computing in it. It has a thread that computes and one that watches
    the parent. The program itself computes in as many threads as before."""
    source = textwrap.dedent(THREADS_OF_WORKERS).format(method=method)
    status, out, err = run_script(tmp_path, source)
    assert (status, err, out.split("\n")) == (0, "", ["{(2, 2)}", "0", ""])


@stress
@pytest.mark.parametrize(("start", "method"), [(GUARDED, "forkserver"), (UNGUARDED, "fork")])
def test_opencv(tmp_path, start, method):
    pytest.importorskip("cv2", exc_type=ImportError)
    assert run(tmp_path, OPENCV, start) == f"{method} True"


@pytest.mark.parametrize(
    "method",
    ["fork", pytest.param("forkserver", marks=stress), pytest.param("spawn", marks=stress)],
)
def test_what_the_program_has_set_stands(tmp_path, openmp, method):
    before = f"multiprocessing.set_start_method({method!r})"
    pool = OPENMP.format(library=openmp)
    assert run(tmp_path, pool, GUARDED, before) == f"{method} True"

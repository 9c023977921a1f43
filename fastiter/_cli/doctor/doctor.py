"""``python -m fastiter doctor``: report what this machine offers a data loader."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import resource
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import fastiter
from fastiter._cli.doctor import selftest
from fastiter._cli.doctor.findings import Finding, Judgement, note_if, without_secrets
from fastiter._clib import status
from fastiter._collate import buffers
from fastiter._order import permutation
from fastiter._ring.arena import Arena
from fastiter._util import cpus
from fastiter._util.ranks import iterator_ranks
from fastiter._util.units import as_bytes
from fastiter._workers import start_method
from fastiter.dataset.download import get_dataset_root

EPILOG = """\
Each line states a fact and rates it: "ok", "note" (worth knowing), or "problem" (something does not
work). The exit status is 1 if there is a problem, else 0.
"""

_MIB = 1 << 20
_DEVICE_SECONDS = 60  # for CuPy and the driver to answer

# Distributions in the order of preference, what they are good for, and whether fastiter requires
# them.
_PACKAGES = (
    ("tqdm", "for progress bars", True),
    ("threadpoolctl", "to limit threads of native libraries in workers", True),
    ("pillow", "for fastiter.images and other datasets of images", False),
    ("simplejpeg", "with which fastiter.images decodes JPEG files faster", False),
    ("pyarrow", "for Arrow and Parquet files, and datasets of Hugging Face", False),
    (
        "opencv-python-headless opencv-python opencv-contrib-python-headless opencv-contrib-python",
        "for image datasets of your own; workers limit its threads",
        False,
    ),
    ("cloudpickle", "to send lambdas and local classes to spawned workers", False),
    ("matplotlib", "for the charts of `profile` and `demo`", False),
    ("torch", "if you use it; workers seed its generators", False),
)
_VARIABLES = (
    *("FASTITER_BUFFER_POOL", "CHAINER_DATASET_ROOT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"),
    *("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"),
    *("http_proxy", "https_proxy", "no_proxy", "PYTHONPATH"),
)
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `run` takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the findings; return the exit status."""
    found: list[tuple[str, Finding]] = []
    for section, check in _CHECKS.items():
        if not options.json:
            print(f"\n{section}")
        for finding in check():
            found.append((section, finding))
            if not options.json:
                print(finding)
    problems = sum(finding.judgement == "problem" for _, finding in found)
    if options.json:
        findings = [{"section": section, **finding._asdict()} for section, finding in found]
        print(json.dumps({"findings": findings}, indent=2))
    else:
        notes = sum(finding.judgement == "note" for _, finding in found)
        print(f"\nproblems: {problems}, notes: {notes}")
    return 1 if problems else 0


def _fastiter() -> Iterator[Finding]:
    yield Finding("version", f"{fastiter.__version__} in {Path(fastiter.__file__).parent}")
    yield Finding("system", f"{platform.system()} {platform.release()} on {platform.machine()}")
    gil = "free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else "with the GIL"
    if gil == "free-threaded" and sys._is_gil_enabled():  # type: ignore[attr-defined,unused-ignore]
        gil += ", but the GIL is switched on"
    python = f"{platform.python_implementation()} {platform.python_version()} ({gil})"
    cython = [name.removeprefix("_cython_") for name in sys.modules if name[:8] == "_cython_"]
    built = f"; compiled by Cython {cython[0].replace('_', '.')}" if cython else ""
    yield Finding("python", f"{python}, NumPy {np.__version__}{built}")
    levels = ("baseline", "AVX2", "AVX-512")[: permutation.ISA + 1]
    fact = f"the processor has {', '.join(levels)}; the kernels use up to {levels[-1]}"
    yield Finding("instructions", fact)


def _processors() -> Iterator[Finding]:
    present, usable, workers = os.cpu_count() or 1, cpus.allowed_cpus(), cpus.whole_cpus()
    yield note_if(
        usable != present,
        "usable",
        f"{usable} of {present}: n_processes=None starts {workers} workers",
        "an affinity mask (taskset, cpuset, SLURM) hides the others",
    )
    quota = cpus.cgroup_quota()
    fact = f"a control group limits CPU time to {quota:g} of these CPUs"
    yield note_if(
        quota < usable,
        "quota",
        fact if quota < usable else "no control group limits the time of these CPUs",
        f"more than {workers} workers are only throttled; raise the container's CPU limit",
    )
    with contextlib.suppress(OSError):  # the system does not report it
        load = os.getloadavg()[0]
        yield note_if(
            load > 0.5 * usable,
            "load",
            f"{load:.1f} processes ran or waited for a CPU, on average, in the last minute",
            "other programs compete for these CPUs: measurements will vary",
        )


def _memory() -> Iterator[Finding]:
    try:
        lines = re.findall(r"(\w+): +(\d+) kB", Path("/proc/meminfo").read_text())
        sizes = {name: int(size) << 10 for name, size in lines}
        total, available = sizes["MemTotal"], as_bytes(sizes["MemAvailable"])
    except (OSError, KeyError):
        yield Finding("machine", "this system does not report its memory", "note")
        return
    swap = as_bytes(sizes.get("SwapTotal", 0))
    yield Finding("machine", f"{available} available of {as_bytes(total)}, swap {swap}")
    limit = status.memory_total()
    yield note_if(
        limit < total,
        "control group",
        f"limited to {as_bytes(limit)}" if limit < total else "no limit below the machine's memory",
        "batches, the shared copy of the dataset and all workers count towards it",
    )
    available_here = status.memory_available()
    yield note_if(
        available_here < 256 * _MIB,
        "for batches",
        f"fastiter may use {as_bytes(available_here)} and leaves a reserve to the machine",
        "too little for many pipelines: reduce batch_size and n_prefetch, free memory, or raise "
        "the limit",
    )


def _shared_memory() -> Iterator[Finding]:
    try:
        arena = Arena.create(4, 1, 1, 1)
    except (OSError, MemoryError) as error:
        advice = "see the limits below; MultithreadIterator needs no shared memory"
        yield Finding("arena", f"cannot be created: {error}", "problem", advice)
        return
    memory, event = (_target_of(fd) for fd in (arena.fd, arena.event_fd))
    room = f"room for {as_bytes(arena.geometry[4])} in each slot"
    arena.close_descriptors()
    is_named = not memory.startswith("memfd:")
    kind = "a file of /dev/shm without a name" if is_named else "anonymous (memfd_create)"
    yield note_if(
        is_named,
        "memory",
        f"{kind}; {room}",
        "this kernel or sandbox refuses memfd_create; allow it, and the size of /dev/shm does not "
        "matter",
    )
    yield _dev_shm(is_named)
    yield note_if(
        "eventfd" not in event,
        "wake-ups",
        "eventfd and futex" if "eventfd" in event else "pipes, since eventfd is not available",
        "this works, but is slower; a kernel or sandbox that allows eventfd helps",
    )
    has_pidfd = _has_pidfd()
    yield note_if(
        not has_pidfd,
        "deaths of workers",
        f"detected by {'pidfd' if has_pidfd else 'pipes and waitpid, as pidfd_open is missing'}",
        "this works; a kernel or sandbox that allows pidfd_open helps",
    )


def _target_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").removeprefix("/")
    except OSError:
        return ""


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _dev_shm(is_used: bool) -> Finding:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return Finding("/dev/shm", "does not exist", "problem" if is_used else "ok")
    free = status.f_bavail * status.f_frsize
    use = "fastiter keeps batches there" if is_used else "fastiter does not use it"
    return note_if(
        is_used and free < 1024 * _MIB,
        "/dev/shm",
        f"{as_bytes(free)} free of {as_bytes(status.f_blocks * status.f_frsize)}; {use}",
        "enlarge it (docker run --shm-size=2g), or allow memfd_create",
    )


def _limits() -> Iterator[Finding]:
    def soft(name: str) -> int:
        return resource.getrlimit(getattr(resource, name))[0]

    workers = cpus.whole_cpus()
    need = 16 + 4 * workers
    files = soft("RLIMIT_NOFILE")
    yield note_if(
        0 <= files < need + 48,
        "open files",
        f"RLIMIT_NOFILE {_limit(files)}; an iterator of {workers} workers opens about {need}, "
        "batches open none",
        f"raise it: ulimit -n {_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1])}",
    )
    for name, what, command in (
        ("RLIMIT_AS", "address space", "ulimit -v unlimited"),
        ("RLIMIT_FSIZE", "file size", "ulimit -f unlimited"),
    ):
        yield note_if(
            soft(name) >= 0,
            what,
            f"{name} {_limit(soft(name), as_bytes)}",
            f"it applies to shared memory too, and so limits the size of a batch: {command}",
        )
    locked = _limit(soft("RLIMIT_MEMLOCK"), as_bytes)
    fact = f"RLIMIT_MEMLOCK {locked}; matters only for batches that a GPU reads itself (device=)"
    yield Finding("locked memory", fact)
    processes = soft("RLIMIT_NPROC")
    yield note_if(
        0 <= processes < 64 + workers and os.geteuid() != 0,
        "processes",
        f"RLIMIT_NPROC {_limit(processes)}",
        f"it counts all threads of this user; raise it (ulimit -u) for {workers} workers",
    )


def _limit(value: int, text: Callable[[float], str] = str) -> str:
    return "unlimited" if value < 0 else text(value)


def _start_methods() -> Iterator[Finding]:
    methods = multiprocessing.get_all_start_methods()
    yield Finding("methods", f"{', '.join(methods)}; the default here is {methods[0]}")
    chosen = start_method.default_method()
    yield Finding(
        "chosen",
        f"{chosen}: multiprocessing's" + " default" * (chosen == methods[0]),
        help="context= sets another; context='safe' avoids forks beside threads",
    )


def _packages() -> Iterator[Finding]:
    installed = _installed()
    for alternatives, purpose, is_required in _PACKAGES:
        names = alternatives.split()
        name = next(filter(installed.get, names), None)
        judgement: Judgement = "note" if is_required else "ok"
        if name is not None:
            yield Finding(name, installed[name])
        else:
            help = f"pip install {names[0]}, {purpose}"
            yield Finding(names[0], "not installed", judgement, help)


def _installed() -> dict[str, str]:
    """Versions of distributions, by name; of two, that of the first one on the path."""
    distributions = reversed(list(importlib.metadata.distributions()))
    return {(one.metadata["Name"] or "").lower(): one.version for one in distributions}


def _environment() -> Iterator[Finding]:
    for name in _VARIABLES:
        value = os.environ.get(name)
        if value is None:
            continue
        if name == "FASTITER_BUFFER_POOL" and (wrong := buffers.complaint()):
            yield Finding(name, repr(value), "problem", wrong)
        else:
            yield Finding(name, repr(without_secrets(value, name.endswith("_proxy"))))
    root = get_dataset_root()
    is_closed = not _is_open_to_writing(root)
    yield note_if(
        is_closed,
        "downloads",
        f"kept below {without_secrets(root)}" + (", which is not writable" if is_closed else ""),
        "set CHAINER_DATASET_ROOT to a writable directory",
    )
    if any(name in os.environ for name in _RANKS):
        try:
            rank, num_ranks = iterator_ranks("auto", None)
        except ValueError as error:
            yield Finding("rank", str(error), "note")
        else:
            yield Finding("rank", f"{rank} of {num_ranks}")


def _is_open_to_writing(path: str) -> bool:
    """Whether files can be created below ``path``, which need not exist yet."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def _gpus() -> Iterator[Finding]:
    devices = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    installed = _installed().items()
    cupy = sorted(f"{name} {version}" for name, version in installed if name.startswith("cupy"))
    if not cupy:
        yield note_if(
            bool(devices),
            "CuPy",
            f"not installed; {'devices: ' + ', '.join(devices) if devices else 'no GPU found'}",
            "pip install cupy-cuda12x (or cupy-cuda13x) for device=0",
        )
        return
    yield Finding("CuPy", ", ".join(cupy))
    failed: Judgement = "problem" if devices else "note"
    # In a process of its own: CUDA stays out of this one, and a broken driver cannot end it.
    command = [sys.executable, "-m", "fastiter._cli.doctor.devices"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_DEVICE_SECONDS)
    except subprocess.TimeoutExpired:
        fact = f"no answer within {_DEVICE_SECONDS} s"
        yield Finding("devices", fact, failed, "check nvidia-smi and the driver")
        return
    lines = answer.stdout.splitlines()
    if answer.returncode != 0 or not lines:
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit status {answer.returncode}"]
        yield Finding("devices", last[0], failed)
    for line in lines:
        number, text = line.split(" ", 1)
        yield Finding(f"device {number}", text)


# The check that starts processes comes last, so that it changes nothing for the others.
_CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "fastiter": _fastiter,
    "CPUs": _processors,
    "Memory": _memory,
    "Shared memory": _shared_memory,
    "Limits": _limits,
    "Start of workers": _start_methods,
    "Packages": _packages,
    "Environment": _environment,
    "GPUs": _gpus,
    "Self-test": selftest.findings,
}

"""``python -m fastiter doctor``: what this machine offers, and what would help."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import logging
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import fastiter
from fastiter._cli.doctor import machine, selftest
from fastiter._cli.doctor.findings import Finding, as_bytes, show, without_secrets
from fastiter._clib import system as _system
from fastiter._collate import buffers
from fastiter._order import permutation
from fastiter._ring import arena as _arena
from fastiter._util import cpus
from fastiter._workers import start_method
from fastiter.dataset.download import get_dataset_root
from fastiter.iterators.order_sharded import ShardedOrderSampler

EPILOG = """\
Each line is a fact, judged: "ok", "note" (worth knowing), or "problem" (something does not work).
The exit status is 1 if there is a problem, else 0.
"""

_MIB = 1 << 20
_DEVICE_SECONDS = 60  # for CuPy and the driver to answer

# Distributions, in the order of preference, what they are good for, and whether fastiter asks pip
# for them.
_PACKAGES = (
    (("tqdm",), "for progress bars", True),
    (("filelock",), "for downloads and cached files", True),
    (("urllib3",), "for downloads", True),
    (("pillow",), "for ImageDataset and its like", False),
    (
        (
            "opencv-python-headless",
            "opencv-python",
            "opencv-contrib-python-headless",
            "opencv-contrib-python",
        ),
        "for image datasets of your own; its threads are limited in workers",
        False,
    ),
    (("cloudpickle",), "to send lambdas and local classes to spawned workers", False),
    (("matplotlib",), "for the charts of `profile` and `demo`", False),
    (("torch",), "if you use it; its generators are seeded in workers", False),
    (("threadpoolctl",), "not needed: fastiter itself limits thread pools in workers", False),
)
_VARIABLES = (
    "FASTITER_BUFFER_POOL",
    "CHAINER_DATASET_ROOT",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "PYTHONPATH",
)
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `run` takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the findings; return the exit status."""
    # What starts processes comes last, so that it changes nothing that the others look at.
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _fastiter,
        _processors,
        _memory,
        _shared_memory,
        _limits,
        _start_methods,
        _packages,
        _environment,
        _gpus,
        selftest.findings,
    )
    found = itertools.chain.from_iterable(check() for check in checks)
    kept: list[Finding] = []
    if options.json:
        kept += found
        print(json.dumps({"findings": [finding._asdict() for finding in kept]}, indent=2))
    else:
        show(kept.append(finding) or finding for finding in found)  # type: ignore[func-returns-value]
    problems = sum(finding.diagnosis == "problem" for finding in kept)
    notes = sum(finding.diagnosis == "note" for finding in kept)
    if not options.json:
        print(f"\nproblems: {problems}, notes: {notes}")
    return 1 if problems else 0


def _fastiter() -> Iterator[Finding]:
    section = "fastiter"
    yield Finding(section, "version", f"{fastiter.__version__} in {Path(fastiter.__file__).parent}")
    gil = "free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else "with the GIL"
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
    if gil == "free-threaded" and enabled:
        gil += ", but the GIL is switched on"
    python = f"{platform.python_implementation()} {platform.python_version()} ({gil})"
    cython = [name.removeprefix("_cython_") for name in sys.modules if name[:8] == "_cython_"]
    built = f"; modules made by Cython {cython[0].replace('_', '.')}" if cython else ""
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    yield Finding(section, "system", system)
    yield Finding(section, "python", f"{python}, NumPy {np.__version__}{built}")
    names = ("baseline", "AVX2", "AVX-512")
    levels = [names[level] for level in permutation.isa_levels()]
    yield Finding(
        section,
        "instructions",
        f"{levels[-1]} is used by the kernels that gain by it, out of {', '.join(levels)}",
    )


def _processors() -> Iterator[Finding]:
    section = "CPUs"
    present, usable = os.cpu_count() or 1, cpus.allowed_cpus()
    workers = cpus.whole_cpus()
    yield Finding(
        section,
        "usable",
        f"{usable} of {present}: n_processes=None starts {workers} workers",
        "ok" if usable == present else "note",
        "" if usable == present else "an affinity mask (taskset, cpuset, SLURM) hides the others",
    )
    quota = cpus.cgroup_quota()
    if math.isinf(quota):
        yield Finding(section, "quota", "no control group limits CPU time")
    elif quota >= usable:
        yield Finding(section, "quota", f"{quota:g} CPUs of the control group, enough for all")
    else:
        yield Finding(
            section,
            "quota",
            f"the control group grants {quota:g} CPUs' worth of time, {usable} can be used",
            "note",
            f"more workers than {workers} only get throttled; raise the container's CPU limit",
        )
    load = machine.load()
    if load is not None:
        busy = load > 0.5 * usable
        yield Finding(
            section,
            "load",
            f"{load:.1f} processes ran or wanted to in the last minute",
            "note" if busy else "ok",
            "other programs compete for these CPUs: what is measured now will vary" if busy else "",
        )


def _memory() -> Iterator[Finding]:
    section = "Memory"
    sizes = machine.memory()
    if not sizes:
        yield Finding(section, "machine", "this system does not tell", "note")
        return
    total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    fact = f"{as_bytes(available)} available of {as_bytes(total)}"
    yield Finding(section, "machine", f"{fact}, swap {as_bytes(sizes.get('SwapTotal', 0))}")
    limit = machine.memory_limit()
    if limit is None:
        yield Finding(section, "control group", "no limit below the machine's")
    else:
        fact = f"limited to {as_bytes(limit.nbytes)} by {limit.group}"
        advice = "batches, the dataset's image and all workers count towards it"
        yield Finding(section, "control group", fact, "note", advice)
    ours = _system.memory_available()
    low = ours < 256 * _MIB
    yield Finding(
        section,
        "for batches",
        f"{as_bytes(ours)} may be taken; a reserve is left to the machine",
        "note" if low else "ok",
        "too little for many pipelines: reduce batch_size and n_prefetch, free memory, or raise "
        "the limit"
        if low
        else "",
    )
    huge = machine.huge_pages()
    if huge is not None:
        pages = "huge pages" if huge in ("always", "within_size", "force") else "small pages"
        fact = f"shmem_enabled={huge}: slots are made of {pages}, and are as fast with either"
        yield Finding(section, "huge pages", fact)


def _shared_memory() -> Iterator[Finding]:
    section = "Shared memory"
    try:
        arena = _arena.Arena.create(4, 1, 1, 1)
    except (OSError, MemoryError) as error:
        advice = "see the limits below; MultithreadIterator needs none"
        yield Finding(section, "arena", f"cannot be made: {error}", "problem", advice)
        return
    memory, event = (_what_is(fd) for fd in (arena.fd, arena.event_fd))
    slot = arena.geometry[4]
    arena.close_descriptors()
    is_named = not memory.startswith("memfd:")
    yield Finding(
        section,
        "memory",
        f"{'a file of /dev/shm without a name' if is_named else 'anonymous (memfd_create)'}; room "
        f"for {as_bytes(slot)} in each slot",
        "note" if is_named else "ok",
        "this kernel or sandbox refuses memfd_create; allow it, so that the size of /dev/shm does "
        "not count"
        if is_named
        else "",
    )
    yield _dev_shm(section, is_named)
    by_pipe = "eventfd" not in event
    yield Finding(
        section,
        "wake-ups",
        "pipes, for want of eventfd" if by_pipe else "eventfd and futex",
        "note" if by_pipe else "ok",
        "it works, somewhat slower; a kernel or sandbox that allows eventfd helps"
        if by_pipe
        else "",
    )
    has_pidfd = _has_pidfd()
    yield Finding(
        section,
        "deaths of workers",
        "noticed by pidfd" if has_pidfd else "noticed by pipes and waitpid, for want of pidfd_open",
        "ok" if has_pidfd else "note",
        "" if has_pidfd else "it works; a kernel or sandbox that allows pidfd_open helps",
    )


def _what_is(fd: int) -> str:
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


def _dev_shm(section: str, is_used: bool) -> Finding:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        fact = "is not there"
        return Finding(section, "/dev/shm", fact, "problem" if is_used else "ok")
    free = status.f_bavail * status.f_frsize
    fact = f"{as_bytes(free)} free of {as_bytes(status.f_blocks * status.f_frsize)}"
    if not is_used:
        return Finding(section, "/dev/shm", f"{fact}; irrelevant, nothing of fastiter is there")
    if free >= 1024 * _MIB:
        return Finding(section, "/dev/shm", f"{fact}; batches are kept there")
    advice = "enlarge it (docker run --shm-size=2g), or allow memfd_create"
    return Finding(section, "/dev/shm", f"{fact}; batches are kept there", "note", advice)


def _limits() -> Iterator[Finding]:
    section = "Limits"
    try:
        import resource
    except ImportError:
        yield Finding(section, "all", "this system does not tell", "note")
        return
    workers = cpus.whole_cpus()
    need = 16 + 4 * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    tight = 0 <= soft < need + 48
    yield Finding(
        section,
        "open files",
        f"RLIMIT_NOFILE {_limit(soft)}; an iterator of {workers} workers takes about {need}, "
        "batches none",
        "note" if tight else "ok",
        f"raise it: ulimit -n {_limit(hard)}" if tight else "",
    )
    for name, what, command in (
        ("RLIMIT_AS", "address space", "ulimit -v unlimited"),
        ("RLIMIT_FSIZE", "file size", "ulimit -f unlimited"),
    ):
        soft, _ = resource.getrlimit(getattr(resource, name))
        finite = soft != resource.RLIM_INFINITY
        yield Finding(
            section,
            what,
            f"{name} {_limit(soft, as_bytes)}",
            "note" if finite else "ok",
            f"it counts for shared memory too, and bounds a batch's size: {command}"
            if finite
            else "",
        )
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    fact = f"RLIMIT_MEMLOCK {_limit(soft, as_bytes)}; fastiter locks no memory itself"
    yield Finding(section, "locked memory", fact)
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    few = 0 <= soft < 64 + workers and os.geteuid() != 0
    yield Finding(
        section,
        "processes",
        f"RLIMIT_NPROC {_limit(soft)}",
        "note" if few else "ok",
        f"it counts all threads of this user; raise it (ulimit -u) for {workers} workers"
        if few
        else "",
    )


def _limit(value: int, text: Callable[[float], str] = str) -> str:
    return "unlimited" if value < 0 else text(value)


def _start_methods() -> Iterator[Finding]:
    section = "Start of workers"
    methods = multiprocessing.get_all_start_methods()
    yield Finding(section, "methods", f"{', '.join(methods)}; the default here is {methods[0]}")
    level = logging.getLogger("fastiter").level
    logging.getLogger("fastiter").setLevel(logging.ERROR)
    chosen = start_method.choose(None).context.get_start_method()
    logging.getLogger("fastiter").setLevel(level)
    reason = start_method.why_not_fork()
    if chosen != "fork":
        why = "the default" if chosen == methods[0] else f"since {reason}"
    else:
        why = f"although {reason}" if reason else "nothing in this process makes a fork unsafe"
    yield Finding(
        section,
        "chosen",
        f"{chosen}: {why}",
        help="in your program it depends on the threads that live when workers start; the logger "
        "'fastiter' tells at level INFO, and context= decides",
    )


def _packages() -> Iterator[Finding]:
    section = "Packages"
    for names, purpose, is_required in _PACKAGES:
        versions = {name: version for name in names if (version := _version(name))}
        if versions:
            name, version = next(iter(versions.items()))
            yield Finding(section, name, version)
        else:
            yield Finding(
                section,
                names[0],
                "not installed",
                "note" if is_required else "ok",
                purpose if "not needed" in purpose else f"pip install {names[0]}, {purpose}",
            )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _environment() -> Iterator[Finding]:
    section = "Environment"
    for name in _VARIABLES:
        value = os.environ.get(name)
        if value is None:
            continue
        if name == "FASTITER_BUFFER_POOL" and (wrong := buffers.complaint()):
            yield Finding(section, name, repr(value), "problem", wrong)
        else:
            yield Finding(section, name, repr(without_secrets(value, name.endswith("_proxy"))))
    root = get_dataset_root()
    writable = machine.is_open_to_writing(root)
    yield Finding(
        section,
        "downloads",
        f"are kept below {without_secrets(root)}"
        + ("" if writable else ", where nothing can be written"),
        "ok" if writable else "note",
        "" if writable else "set CHAINER_DATASET_ROOT to a directory of yours",
    )
    if any(name in os.environ for name in _RANKS):
        try:
            sampler = ShardedOrderSampler(fastiter.ShuffleOrderSampler(0))
        except ValueError as error:
            yield Finding(section, "rank", str(error), "note")
        else:
            yield Finding(section, "rank", f"{sampler.rank} of {sampler.size}")


def _gpus() -> Iterator[Finding]:
    section = "GPUs"
    found = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    installed = sorted(
        f"{distribution.metadata['Name']} {distribution.version}"
        for distribution in importlib.metadata.distributions()
        if (distribution.metadata["Name"] or "").startswith("cupy")
    )
    if not installed:
        yield Finding(
            section,
            "CuPy",
            f"not installed; {f'devices: {chr(44).join(found)}' if found else 'no GPU is seen'}",
            "note" if found else "ok",
            "pip install 'fastiter[cuda12]' (or 'fastiter[cuda13]') for device=0" if found else "",
        )
        return
    yield Finding(section, "CuPy", ", ".join(installed))
    # In a process of its own: CUDA stays out of this one, and a broken driver cannot end it.
    command = [sys.executable, "-m", "fastiter._cli.doctor.devices"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_DEVICE_SECONDS)
    except subprocess.TimeoutExpired:
        fact, advice = f"no answer in {_DEVICE_SECONDS} s", "look at nvidia-smi and the driver"
        yield Finding(section, "devices", fact, "problem" if found else "note", advice)
        return
    lines = answer.stdout.splitlines()
    if answer.returncode != 0 or not lines:
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit status {answer.returncode}"]
        yield Finding(section, "devices", last[0], "problem" if found else "note")
    for line in lines:
        number, text = line.split(" ", 1)
        yield Finding(section, f"device {number}", text)

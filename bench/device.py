"""Batches to a GPU: fastiter beside torch's DataLoader, and CuPy's own copies. Needs a GPU.

``python -m bench.device`` takes some eight minutes on 16 cores, prints a table, and writes what it
has measured with ``--out FILE``. It installs nothing; it needs CuPy, and for the peers PyTorch
built for CUDA. Without a GPU it says so and ends with status 2.

The images of W1, 256 in a batch (38.5 MB). Each candidate runs in a process of its own, and is
measured twice: its loop does nothing but take batches, and its loop gives the GPU a kernel of
``--kernel`` milliseconds for each of them. The host is never more than two kernels ahead, as where
a loss is looked at. What is told:

next
    milliseconds that taking a batch keeps the consumer's thread, the call of ``next()`` and
    whatever has to be called to get the batch to the GPU;
alone, busy
    milliseconds per batch of the whole loop, without and with the kernel; the kernel itself is
    shown, and "busy" should be no more than the longer one of "alone" and kernel;
CPU
    seconds of all processes per 1,000 batches, from the first batch to the last.

What a copy of one such batch reaches is measured first, out of pinned memory and out of shared
memory that was registered, as slots are. At the end stand the ratios that matter: beside torch's
best, beside the same ring without a GPU, and how far the busy loop is from its longer part.
"""

from __future__ import annotations

import argparse
import importlib
import json
import mmap
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.workloads import Images

BATCH = 256
IMAGE_BYTES = 224 * 224 * 3
WARM_UP = 16  # batches; slots are registered and pinned buffers made in them
AHEAD = 2  # kernels that the host may be ahead of the GPU
DEPTH = 4  # batches that every loader fetches ahead
LOOP_SECONDS = 10.0  # of one loop at most; a slow loader gives fewer batches to average over


def fastiter_loader(n_workers: int, **arguments: Any) -> Any:
    from fastiter import MultiprocessIterator, concat_examples

    return MultiprocessIterator(
        Images(),
        BATCH,
        shuffle=True,
        n_processes=n_workers,
        n_prefetch=DEPTH,
        converter=concat_examples,
        **arguments,
    )


def _straight(n_workers: int) -> Iterator[Any]:
    with closing(fastiter_loader(n_workers, device=0)) as loader:
        yield from loader


def _staged(n_workers: int) -> Iterator[Any]:
    os.environ["FASTITER_REGISTER"] = "0"
    yield from _straight(n_workers)


def _host(n_workers: int) -> Iterator[Any]:
    with closing(fastiter_loader(n_workers)) as loader:
        yield from loader


def _pageable(n_workers: int) -> Iterator[Any]:
    import cupy

    for arrays in _host(n_workers):
        made = [cupy.empty(array.shape, array.dtype) for array in arrays]
        for array, there in zip(arrays, made, strict=True):
            there.set(array)
        yield made


def _pinned(n_workers: int) -> Iterator[Any]:
    """As CuPy's users do it: a pinned buffer, a copy by hand, one to the device."""
    import cupy

    memory: list[Any] = []
    for arrays in _host(n_workers):
        if not memory:
            memory = [cupy.cuda.alloc_pinned_memory(array.nbytes) for array in arrays]
        made = []
        cupy.cuda.get_current_stream().synchronize()  # the buffers are read until then
        for pinned, array in zip(memory, arrays, strict=True):
            here = np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)
            here[...] = array
            there = cupy.empty(array.shape, array.dtype)
            there.set(here, stream=cupy.cuda.get_current_stream())
            made.append(there)
        yield made


def _torch(
    n_workers: int, pin_memory: bool = False, ours: bool = False, device: str | None = None
) -> Iterator[Any]:
    module = importlib.import_module("fastiter.torch" if ours else "torch.utils.data")
    loader = module.DataLoader(
        Images(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=n_workers,
        prefetch_factor=max(2, DEPTH // n_workers),
        pin_memory=pin_memory,
        persistent_workers=True,
        **({} if device is None else {"device": device}),
    )
    while True:
        for tensors in loader:
            yield [tensor.to("cuda", non_blocking=True) for tensor in tensors]


CANDIDATES: dict[str, tuple[str, Callable[[int], Iterator[Any]]]] = {
    "fastiter": ("fastiter, device=0", _straight),
    "staged": ("fastiter, device=0, slots not registered", _staged),
    "host": ("fastiter, batches stay on the host", _host),
    "pageable": ("fastiter, CuPy's copy from pageable memory", _pageable),
    "pinned": ("fastiter, a pinned buffer by hand", _pinned),
    "torch": ("torch DataLoader, .to(non_blocking)", _torch),
    "torch-pin": ("torch DataLoader, pin_memory, .to(non_blocking)", lambda n: _torch(n, True)),
    "torch-ours": (
        "fastiter.torch.DataLoader, pin_memory, .to(non_blocking)",
        lambda n: _torch(n, True, ours=True),
    ),
    "torch-device": (
        "fastiter.torch.DataLoader, device='cuda'",
        lambda n: _torch(n, ours=True, device="cuda"),
    ),
}

SPIN = """extern "C" __global__ void spin(long long n) {
    long long start = clock64();
    while (clock64() - start < n) {}
}"""


class Gpu:
    """Requests to the GPU besides copies; by torch for torch's candidates, else by CuPy."""

    def __init__(self, is_torch: bool) -> None:
        self.is_torch = is_torch
        if is_torch:
            import torch

            self._torch = torch
        else:
            import cupy

            self._cupy = cupy
            self._kernel = cupy.RawKernel(SPIN, "spin")
        self._cycles = 0
        self.milliseconds = 0.0

    def calibrate(self, milliseconds: float) -> None:
        """Find out how long the kernel has to spin."""
        self._cycles = 10_000_000
        for _ in range(3):
            self.finish()
            begin = time.perf_counter()
            for _ in range(10):
                self.spin()
            self.finish()
            self.milliseconds = (time.perf_counter() - begin) * 100
            self._cycles = int(self._cycles * milliseconds / self.milliseconds)

    def spin(self) -> Any:
        """Start the kernel; returns an event behind it."""
        if self.is_torch:
            self._torch.cuda._sleep(self._cycles)
            event = self._torch.cuda.Event()
            event.record()
            return event
        self._kernel((1,), (1,), (np.int64(self._cycles),))
        event = self._cupy.cuda.Event(block=True, disable_timing=True)
        event.record()
        return event

    def finish(self) -> None:
        if self.is_torch:
            self._torch.cuda.synchronize()
        else:
            self._cupy.cuda.Device().synchronize()


def measure(
    batches: Iterator[Any], gpu: Gpu | None, n_batches: int, busy: bool
) -> dict[str, float]:
    """Take this many batches, if time allows; milliseconds per batch of `next` and of the loop."""
    in_next, kernels, n_taken = 0.0, deque[Any](), 0
    begin = time.perf_counter()
    while n_taken < n_batches and time.perf_counter() < begin + LOOP_SECONDS:
        n_taken += 1
        before = time.perf_counter()
        batch = next(batches)
        in_next += time.perf_counter() - before
        if gpu is not None and busy:
            kernels.append(gpu.spin())
            if len(kernels) > AHEAD:
                kernels.popleft().synchronize()
    if gpu is not None:
        gpu.finish()
    elapsed = time.perf_counter() - begin
    del batch
    return {
        "next_ms": 1e3 * in_next / n_taken,
        "loop_ms": 1e3 * elapsed / n_taken,
        "batches": n_taken,
    }


def check(batches: Iterator[Any]) -> None:
    """Compare two batches with the dataset, byte by byte.

    Raises
    ------
    SystemExit
        If they differ.
    """
    dataset = Images()
    for _ in range(2):
        x, t = map(_on_host, next(batches))
        for image, index in zip(x, t, strict=True):
            if not np.array_equal(image, dataset[int(index)][0]):
                raise SystemExit(f"wrong content at index {index}")


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    if hasattr(array, "get"):
        array = array.get()
    elif hasattr(array, "cpu"):
        array = array.cpu()
    return np.asarray(array)


def cpu_seconds() -> float:
    """Of this process and its living children."""
    import psutil

    me = psutil.Process()
    return sum(sum(p.cpu_times()[:2]) for p in (me, *me.children(recursive=True)))


def run_one(name: str, n_workers: int, n_batches: int, kernel_ms: float) -> dict[str, Any]:
    """Measure one candidate, in this process."""
    gpu = None if name == "host" else Gpu(name.startswith("torch"))
    batches = CANDIDATES[name][1](n_workers)
    check(batches)
    for _ in range(WARM_UP):
        next(batches)
    found: dict[str, Any] = {"name": name, "workers": n_workers}
    before = cpu_seconds()
    found["alone"] = measure(batches, gpu, n_batches, busy=False)
    found["cpu_s"] = (cpu_seconds() - before) * 1000 / found["alone"]["batches"]
    if gpu is not None:
        gpu.calibrate(kernel_ms)
        found["kernel_ms"] = gpu.milliseconds
        found["busy"] = measure(batches, gpu, n_batches, busy=True)
    batches.close()
    return found


def ceiling(n_copies: int = 50, n_turns: int = 5) -> dict[str, float]:
    """GB/s of copies of one batch: out of pinned memory, one behind the other; out of registered
    shared memory likewise; and out of that one at a time. Medians, in turns."""
    import cupy

    nbytes = BATCH * IMAGE_BYTES
    pinned = cupy.cuda.alloc_pinned_memory(nbytes)
    shared = np.frombuffer(mmap.mmap(-1, nbytes + -nbytes % mmap.PAGESIZE), np.uint8)
    shared[...] = 1
    there = cupy.empty((nbytes,), np.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)

    def rate(memory: Any, repeats: int) -> float:
        here = np.frombuffer(memory, np.uint8, nbytes)
        begin = time.perf_counter()
        for _ in range(repeats):
            there.set(here, stream=stream)
        stream.synchronize()
        return nbytes * repeats / (time.perf_counter() - begin) / 1e9

    cupy.cuda.runtime.hostRegister(shared.ctypes.data, shared.nbytes, 1)
    try:
        rate(pinned, 4 * n_copies)  # an idle GPU takes a while to reach its clocks
        turns = [
            {
                "pinned_GBps": rate(pinned, n_copies),
                "registered_GBps": rate(shared, n_copies),
                "one_registered_GBps": float(np.median([rate(shared, 1) for _ in range(n_copies)])),
            }
            for _ in range(n_turns)
        ]
    finally:
        cupy.cuda.runtime.hostUnregister(shared.ctypes.data)
    return {name: float(np.median([turn[name] for turn in turns])) for name in turns[0]}


def summary(results: list[dict[str, Any]]) -> list[str]:
    """The ratios that goals are about, as lines of text, of what was measured."""
    limits = results[0]
    share = limits["one_registered_GBps"] / limits["pinned_GBps"]
    lines = [f"one batch out of registered memory: {share:.2f} of pinned copies (goal 0.95)"]
    measured = [found for found in results[1:] if "error" not in found]

    def best(*names: str) -> float | None:
        rates = [1 / found["alone"]["loop_ms"] for found in measured if found["name"] in names]
        return max(rates, default=None)

    ours, torch, host = best("fastiter"), best("torch", "torch-pin"), best("host")
    if ours is not None and torch is not None:
        lines.append(f"beside torch's best: {ours / torch:.1f}x (goal 10)")
    drop_in, torch_pin = best("torch-ours"), best("torch-pin")
    if drop_in is not None and torch_pin is not None:
        lines.append(f"drop-in beside torch, both with pin_memory: {drop_in / torch_pin:.1f}x")
    on_device = best("torch-device")
    if on_device is not None and drop_in is not None:
        lines.append(
            f"drop-in with device='cuda' beside itself with pin_memory: {on_device / drop_in:.2f}x "
            "(goal 1.2)"
        )
    if ours is not None and host is not None:
        lines.append(f"beside the same ring on the host: {ours / host:.2f} (goal 0.85)")
    for found in measured:
        if found["name"] == "fastiter":
            longer = max(found["alone"]["loop_ms"], found["kernel_ms"])
            lines.append(
                f"busy beside the longer of copies and kernel, {found['workers']} workers: "
                f"{found['busy']['loop_ms'] / longer:.2f} (goal 1)"
            )
    return lines


def missing() -> str | None:
    """The reason why the benchmark cannot run here, or None."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed ({error})"
    try:
        if cupy.cuda.runtime.getDeviceCount() > 0:
            return None
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no GPU ({error})"
    return "CuPy finds no GPU"


def _lacks_torch() -> str | None:
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return None if torch.cuda.is_available() else "this PyTorch has no CUDA"


def _in_process(name: str, n_workers: int, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.device", "--one", name, "--workers", str(n_workers)]
    command += ["--batches", str(options.batches), "--kernel", str(options.kernel)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return {"name": name, "workers": n_workers, "error": "no result after 120 s"}
    if done.returncode:
        text = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"name": name, "workers": n_workers, "error": text}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _line(found: dict[str, Any]) -> str:
    title = CANDIDATES[found["name"]][0]
    if "error" in found:
        return f"| {title} | {found['workers']} | {found['error']} |"
    alone, busy = found["alone"], found.get("busy")
    rate = BATCH * 1e3 / alone["loop_ms"]
    cells = [
        title,
        str(found["workers"]),
        f"{rate:,.0f}",
        f"{rate * IMAGE_BYTES / 1e9:.1f}",
        f"{alone['next_ms']:.2f}",
        f"{alone['loop_ms']:.2f}",
        f"{busy['loop_ms']:.2f} ({found['kernel_ms']:.2f})" if busy else "",
        f"{found['cpu_s']:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.device", description=__doc__)
    parser.add_argument("--workers", default="2,4,8,12,14", help="comma-separated")
    parser.add_argument("--names", default=",".join(CANDIDATES), help="comma-separated")
    parser.add_argument("--batches", type=int, default=300, help="of each of the two loops")
    parser.add_argument("--kernel", type=float, default=5.0, help="milliseconds")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin nothing after that")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    reason = missing()
    if reason is not None:
        print(f"bench.device needs a GPU and CuPy for it: {reason}", file=sys.stderr)
        return 2
    workers = [int(number) for number in options.workers.split(",")]
    if options.one:
        print(json.dumps(run_one(options.one, workers[0], options.batches, options.kernel)))
        return 0
    limit = time.monotonic() + options.seconds
    results: list[dict[str, Any]] = [{"name": "ceiling", **ceiling()}]
    for name, found in list(results[0].items())[1:]:
        print(f"{name.removesuffix('_GBps').replace('_', ' ')}: {found:.1f} GB/s")
    print()
    print("| loader | workers | images/s | GB/s | next ms | alone ms | busy ms (kernel) | CPU s |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    without_torch = _lacks_torch()
    for n_workers in workers:
        for name in options.names.split(","):
            if time.monotonic() > limit:
                print(f"\nstopped after {options.seconds:.0f} s", file=sys.stderr)
                break
            if name.startswith("torch") and without_torch:
                results.append({"name": name, "workers": n_workers, "error": without_torch})
            else:
                results.append(_in_process(name, n_workers, options))
            print(_line(results[-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
    print("\n" + "\n".join(summary(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

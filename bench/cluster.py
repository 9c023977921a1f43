"""Workers on a Ray cluster of this machine, beside Ray Data: ``python -m bench.cluster``.

Three nodes of one CPU each, on the loopback interface. Rows take 2 ms, asleep or computing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # so that Ray stays on 127.0.0.1
BATCH, ROW_SECONDS, N = 64, 0.002, 1 << 20
NODES = 3


class Rows:
    """Images of 12 KB that take 2 ms each."""

    def __init__(self, computes: bool, seconds: float = ROW_SECONDS) -> None:
        self.computes, self.seconds = computes, seconds

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        if self.computes:
            end = time.thread_time() + self.seconds
            while time.thread_time() < end:
                pass
        elif self.seconds:
            time.sleep(self.seconds)
        return np.full((3, 32, 32), i, np.float32), i


def rate(dataset: Rows, address: str, workers: int, batches: int) -> tuple[float, Any]:
    """Examples a second after the first batches, and the statistics."""
    from fastiter import concat_examples
    from fastiter.ray import RayIterator

    with RayIterator(
        dataset,
        BATCH,
        shuffle=False,
        n_workers=workers,
        address=address,
        converter=concat_examples,
    ) as iterator:
        while sum(node.workers for node in iterator.stats().nodes) < workers:
            next(iterator)
        for _ in range(10):
            next(iterator)
        before, since = iterator.stats(), time.perf_counter()
        for _ in range(batches):
            next(iterator)
        seconds = time.perf_counter() - since
        return batches * BATCH / seconds, iterator.stats() - before


def next_microseconds(make: Any) -> float:
    """Median CPU time of the calling thread in next(), for a batch that is there."""
    found = []
    with make() as iterator:
        for _ in range(20):
            next(iterator)
        while len(found) < 200:
            while iterator.stats().ready < 2:
                time.sleep(0.001)
            since = time.thread_time()
            next(iterator)
            found.append(time.thread_time() - since)
    return float(np.median(found)) * 1e6


def of_ray_data(batches: int, uneven: bool) -> tuple[float, bytes]:
    """Examples a second of `iter_batches`, and the order; `uneven` rows take 0 to 4 ms."""
    import ray.data

    def fetch(row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(2 * ROW_SECONDS * np.random.random() if uneven else ROW_SECONDS)
        return {"image": np.full((3, 32, 32), row["id"], np.float32), "id": row["id"]}

    seen: list[np.ndarray] = []
    rows = ray.data.range(BATCH * (batches + 10), override_num_blocks=24).map(fetch)
    for batch in rows.iter_batches(batch_size=BATCH):
        if len(seen) == 10:
            since = time.perf_counter()
        seen.append(batch["id"])
    seconds = time.perf_counter() - since
    return (len(seen) - 11) * BATCH / seconds, np.concatenate(seen).tobytes()


def compare_with_ray_data(address: str) -> None:
    import ray
    import ray.data

    ray.init(address=address, logging_level="ERROR", configure_logging=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    found = max(of_ray_data(180, False)[0] for _ in range(2))
    orders = {of_ray_data(40, True)[1] for _ in range(3)}
    ray.shutdown()
    print(
        f"Ray Data, 3 nodes, asleep: {found:.0f} examples/s; three runs with rows of 0 to 4 ms "
        f"gave {len(orders)} orders"
    )


def main() -> None:
    from fastiter import MultiprocessIterator, concat_examples
    from fastiter.ray import RayIterator

    program = Path(__file__).parents[1] / "tests" / "cluster" / "local_cluster.py"
    cluster = subprocess.Popen(
        [sys.executable, program, str(NODES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    address = cluster.stdout.readline().strip()
    try:
        for kind, computes in (("asleep", False), ("computing", True)):
            one = 0.0
            for workers in range(1, NODES + 1):
                found, stats = rate(Rows(computes), address, workers, 60 * workers)
                one = one or found
                came = sum(node.bytes for node in stats.nodes)
                helper = stats.workers[0]
                print(
                    f"rows of 2 ms, {kind}: {workers} nodes, {found:.0f} examples/s, "
                    f"{found / one / workers:.3f} of linear, "
                    f"{found / workers * ROW_SECONDS:.3f} of the workers' time; "
                    f"{came / max(stats.bytes_written, 1):.3f} bytes came for each written, "
                    f"in {helper.write_seconds / max(came, 1) * 1e9:.2f} ns",
                    flush=True,
                )
        arguments = {"shuffle": False, "converter": concat_examples, "n_prefetch": 4}
        quick = Rows(False, 0.0)
        for _ in range(3):
            local = next_microseconds(
                lambda: MultiprocessIterator(quick, BATCH, n_processes=2, **arguments)
            )
            remote = next_microseconds(
                lambda: RayIterator(quick, BATCH, n_workers=2, address=address, **arguments)
            )
            print(
                f"CPU time of next() for a batch that is there: {local:.1f} us with local workers, "
                f"{remote:.1f} us with remote ones",
                flush=True,
            )
        compare_with_ray_data(address)
    finally:
        cluster.stdin.close()
        cluster.wait()


if __name__ == "__main__":
    main()

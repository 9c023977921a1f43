"""SPDL's `examples/benchmark_ipc_dataloader.py`: the first batch of byte strings under spawn.

`python -m bench.thirdparty.spdl_ipc CHECKOUT --sizes 16 64 --workers 1 2`
"""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

from bench.thirdparty.checkout import arguments, copies, describe, run

FILE = "examples/benchmark_ipc_dataloader.py"
ROW = re.compile(r"^ *(\d+)M +\d+ +(\d+) +([\d.]+) +([\d.]+)$", re.M)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64], help="MiB")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    top = Path(__file__).resolve().parents[2]
    print(describe(options.checkout))
    seconds: dict[tuple[int, int, str], list[float]] = {}
    with copies(options.checkout, FILE) as trees:
        for _ in range(options.rounds):
            for loader, tree in trees.items():
                command = [sys.executable, FILE, "--runs", "1", "--sizes"]
                command += [*map(str, options.sizes), "--workers", *map(str, options.workers)]
                for mib, workers, _, first in ROW.findall(run(command, tree, [top])):
                    key = int(mib), int(workers), loader
                    seconds.setdefault(key, []).append(float(first))
    print(f"{'MiB':>5} {'workers':>7} {'torch s':>8} {'fastiter s':>10} {'gain':>6}")
    for mib in options.sizes:
        for workers in options.workers:
            old, new = (
                statistics.median(seconds[mib, workers, name]) for name in ("torch", "fastiter")
            )
            print(f"{mib:>5} {workers:>7} {old:>8.2f} {new:>10.2f} {old / new:>5.1f}x")


if __name__ == "__main__":
    main()

"""dataloader-rs's `bench/bench_inter_workers.py`: hashes of 1 MB, batches of lists, in workers.

`python -m bench.thirdparty.rust_threads CHECKOUT --workers 1 2`; needs Python 3.13, dataloader-rs
and torch. The harness compares dataloader-rs's threads with torch's persistent workers; here
fastiter's loader takes the place of torch's in turns. The dataset releases the GIL, so threads are
at their best.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bench.thirdparty.checkout import arguments, copies, describe, run, table

FILE = "bench/bench_inter_workers.py"
TABLE = re.compile(
    r"^# batch_size=(\d+) .*\n +num_workers +([\d ]+)\n +ours +(.+)\n +torch +(.+)$", re.M
)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="some of 0 1 2 4 8")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--repeats", type=int, default=5, help="epochs of 256 examples a round")
    options = parser.parse_args()
    top = Path(__file__).resolve().parents[2]
    print(describe(options.checkout, "dataloader-rs"))
    rates: dict[str, dict[str, list[float]]] = {}
    with copies(options.checkout, FILE) as trees:
        for _ in range(options.rounds):
            for loader, tree in trees.items():
                # From its own folder, beside which lie sources of a package that is not built.
                command = [sys.executable, Path(FILE).name, "--warmup", "1"]
                command += ["--repeats", str(options.repeats)]
                printed = run(command, (tree / FILE).parent, [top])
                for size, workers, own, other in TABLE.findall(printed):
                    for n, theirs, rate in zip(
                        workers.split(), own.split(), other.split(), strict=True
                    ):
                        if int(n) in options.workers and int(size) in options.batch_sizes:
                            row = f"{n} workers, batches of {size}"
                            names = ("torch", "dataloader-rs", "fastiter")
                            case = rates.setdefault(row, {name: [] for name in names})
                            case[loader].append(float(rate))
                            case["dataloader-rs"].append(float(theirs))
    table("examples/s", rates)


if __name__ == "__main__":
    main()

"""torchdata's `examples/nodes/imagenet_benchmark.py`: images of files, decoded, cropped, batched.

`python -m bench.thirdparty.torchdata_images CHECKOUT --workers 1 2`; needs torchdata, torchvision
and Pillow. The harness measures torch's loader (`--loader=classic`); here torchdata's
`StatefulDataLoader` and fastiter's loader take its place in turns. Its images are synthetic
photographs of 500 x 375, of which it crops the middle.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from bench.thirdparty import photographs
from bench.thirdparty.checkout import FASTITER, TORCH, arguments, copies, describe, run, table

FILE = "examples/nodes/imagenet_benchmark.py"
LOADERS = {
    "torch": TORCH,
    "stateful": "torchdata.stateful_dataloader.StatefulDataLoader",
    "fastiter": FASTITER,
}
RATE = re.compile(r"^([\d.]+) img/sec", re.M)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    steps = options.images // options.batch_size - 1
    if steps < 6:
        parser.error("--images takes at least 7 batches: the first 4 are not timed")
    top = Path(__file__).resolve().parents[2]
    print(describe(options.checkout, "torchdata", "torchvision", "pillow"))
    rates: dict[str, dict[str, list[float]]] = {}
    with (
        copies(options.checkout, FILE, LOADERS) as trees,
        tempfile.TemporaryDirectory() as folder,
    ):
        photographs.write(Path(folder), options.images, ["a", "b"])
        for _ in range(options.rounds):
            for workers in options.workers:
                case = rates.setdefault(f"{workers} workers", {name: [] for name in LOADERS})
                for loader, tree in trees.items():
                    # From the file itself: the checkout's own torchdata has not been built.
                    command = [sys.executable, str(tree / FILE), "--loader=classic", "-d", folder]
                    command += ["--num-workers", str(workers), "--max-steps", str(steps - 4)]
                    command += ["--batch-size", str(options.batch_size), "--warmup-steps", "4"]
                    printed = run(command, Path(folder), [top])
                    case[loader].append(float(RATE.findall(printed)[-1]))
    table("images/s", rates)


if __name__ == "__main__":
    main()

"""SPDL's `examples/multi_thread_preprocessing.py`: decode, resize, batch, normalise.

`python -m bench.thirdparty.spdl_threads CHECKOUT --workers 1 2`; needs spdl, the libraries of
FFmpeg that it loads, torchvision and SciPy. The harness compares torch's loader with SPDL's
pipeline of threads; here fastiter's loader takes the place of torch's in turns. Its data set is a
folder of synthetic photographs of 500 x 375 in ImageNet's layout. Its transfer to a GPU is left
out. CPU time, of all processes and with the start of the workers, says more than the rate where
other programs run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.thirdparty import photographs
from bench.thirdparty.checkout import arguments, copies, describe, run, table

FILE = "examples/multi_thread_preprocessing.py"
CASES = {
    "decode, resize": "batch_size=None",
    "and batch": "batch_size={batch_size}",
    "and normalise": "batch_size={batch_size}, normalize=True",
}
PROGRAM = """
import gc, resource, sys

sys.path.insert(0, {tree!r})


def cpu_seconds():
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


if __name__ == "__main__":
    import multi_thread_preprocessing as harness

    before = cpu_seconds()
    n, seconds = harness.exp_{side}(
        root_dir={folder!r}, split="val", num_workers={workers}, max_items={items}, {arguments}
    )
    gc.collect()  # ends the workers, if anything still holds the loader
    print(n / seconds, 1000 * (cpu_seconds() - before) / n)
"""


def write_imagenet(folder: Path, n: int) -> None:
    """Write what torchvision's ImageNet takes for its extracted validation images."""
    import torch

    classes = ["n00000001", "n00000002"]
    photographs.write(folder / "val", n, classes, "JPEG")
    torch.save(({name: (name,) for name in classes}, []), folder / "meta.bin")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    top = Path(__file__).resolve().parents[2]
    print(describe(options.checkout, "spdl", "torchvision", "pillow"))
    rates: dict[str, dict[str, list[float]]] = {}
    costs: dict[str, dict[str, list[float]]] = {}
    with copies(options.checkout, FILE) as trees, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_imagenet(folder, options.images)
        sides = {"torch": ("torch", trees["torch"]), "SPDL": ("spdl", trees["torch"])}
        sides["fastiter"] = ("torch", trees["fastiter"])
        for _ in range(options.rounds):
            for workers in options.workers:
                for case, settings in CASES.items():
                    row = f"{workers} workers: {case}"
                    found = rates.setdefault(row, {side: [] for side in sides})
                    cost = costs.setdefault(row, {side: [] for side in sides})
                    items = options.images
                    if case != "decode, resize":
                        items //= options.batch_size
                    for title, (side, tree) in sides.items():
                        program = folder / "spdl_program.py"
                        text = PROGRAM.format(
                            tree=str((tree / FILE).parent),
                            side=side,
                            folder=str(folder),
                            workers=workers,
                            items=items,
                            arguments=settings.format(batch_size=options.batch_size),
                        )
                        program.write_text(text)
                        printed = run([sys.executable, str(program)], folder, [top])
                        rate, milliseconds = map(float, printed.split()[-2:])
                        found[title].append(rate)
                        cost[title].append(milliseconds)
    table("images/s", rates)
    table("CPU ms an image", costs, lower=True)


if __name__ == "__main__":
    main()

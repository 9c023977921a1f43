"""imread_benchmark's protocol `loader-supply`: JPEG bytes in memory become lists of arrays.

`python -m bench.thirdparty.imread_supply CHECKOUT --workers 1 2`; needs Python 3.11, Pillow and
PyYAML. The photographs are synthetic, 500x375, of smoothed noise.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from bench.thirdparty.checkout import arguments, copies, describe, run

FILE = "imread_benchmark/execution/loader_measurement.py"
PROGRAM = """
import hashlib, io, statistics, sys
from types import SimpleNamespace

import numpy as np
from PIL import Image


def photographs(n):
    rng = np.random.default_rng(0)
    for i in range(n):
        size = 500 - 8 * (i % 5), 375 - 5 * (i % 7)
        image = Image.fromarray(rng.integers(0, 256, (94, 125, 3), dtype=np.uint8))
        noise = rng.normal(0, 14, (size[1], size[0], 3))
        smooth = np.asarray(image.resize(size, Image.BICUBIC), dtype=np.float64)
        pixels = np.clip(smooth + noise, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=90)
        yield file.getvalue()


def main():
    from imread_benchmark.datasets.package import ResidentItem
    from imread_benchmark.execution.loader_measurement import run_loader_supply_measurement

    items = [
        ResidentItem(str(i), f"{i}.jpg", hashlib.sha256(data).hexdigest(), len(data), data)
        for i, data in enumerate(photographs(int(sys.argv[1])))
    ]
    settings = SimpleNamespace(
        protocol_id="loader-supply", decoder_id="pillow", requested_threads=None,
        logical_repeat_factor=1, batch_size=int(sys.argv[3]), num_workers=int(sys.argv[2]),
        persistent_workers=True, prefetch_factor=2, multiprocessing_start_method="spawn",
        warmup_passes=1, timed_passes_per_run=3, minimum_timed_seconds=0.0,
    )
    result = run_loader_supply_measurement(items, settings)
    size = statistics.mean(item.compressed_bytes for item in items)
    rates = [sample.items_processed / sample.elapsed_seconds for sample in result.samples]
    print(statistics.median(rates), size)


if __name__ == "__main__":
    main()
"""


def register_decoders(tree: Path) -> None:
    """Give the copy the entry points that an installation would have."""
    import tomllib

    groups = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tree / "imread_benchmark-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: imread-benchmark\nVersion: 0\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32])
    options = parser.parse_args()
    top = Path(__file__).resolve().parents[2]
    print(describe(options.checkout))
    rates: dict[tuple[int, int, str], list[float]] = {}
    size = 0.0
    with copies(options.checkout, FILE) as trees:
        for tree in trees.values():
            register_decoders(tree)
        for _ in range(options.rounds):
            for workers in options.workers:
                for batch_size in options.batch_sizes:
                    for loader, tree in trees.items():
                        program = tree / "supply_program.py"
                        program.write_text(PROGRAM)
                        command = [sys.executable, str(program)]
                        command += [str(options.images), str(workers), str(batch_size)]
                        rate, size = map(float, run(command, tree, [tree, top]).split())
                        rates.setdefault((workers, batch_size, loader), []).append(rate)
    print(f"{options.images} JPEGs of {size / 1000:.0f} kB on average, decoded by Pillow, spawn")
    print(f"{'workers':>7} {'batch':>5} {'torch img/s':>11} {'fastiter img/s':>14} {'gain':>6}")
    for workers in options.workers:
        for batch_size in options.batch_sizes:
            old, new = (
                statistics.median(rates[workers, batch_size, name])
                for name in ("torch", "fastiter")
            )
            print(f"{workers:>7} {batch_size:>5} {old:>11.0f} {new:>14.0f} {new / old:>5.2f}x")


if __name__ == "__main__":
    main()

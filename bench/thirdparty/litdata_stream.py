"""LitData's `benchmarks/litdata/stream_imagenet.py`: its `StreamingDataset` over local chunks.

`python -m bench.thirdparty.litdata_stream CHECKOUT --workers 1 2`; needs litdata, lightning and
torchvision. LitData's own `StreamingDataLoader`, torch's loader and fastiter's take turns over the
same dataset: JPEG files in chunks, decoded, cropped, flipped, and float32.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
from pathlib import Path

from bench.thirdparty import photographs
from bench.thirdparty.checkout import FASTITER, TORCH, arguments, copies, describe, run, table

FILE = "benchmarks/litdata/stream_imagenet.py"
OWN = "litdata.StreamingDataLoader"
LOADERS = {"litdata": OWN, "torch": TORCH, "fastiter": FASTITER}
RATE = re.compile(r"Streamed (\d+) samples in [\d.]+s \(([\d.]+) images/sec\)")
#: Writes the chunks, as the checkout's own program does, which fetches names of classes first.
OPTIMIZE = """
import sys
from pathlib import Path

from litdata import optimize
from PIL import Image


def example(path):
    return Image.open(path), int(Path(path).parent.name)


if __name__ == "__main__":
    files = sorted(map(str, Path(sys.argv[1]).glob("*/*.jpg")))
    optimize(
        fn=example, inputs=files, output_dir=sys.argv[2], chunk_bytes="16MB", num_workers=1
    )
"""


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2, help="the first one starts the workers")
    options = parser.parse_args()
    top = Path(__file__).resolve().parents[2]
    print(describe(options.checkout, "litdata", "lightning", "torchvision"))
    rates: dict[str, dict[str, list[float]]] = {}
    with (
        copies(options.checkout, FILE, LOADERS, OWN) as trees,
        tempfile.TemporaryDirectory() as folder,
    ):
        raw, chunks, cache = (Path(folder, name) for name in ("raw", "chunks", "cache"))
        photographs.write(raw, options.images, ["0", "1"])
        program = Path(folder, "optimize_photographs.py")
        program.write_text(OPTIMIZE)
        run([sys.executable, str(program), str(raw), str(chunks)], Path(folder), [top])
        for _ in range(options.rounds):
            for workers in options.workers:
                case = rates.setdefault(f"{workers} workers", {name: [] for name in LOADERS})
                for loader, tree in trees.items():
                    command = [sys.executable, str(tree / FILE), "--input_dir", str(chunks)]
                    command += ["--cache_dir", str(cache), "--num_workers", str(workers)]
                    command += ["--batch_size", str(options.batch_size)]
                    command += ["--epochs", str(options.epochs), "--use_pil", "--no_clear_cache"]
                    epochs = RATE.findall(run(command, Path(folder), [top]))
                    if {int(n) for n, _ in epochs} != {options.images}:
                        raise SystemExit(f"{loader} gave other numbers of images: {epochs}")
                    case[loader].append(statistics.mean(float(rate) for _, rate in epochs))
    table("images/s, mean of the epochs", rates)


if __name__ == "__main__":
    main()

"""Programs that train with `fastiter.torch.DataLoader`: each of examples/torch_loader is killed in
the middle of an epoch, and resumed with exactly the batches that were missing.

A line of an example names epoch, batch, the examples' indices and the loss, which depends on what
is in each batch, on the weights and on the random numbers of the model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stepped import Stepped, read_to_end, read_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDER = EXAMPLES / "torch_loader"

# By example: the packages that it needs, and with how many workers it is resumed.
CLIENTS = {
    "accelerate_loop.py": (("torch", "accelerate"), (2, 3)),
    "hf_dataset.py": (("torch", "datasets"), (2, 3)),
    "hf_trainer.py": (("torch", "transformers", "accelerate"), (2, 1)),
    "image_folder.py": (("torch", "PIL"), (2, 1)),
    "lightning_trainer.py": (("torch", "lightning"), (2, 1)),
}
pytestmark = pytest.mark.slow  # importing the clients takes seconds, in each of the programs

KILLED_AFTER = "epoch 1 batch 7 "  # the last checkpoint is that after batch 4
RESUMED_AT = "epoch 1 batch 5 "
N_BATCHES = 15  # in each of the 3 epochs


def skip_without(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Stepped]]:
    """Starts programs, and ends those that are left."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: Any, **variables: str) -> Stepped:
            errors = tmp_path / f"{len(started)}.stderr"
            program = Stepped([*arguments], errors, **variables)
            started.append(program)
            stack.callback(program.close)
            return program

        started: list[Stepped] = []
        yield start


def from_line(lines: list[str], part: str) -> list[str]:
    """The lines from that with ``part`` in it."""
    (found,) = (number for number, line in enumerate(lines) if part in line)
    return lines[found:]


def write_images(folder: Path) -> None:
    """120 small images of 3 classes, as JPEG and PNG files."""
    from PIL import Image

    for i in range(120):
        path = folder / f"class{i % 3}" / f"{i}.{'png' if i % 2 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (20 + i % 7, 24 + i % 5, 3)
        pixels = np.random.default_rng(i).integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("name", CLIENTS)
def test_it_is_resumed_with_the_batches_that_were_missing(name, start, tmp_path):
    packages, numbers = CLIENTS[name]
    skip_without(*packages)
    arguments: list[Any] = [FOLDER / name]
    if name == "image_folder.py":
        write_images(tmp_path / "images")
        arguments.append(tmp_path / "images")

    def start_with(folder: str, num_workers: int) -> Stepped:
        (tmp_path / folder).mkdir(exist_ok=True)
        return start(*arguments, tmp_path / folder, "--num-workers", num_workers)

    uninterrupted, killed = start_with("whole", 2), start_with("killed", 2)
    (lines,) = read_until([killed], KILLED_AFTER)
    assert killed.n_ring_workers() == 2
    killed.kill()
    (whole,) = read_to_end([uninterrupted])
    assert len(whole) == 3 * N_BATCHES
    assert lines == whole[: len(lines)]
    for number in numbers[1:]:
        shutil.copytree(tmp_path / "killed", tmp_path / f"killed{number}")
    resumed = [start_with("killed", numbers[0])]
    resumed += [start_with(f"killed{number}", number) for number in numbers[1:]]
    first = read_until(resumed, RESUMED_AT)
    assert [program.n_ring_workers() for program in resumed] == list(numbers)
    rest = read_to_end(resumed)
    for before, after in zip(first, rest, strict=True):
        assert before + after == from_line(whole, RESUMED_AT)


def test_ranks(start, tmp_path):
    skip_without("torch")
    from torch.distributed import TCPStore

    def start_ranks(folder: str, num_workers: int) -> list[Stepped]:
        # What torchrun gives each rank, its store too.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        stores.append(store)
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
        common["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        common["TORCHELASTIC_RESTART_COUNT"] = "0"
        arguments = (FOLDER / "ddp.py", tmp_path / folder, "--num-workers", num_workers)
        return [start(*arguments, RANK=str(rank), **common) for rank in range(2)]

    stores: list[Any] = []
    killed = start_ranks("killed", 2)
    lines = read_until(killed, KILLED_AFTER)
    assert [program.n_ring_workers() for program in killed] == [2, 2]
    for program in killed:
        program.kill()
    uninterrupted, resumed = start_ranks("whole", 2), start_ranks("killed", 1)
    whole, rest = read_to_end(uninterrupted), read_to_end(resumed)
    assert [own[: len(part)] for own, part in zip(whole, lines, strict=True)] == lines
    assert rest == [from_line(own, RESUMED_AT) for own in whole]


def test_every_client_is_run_and_listed():
    names = {path.name for path in FOLDER.glob("*.py")}
    assert names == {*CLIENTS, "ddp.py"}
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"(torch_loader/{name})" not in listed] == []

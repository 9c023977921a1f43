"""Programs that train with `fastiter.torch.DataLoader`: each of examples/torch_loader is killed in
the middle of an epoch, and resumed with exactly the batches that were missing.

A line of an example names epoch, batch, the examples' indices and the loss, which depends on what
is in each batch, on the weights and on the random numbers of the model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run
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


LIGHTNING_OF_TWO = """
import sys
import torch, lightning
from fastiter.iterators import ShuffleOrderSampler
from fastiter.torch import DataLoader, Order

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def told(self, stage, indices):
        with open(f"{sys.argv[1]}/{self.trainer.global_rank}", "a") as file:
            file.writelines(f"{stage} {self.current_epoch} {i}\\n" for i in indices.tolist())

    def training_step(self, batch, number):
        self.told("train", batch)
        return self.layer(batch[:, None].float()).mean()

    def validation_step(self, batch, number):
        self.told("validate", batch)

    def predict_step(self, batch, number):
        self.told("predict", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        sampler = ShuffleOrderSampler(0)
        return DataLoader(range(40), batch_size=4, sampler=sampler, rank="auto", num_workers=1)

    def val_dataloader(self):
        order = Order(ShuffleOrderSampler(1), 40, batch_size=4, rank="auto")
        return DataLoader(range(40), batch_size=4, sampler=order)

    predict_dataloader = train_dataloader

trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp",
    logger=False, enable_checkpointing=False, num_sanity_val_steps=0)
model = Model()
trainer.fit(model)
trainer.predict(model)
"""


def test_lightning_deals_examples_to_ranks_once(tmp_path):
    """Each rank has its half of what a sampler with ranks gives, not a half of this half."""
    skip_without("torch", "lightning")
    program = tmp_path / "program.py"
    program.write_text(LIGHTNING_OF_TWO)
    run([sys.executable, program, tmp_path], check=True, timeout=300, capture_output=True)
    ranks = [(tmp_path / str(rank)).read_text().splitlines() for rank in range(2)]
    stages = [*(f"{stage} {epoch}" for stage in ("train", "validate") for epoch in range(2))]
    for stage in [*stages, "predict 2"]:
        parts = [[int(x.split()[2]) for x in lines if x.startswith(stage)] for lines in ranks]
        assert [len(part) for part in parts] == [20, 20]
        assert sorted(parts[0] + parts[1]) == list(range(40))


def test_every_client_is_run_and_listed():
    names = {path.name for path in FOLDER.glob("*.py")}
    assert names == {*CLIENTS, "ddp.py"}
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in names if f"(torch_loader/{name})" not in listed] == []

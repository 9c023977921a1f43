"""A loop with Accelerate, and the one line that has `prepare` keep fastiter's loader.

`Accelerator.prepare` wraps a loader of torch's class, which it builds from the attributes of the
one that it is given. After the first line of `main` that is fastiter's, too; sharding, devices and
the end of accumulated gradients stay Accelerate's. Start it, kill it, and start it again with
the same folder, with another number of workers if you like: it trains on exactly the batches that
were missing::

    python examples/torch_loader/accelerate_loop.py /tmp/accelerate
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import Dataset

from fastiter.torch import DataLoader, patch

N_EPOCHS, SAVE_EVERY = 3, 5


class Rings(Dataset):
    """Points in the plane, and whether they lie outside of the unit circle."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        point = torch.randn(2, generator=torch.Generator().manual_seed(i))
        return i, point, (point.norm() > 1).float()


class Progress:
    """The place of the loop, which Accelerate saves with the rest."""

    epoch = n_done = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "n_done": self.n_done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.n_done = state["epoch"], state["n_done"]


def main(folder: Path, num_workers: int) -> None:
    patch()  # what prepare() builds is fastiter's from now on

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(
        Rings(),
        batch_size=8,
        shuffle=True,
        num_workers=num_workers,
        generator=torch.Generator(),  # of its own: Accelerate restores the model's
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress, loader)
    saved = folder / "checkpoint"
    if saved.exists():
        accelerator.load_state(saved)

    for epoch in range(progress.epoch, N_EPOCHS):
        for batch, (indices, points, labels) in enumerate(loader, progress.n_done):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(points)[:, 0], labels)
            accelerator.backward(loss)
            optimizer.step()
            print(f"epoch {epoch} batch {batch} {indices.tolist()} {loss.item()!r}", flush=True)
            if (batch + 1) % SAVE_EVERY == 0 and not loader.end_of_dataloader:
                progress.epoch, progress.n_done = epoch, batch + 1
                accelerator.save_state(folder / "new")
                shutil.rmtree(saved, ignore_errors=True)
                (folder / "new").rename(saved)
        progress.n_done = 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the checkpoint is, or will be")
    parser.add_argument("--num-workers", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.num_workers)

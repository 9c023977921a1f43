"""Lightning's Trainer takes the loader as it is, and saves its state in every checkpoint.

Start it, kill it, and start it again with the same folder, with another number of workers if you
like: it trains on exactly the batches that were missing::

    python examples/torch_loader/lightning_trainer.py /tmp/lightning
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import Dataset

from fastiter.torch import DataLoader


class Rings(Dataset):
    """Points in the plane, and whether they lie outside of the unit circle."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        point = torch.randn(2, generator=torch.Generator().manual_seed(i))
        return i, point, (point.norm() > 1).float()


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        indices, points, labels = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.layers(points)[:, 0], labels)
        start = f"epoch {self.current_epoch} batch {number} {indices.tolist()}"
        print(f"{start} {loss.item()!r}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main(folder: Path, num_workers: int) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    lightning.seed_everything(0, verbose=False)
    loader = DataLoader(Rings(), batch_size=8, shuffle=True, num_workers=num_workers)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=3,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    checkpoints = sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    trainer.fit(Model(), loader, ckpt_path=checkpoints[-1] if checkpoints else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the checkpoints are, or will be")
    parser.add_argument("--num-workers", type=int, default=2)
    arguments = parser.parse_args()
    main(arguments.folder, arguments.num_workers)

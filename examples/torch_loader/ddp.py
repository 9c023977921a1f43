"""A plain loop with DistributedDataParallel: killed at any moment, and resumed where it was.

Each rank has a loader of its own, and rank 0 writes the loaders' states into the checkpoint with
the model. Start it, kill it, and start it again with the same folder, with another number of
workers if you like: it trains on exactly the batches that were missing::

    torchrun --nproc-per-node 2 examples/torch_loader/ddp.py /tmp/ddp
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from fastiter.torch import DataLoader

N_EPOCHS, SAVE_EVERY = 3, 5


class Rings(Dataset):
    """Points in the plane, and whether they lie outside of the unit circle."""

    def __len__(self) -> int:
        return 240

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        point = torch.randn(2, generator=torch.Generator().manual_seed(i))
        return i, point, (point.norm() > 1).float()


def main(folder: Path, num_workers: int) -> None:
    dist.init_process_group("gloo")
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = DistributedSampler(Rings())
    loader = DataLoader(Rings(), batch_size=8, sampler=sampler, num_workers=num_workers)
    first_epoch, n_done = 0, 0
    path = folder / "checkpoint.pt"
    if path.exists():
        checkpoint = torch.load(path)
        first_epoch, n_done = checkpoint["epoch"], checkpoint["n_done"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["ranks"][rank]["loader"])
        torch.set_rng_state(checkpoint["ranks"][rank]["rng"])

    for epoch in range(first_epoch, N_EPOCHS):
        sampler.set_epoch(epoch)
        for batch, (indices, points, labels) in enumerate(loader, n_done):
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(points)[:, 0], labels)
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} batch {batch} {indices.tolist()} {loss.item()!r}", flush=True)
            if (batch + 1) % SAVE_EVERY == 0:
                own = {"loader": loader.state_dict(), "rng": torch.get_rng_state()}
                ranks = [None] * n_ranks if rank == 0 else None
                dist.gather_object(own, ranks)
                if rank == 0:
                    checkpoint = {
                        "epoch": epoch,
                        "n_done": batch + 1,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "ranks": ranks,
                    }
                    torch.save(checkpoint, path.with_suffix(".new"))
                    path.with_suffix(".new").replace(path)  # never a half-written one
        n_done = 0
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the checkpoint is, or will be")
    parser.add_argument("--num-workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    main(arguments.folder, arguments.num_workers)

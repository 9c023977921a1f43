"""Images in a folder for each class, as ImageNet's, cropped at random in worker processes.

Start it, kill it, and start it again with the same folder, with another number of workers if you
like: it trains on exactly the images that were missing, and on the same part of each::

    python examples/torch_loader/image_folder.py IMAGES /tmp/checkpoints
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from fastiter.images import ImageFolder, RandomResizedCrop
from fastiter.torch import DataLoader

N_EPOCHS, SAVE_EVERY, SIDE = 3, 5, 32


def main(images: Path, folder: Path, num_workers: int) -> None:
    torch.manual_seed(0)
    dataset = ImageFolder(images, RandomResizedCrop(SIDE, flip=0.5))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32, len(dataset.classes)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=num_workers, return_indices=True
    )
    first_epoch, n_done = 0, 0
    path = folder / "checkpoint.pt"
    if path.exists():
        checkpoint = torch.load(path)
        first_epoch, n_done = checkpoint["epoch"], checkpoint["n_done"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        torch.set_rng_state(checkpoint["rng"])

    for epoch in range(first_epoch, N_EPOCHS):
        for batch, ((pixels, labels), indices) in enumerate(loader, n_done):
            optimizer.zero_grad()
            images_of_batch = pixels.float() / 255  # on a GPU: after the copy of a quarter of these
            loss = nn.functional.cross_entropy(model(images_of_batch), labels)
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} batch {batch} {indices.tolist()} {loss.item()!r}", flush=True)
            if (batch + 1) % SAVE_EVERY == 0:
                checkpoint = {
                    "epoch": epoch,
                    "n_done": batch + 1,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                    "rng": torch.get_rng_state(),
                }
                torch.save(checkpoint, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)  # never a half-written one
        n_done = 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, help="the folder of classes")
    parser.add_argument("folder", type=Path, help="where the checkpoint is, or will be")
    parser.add_argument("--num-workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    main(arguments.images, arguments.folder, arguments.num_workers)

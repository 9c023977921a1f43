"""A dataset of Hugging Face's datasets, in the formats "numpy" and "torch", and a plain loop.

Rows of varying length, as the texts trained on here, are padded by `concat_examples`, and come as
NumPy arrays; rows of one length, as those that the model is tested with, come as tensors from
torch's own `default_collate`. Start it, kill it, and start it again with the same folder, with
another number of workers if you like: it trains on exactly the batches that were missing::

    python examples/torch_loader/hf_dataset.py /tmp/checkpoints
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import datasets
import numpy as np
import torch
from torch import nn

from fastiter import concat_examples
from fastiter.torch import DataLoader

N_EPOCHS, SAVE_EVERY, N_TOKENS = 3, 5, 16


def texts(n: int, seed: int, length: int | None = None) -> datasets.Dataset:
    """Texts of 3 to 8 tokens, or of one length, and whether the first half of the vocabulary is in
    the majority."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, N_TOKENS, length or 3 + i % 6) for i in range(n)]
    labels = [int(np.median(row) < N_TOKENS / 2) for row in rows]
    return datasets.Dataset.from_dict({"index": range(n), "tokens": rows, "label": labels})


def main(folder: Path, num_workers: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(N_TOKENS, 8, padding_idx=0), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    pad = functools.partial(concat_examples, padding=0)
    training = texts(120, seed=0).with_format("numpy")
    loader = DataLoader(training, 8, shuffle=True, num_workers=num_workers, collate_fn=pad)
    test_loader = DataLoader(texts(64, seed=1, length=6).with_format("torch"), batch_size=32)
    first_epoch, n_done = 0, 0
    path = folder / "checkpoint.pt"
    if path.exists():
        checkpoint = torch.load(path)
        first_epoch, n_done = checkpoint["epoch"], checkpoint["n_done"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])

    for epoch in range(first_epoch, N_EPOCHS):
        for batch, rows in enumerate(loader, n_done):
            tokens, labels = torch.from_numpy(rows["tokens"]), torch.from_numpy(rows["label"])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens), labels)
            loss.backward()
            optimizer.step()
            indices = rows["index"].tolist()
            print(f"epoch {epoch} batch {batch} {indices} {loss.item()!r}", flush=True)
            if (batch + 1) % SAVE_EVERY == 0:
                checkpoint = {
                    "epoch": epoch,
                    "n_done": batch + 1,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                torch.save(checkpoint, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)  # never a half-written one
        n_done = 0
        with torch.no_grad():
            right = [model(rows["tokens"]).argmax(1) == rows["label"] for rows in test_loader]
        print(f"accuracy after epoch {epoch}: {torch.cat(right).float().mean():.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the checkpoint is, or will be")
    parser.add_argument("--num-workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    main(arguments.folder, arguments.num_workers)

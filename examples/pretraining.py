"""Pretraining of a small GPT on windows of a file of tokens, with validation and resume.

The loop is that of nanoGPT: a flat file of uint16, windows at random places, some micro batches for
each step of the optimizer, an estimate of the loss every so often. A batch comes from an iterator
where nanoGPT calls `get_batch`: windows are drawn without repetition, and a checkpoint holds the
iterator's state, so that a run which goes on from it trains on exactly the batches that were left.
In the end such a run has the weights of one without a break::

    python examples/pretraining.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fastiter import MultiprocessIterator, SerialIterator, VirtualShuffleOrderSampler
from fastiter.dataset import concat_examples
from fastiter.tokens import TokenDataset

N_TOKENS, CONTEXT, WIDTH = 64, 32, 32
BATCH_SIZE, MICRO_BATCHES, STEPS, EVALUATED = 8, 2, 60, 20


def write_tokens(path: Path, n: int, seed: int) -> None:
    """A text of runs that count: what follows a token is mostly the next number."""
    rng = np.random.default_rng(seed)
    jumps = np.where(rng.random(n) < 0.1, rng.integers(0, N_TOKENS, n), 1)
    (np.cumsum(jumps) % N_TOKENS).astype(np.uint16).tofile(path)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.attention(self.before(x)).chunk(3, dim=2)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended)
        return x + self.mlp(self.between(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_TOKENS, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, N_TOKENS)

    def forward(self, batch: dict[str, np.ndarray]) -> torch.Tensor:
        """The mean loss of a batch."""
        tokens, labels = (torch.from_numpy(batch[name]) for name in ("input_ids", "labels"))
        hidden = self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]])
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def windows_of(path: Path) -> tuple[TokenDataset, dict[str, Any]]:
    order = VirtualShuffleOrderSampler(0)
    options = {"batch_size": BATCH_SIZE, "order_sampler": order, "converter": concat_examples}
    return TokenDataset(path, CONTEXT, stride=1), options


@torch.no_grad()
def estimated_loss(model: Gpt, path: Path) -> float:
    """Over the same batches each time."""
    windows, options = windows_of(path)
    batches = SerialIterator(windows, **options)
    return sum(model(next(batches)).item() for _ in range(EVALUATED)) / EVALUATED


def train(folder: Path, steps: int, checkpoint: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train until a step, from the start or from a checkpoint; return a checkpoint."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = 0
    windows, options = windows_of(folder / "train.bin")
    with MultiprocessIterator(windows, n_processes=2, **options) as batches:
        if checkpoint is not None:
            first = checkpoint["step"]
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            batches.load_state_dict(checkpoint["batches"])
        for step in range(first, steps):
            if step % 30 == 0:
                loss = estimated_loss(model, folder / "val.bin")
                print(f"step {step}: validation loss {loss:.2f}, epoch {batches.epoch_detail:.4f}")
            for _ in range(MICRO_BATCHES):
                (model(next(batches)) / MICRO_BATCHES).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return {
            "step": steps,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "batches": batches.state_dict(),
        }


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokens(folder / "train.bin", 20_000, 0)
        write_tokens(folder / "val.bin", 5_000, 1)
        whole = train(folder, STEPS + 1)
        torch.save(train(folder, STEPS // 2), folder / "checkpoint.pt")
        resumed = train(folder, STEPS + 1, torch.load(folder / "checkpoint.pt"))
    same = all(torch.equal(whole["model"][key], resumed["model"][key]) for key in whole["model"])
    print(f"resumed from step {STEPS // 2}: {'the same' if same else 'other'} weights")


if __name__ == "__main__":
    main()

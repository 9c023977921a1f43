"""A PyTorch training loop over a torch Dataset, with fastiter in the place of the DataLoader.

The dataset stays as it is, tensors in its examples too. Workers write them into shared memory, and
`as_torch` gives the batches as tensors over that memory: nothing is copied in this process::

    python examples/torch_loop.py

With the number of a GPU as its argument the model lives there, and so do the batches: CuPy's copies
run on a stream of their own, while the step before computes, and `as_torch` takes CuPy's arrays by
`torch.from_dlpack`, without copying again. It needs CuPy, and a PyTorch for CUDA::

    python examples/torch_loop.py 0
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.utils.data import Dataset

from fastiter import MultiprocessIterator, ShuffleOrderSampler, concat_examples
from fastiter.interop import as_torch


class Stripes(Dataset):
    """Noisy images of horizontal (0) or vertical (1) stripes."""

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * self.n + i)
        image = torch.zeros(1, 16, 16)
        image[:, ::2] = 1
        label = i % 2
        if label == 1:
            image = image.transpose(1, 2)
        return image + torch.randn(1, 16, 16, generator=generator), label


def main(gpu: int | None) -> None:
    torch.manual_seed(0)
    place = "cpu" if gpu is None else f"cuda:{gpu}"
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(32, 2)
    ).to(place)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = MultiprocessIterator(
        Stripes(1200, seed=0),
        batch_size=60,
        repeat=False,
        order_sampler=ShuffleOrderSampler(0),
        n_processes=2,
        converter=concat_examples,
        device=gpu,
    )
    test = MultiprocessIterator(
        Stripes(300, seed=1),
        60,
        repeat=False,
        shuffle=False,
        n_processes=1,
        converter=concat_examples,
        device=gpu,
    )
    with as_torch(loader) as batches, as_torch(test) as test_batches:
        for epoch in range(1, 4):
            for images, labels in batches:  # float32 (60, 1, 16, 16), int64 (60,)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test_batches)
            print(f"epoch {epoch}  loss {loss.item():.3f}  test accuracy {right / 300:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)

"""Two ranks of a PyTorch loop, whose examples are made by workers on a Ray cluster.

Each rank has an iterator of its own over its share of one order, and each iterator a worker on the
cluster. The first argument is the address of a cluster (host and port); without one, Ray starts a
small cluster on this machine::

    python examples/cluster.py
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import ray
import torch
import torch.distributed
import torch.multiprocessing

from fastiter import ShuffleOrderSampler, concat_examples
from fastiter.ray import RayIterator

N_EXAMPLES, N_RANKS, N_EPOCHS, BATCH = 320, 2, 8, 16


class Line:
    """Points on y = 3 x + 1."""

    def __len__(self) -> int:
        return N_EXAMPLES

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.float32, int]:
        x = np.float32(i / N_EXAMPLES)
        return np.array([x, 1], np.float32), 3 * x + 1, i


def train(rank: int, address: str, folder: str) -> None:
    """The program of one rank."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=N_RANKS
    )
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    seen = []
    with RayIterator(
        Line(),
        BATCH,
        order_sampler=ShuffleOrderSampler(0),
        rank=rank,
        num_ranks=N_RANKS,
        n_workers=1,
        address=address,
        converter=concat_examples,
    ) as batches:
        for _ in range(N_EPOCHS * N_EXAMPLES // N_RANKS // BATCH):
            x, y, indices = next(batches)
            loss = (model(torch.from_numpy(x))[:, 0] - torch.from_numpy(y)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(indices.copy())
        nodes = [node.node for node in batches.stats().nodes]
    shares: list[list[int]] = [[] for _ in range(N_RANKS)]
    one = np.concatenate(seen)[: N_EXAMPLES // N_RANKS].tolist()
    torch.distributed.all_gather_object(shares, one)
    if rank == 0:
        assert sorted(i for share in shares for i in share) == list(range(N_EXAMPLES))
        print(f"{N_RANKS} ranks, {len(one)} examples each an epoch, every example once")
        weights = [round(w, 1) for w in model.module.weight[0].tolist()]
        print(f"weights {weights}, loss {loss.item():.3f}; rank 0 had workers on {len(nodes)} node")
    torch.distributed.destroy_process_group()


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else ""
    if not address:
        ray.init(num_cpus=N_RANKS, include_dashboard=False, object_store_memory=100 << 20)
        address = ray.get_runtime_context().gcs_address
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (address, folder), N_RANKS)


if __name__ == "__main__":
    main()

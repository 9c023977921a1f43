"""Several ranks on one machine: each trains on its share of one common order.

Every rank is a process, as under torchrun or MPI, with an iterator of its own.
`rank` and `num_ranks` give each its share of the same order: together they see every example once
an epoch, in equally many batches, and need nothing but their rank and the common seed for that::

    python examples/ranks.py
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np

from fastiter import MultiprocessIterator, ShuffleOrderSampler, concat_examples

N_EXAMPLES, N_RANKS, N_EPOCHS = 240, 3, 2


class Line:
    """Points on y = 3 x + 1."""

    def __len__(self) -> int:
        return N_EXAMPLES

    def __getitem__(self, i: int) -> tuple[float, float, int]:
        x = i / N_EXAMPLES
        return x, 3 * x + 1, i


def train(rank: int, link: Connection) -> None:
    """The program of one rank. `link` stands for the collective that averages all gradients."""
    weights, seen = np.zeros(2), []
    with MultiprocessIterator(
        Line(),
        8,
        order_sampler=ShuffleOrderSampler(0),
        rank=rank,
        num_ranks=N_RANKS,
        n_processes=1,
        converter=concat_examples,
    ) as iterator:
        while iterator.epoch < N_EPOCHS:
            x, y, indices = next(iterator)
            features = np.stack([x, np.ones_like(x)], axis=1)
            gradient = features.T @ (features @ weights - y) / len(x)
            link.send(gradient)
            weights -= 0.8 * link.recv()
            seen.append(indices)
    link.send((weights, np.concatenate(seen)))


def main() -> None:
    links, ranks = [], []
    for rank in range(N_RANKS):
        ours, theirs = multiprocessing.Pipe()
        ranks.append(multiprocessing.Process(target=train, args=(rank, theirs)))
        ranks[-1].start()
        theirs.close()
        links.append(ours)
    for _ in range(N_EPOCHS * N_EXAMPLES // N_RANKS // 8):
        mean = np.mean([link.recv() for link in links], axis=0)
        for link in links:
            link.send(mean)
    results = [link.recv() for link in links]
    for process in ranks:
        process.join()
    share = N_EXAMPLES // N_RANKS
    for epoch in range(N_EPOCHS):
        parts = [seen[epoch * share : (epoch + 1) * share] for _, seen in results]
        assert sorted(np.concatenate(parts)) == list(range(N_EXAMPLES))
        print(f"epoch {epoch}: {N_RANKS} ranks, {share} examples each, every example once")
    weights = [tuple(weights.round(2).tolist()) for weights, _ in results]
    assert len(set(weights)) == 1
    print(f"all ranks have the weights {weights[0]}")


if __name__ == "__main__":
    main()

"""One rank of a program of torch.distributed, or of MPI: every number of ranks resumes every other.

``python ranks_of.py gloo|mpi``, started for each rank by the launcher.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from fastiter import MultiprocessIterator, SerialIterator, ShuffleOrderSampler

N = 47
COUNTS = (1, 2, 3, 5)
STEPS = 3


def make(rank: int, count: int, batch_size: int, *, workers: bool) -> Any:
    options: dict[str, Any] = {"n_processes": 1, "context": "fork"} if workers else {}
    kind: Any = MultiprocessIterator if workers else SerialIterator
    sampler = ShuffleOrderSampler(3)
    return kind(range(N), batch_size, order_sampler=sampler, rank=rank, num_ranks=count, **options)


def check(own_rank: int, size: int, gather: Callable[[Any], list[Any]]) -> None:
    """``gather(value)`` gives those of all ranks."""

    def run(count: int, batch_size: int, state: Any, *, workers: bool) -> tuple[list[int], Any]:
        """The rows of some steps, of all ranks, and the state after them, which is theirs all."""
        steps, after = [], None
        if own_rank < count:
            with make(own_rank, count, batch_size, workers=workers) as iterator:
                if state is not None:
                    iterator.load_state_dict(state)
                steps = [next(iterator) for _ in range(STEPS)]
                after = iterator.state_dict()
        told = gather((steps, after))[:count]
        assert all(each[1] == told[0][1] for each in told)
        rows = [row for k in range(STEPS) for each in told for row in each[0][k]]
        return rows, told[0][1]

    auto = SerialIterator(range(N), 1, shuffle=False, rank="auto")
    assert (auto.rank, auto.num_ranks) == (own_rank, size) and size == max(COUNTS)
    draws = ShuffleOrderSampler(3)
    expected = [row for _ in range(5) for row in draws(range(N), 0).tolist()]
    for before, after in itertools.product(COUNTS, COUNTS):
        workers = before + after == 5
        rows, state = run(before, 4, None, workers=workers)
        rest, _ = run(after, 3, state, workers=workers)
        assert rows + rest == expected[: len(rows + rest)], (before, after)


def over_gloo() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))

    def gather(value: Any) -> list[Any]:
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, value)
        return told

    check(dist.get_rank(), dist.get_world_size(), gather)
    dist.destroy_process_group()


def over_mpi() -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    check(world.rank, world.size, world.allgather)


if __name__ == "__main__":
    {"gloo": over_gloo, "mpi": over_mpi}[sys.argv[1]]()

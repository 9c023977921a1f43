"""One rank of a program of torch.distributed: every number of ranks resumes every other."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from fastiter import MultiprocessIterator, SerialIterator, ShuffleOrderSampler

N = 47
COUNTS = (1, 2, 3, 5)
STEPS = 3


def make(count: int, batch_size: int, *, workers: bool) -> Any:
    options: dict[str, Any] = {"n_processes": 1, "context": "fork"} if workers else {}
    kind: Any = MultiprocessIterator if workers else SerialIterator
    sampler = ShuffleOrderSampler(3)
    rank = dist.get_rank()
    return kind(range(N), batch_size, order_sampler=sampler, rank=rank, num_ranks=count, **options)


def run(count: int, batch_size: int, state: Any, *, workers: bool) -> tuple[list[int], Any]:
    """The rows of some steps, of all ranks, and the state after them, which is theirs all."""
    steps, after = [], None
    if dist.get_rank() < count:
        with make(count, batch_size, workers=workers) as iterator:
            if state is not None:
                iterator.load_state_dict(state)
            steps = [next(iterator) for _ in range(STEPS)]
            after = iterator.state_dict()
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (steps, after))
    told = told[:count]
    assert all(each[1] == told[0][1] for each in told)
    rows = [row for k in range(STEPS) for each in told for row in each[0][k]]
    return rows, told[0][1]


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    auto = SerialIterator(range(N), 1, shuffle=False, rank="auto")
    assert (auto.rank, auto.num_ranks) == (dist.get_rank(), max(COUNTS))
    draws = ShuffleOrderSampler(3)
    expected = [row for _ in range(5) for row in draws(range(N), 0).tolist()]
    for before, after in itertools.product(COUNTS, COUNTS):
        workers = before + after == 5
        rows, state = run(before, 4, None, workers=workers)
        rest, _ = run(after, 3, state, workers=workers)
        assert rows + rest == expected[: len(rows + rest)], (before, after)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

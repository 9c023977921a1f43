"""States of `fastiter.torch.DataLoader` that a release has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import data as torch_data

from fastiter.torch import DataLoader

N, BATCH, PLACES = 46, 4, (0, 5, 12)  # batches before the state; 12 are an epoch


class Numbers(torch_data.IterableDataset[int]):
    """A stream, of which each worker has the numbers in turn."""

    def __iter__(self) -> Iterator[int]:
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, N, step))


class Resumable(Numbers):
    """A stream that has a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        numbers = list(super().__iter__())
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def seeded() -> Any:
    return torch.Generator().manual_seed(7)


def of_sampler(sampler: Callable[[], Any], **given: Any) -> Callable[[int], Any]:
    return lambda workers: DataLoader(
        range(2 * N), BATCH, sampler=sampler(), num_workers=workers, generator=seeded(), **given
    )


def of_dataset(dataset: Callable[[], Any], **given: Any) -> Callable[[int], Any]:
    return lambda workers: DataLoader(
        dataset(), BATCH, num_workers=workers, generator=seeded(), **given
    )


CASES: dict[str, Callable[[int], Any]] = {
    "in order": of_dataset(lambda: range(N)),
    "shuffled": of_dataset(lambda: range(N), shuffle=True),
    "global generator": lambda workers: DataLoader(
        range(N), BATCH, shuffle=True, num_workers=workers
    ),
    "weighted": of_sampler(lambda: torch_data.WeightedRandomSampler([1.0] * N, N)),
    "of a rank": of_sampler(lambda: torch_data.DistributedSampler(range(2 * N), 2, 1)),
    "without batches": lambda workers: DataLoader(
        range(N), None, num_workers=workers, generator=seeded()
    ),
    "any order": of_dataset(lambda: range(N), in_order=False),
    "seeded examples": of_dataset(lambda: range(N), shuffle=True, seed_examples=True),
    "every third": of_dataset(Resumable, snapshot_every_n_steps=3),
    "stream": of_dataset(Numbers),
    "resumable stream": of_dataset(Resumable),
}


def rest_of(loader: Any) -> list[Any]:
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in loader]


def new_states() -> Iterator[tuple[str, dict[str, Any]]]:
    """Entries of loaders that `make_golden_states` writes."""
    for case, make in CASES.items():
        for workers in (0, 2):
            for place in PLACES if case in ("shuffled", "resumable stream") else (5,):
                torch.manual_seed(3)
                loader = make(workers)
                iterator = iter(loader) if place else None
                for _ in range(place):
                    next(iterator)
                state = loader.state_dict()
                other = make(workers)
                other.load_state_dict(state)
                yield (
                    f"{case}, {workers} workers, {place}",
                    {"state": state, "batches": rest_of(other)},
                )

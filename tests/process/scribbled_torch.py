"""A victim of scribbles beside iterators: a `DataLoader`, endless, in the shape of an iterator."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
from inside import executor_of, planner_of
from torch.utils.data import default_collate

from fastiter.errors import WorkerDiedError
from fastiter.torch import DataLoader


class Nested:
    """Texts of all widths, in containers in containers; some rows are slow."""

    def __len__(self) -> int:
        return 1 << 60

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 5 == 0:
            time.sleep(0.0005)
        text = ["plain", "\xe9", "\u4e00", "\U0001f600"][index % 4] + str(index)
        return {"x": (torch.full((6,), index), [text, str(index).encode()]), "n": index}


class Batches:
    """A batch sampler without an end, that begins anew after some examples."""

    def __init__(self, batch_size: int, size: int) -> None:
        self.batch_size, self.size = batch_size, size

    def __iter__(self) -> Iterator[list[int]]:
        for first in itertools.count(0, self.batch_size):
            yield [(first + row) % self.size for row in range(self.batch_size)]


def whole(examples: list[Any]) -> Any:
    """A collate function of one's own: each batch is asked for by a request, and comes packed."""
    return default_collate(examples)


class Loader:
    """Of an odd number: batches from columns; else whole ones."""

    def __init__(self, number: int) -> None:
        self._sampler = Batches(8, 64)
        self._dataset = Nested()
        loader = DataLoader(
            self._dataset,
            batch_sampler=self._sampler,
            num_workers=2,
            collate_fn=None if number % 2 else whole,
            multiprocessing_context="fork",
        )
        self._batches: Any = iter(loader)
        self._executor = executor_of(self._batches)

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except RuntimeError as error:
            if str(error).startswith("DataLoader worker is killed"):
                raise WorkerDiedError(str(error)) from error
            raise

    @property
    def current_position(self) -> int:
        """Of the first example that was not delivered."""
        number: int = planner_of(self._batches).peek().state.position - 1
        return number * self._sampler.batch_size % self._sampler.size

    def is_right(self, batch: Any, first: int) -> bool:
        rows = [self._dataset[first + row] for row in range(self._sampler.batch_size)]
        wanted = default_collate(rows)
        (x, texts), (right_x, right_texts) = batch["x"], wanted["x"]
        return (
            torch.equal(x, right_x)
            and texts == right_texts
            and torch.equal(batch["n"], wanted["n"])
        )

    def finalize(self) -> None:
        self._batches.close()

"""Fetches in the program's own process: ``num_workers=0``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch.utils.data
from torch.utils.data import (
    IterDataPipe,
    MapDataPipe,
    _DatasetKind,
    _utils,
    default_collate,
)

from fastiter._fetch.dataset_access import ColumnGatherer, plain_columns
from fastiter._workers.batch_converter import ConcatConverter
from fastiter.torch._collate import ColumnsCollate, collate, converter_for, tensors_of
from fastiter.torch._iterator import MOST_ROWS, LoaderIterator, index_array
from fastiter.torch._seeds import Seeded, generators_kept
from fastiter.torch._state import (
    Resume,
    begin_fetching,
    other_workers,
    program_state,
    state_of,
)

if TYPE_CHECKING:
    from fastiter.torch._loader import DataLoader


class InProcessIterator(LoaderIterator):
    """Fetches each batch when it is asked for."""

    def __init__(self, loader: DataLoader[Any], resume: Resume | None) -> None:
        super().__init__(loader, resume)
        if self._timeout:
            raise AssertionError("timeout must be 0 where num_workers is 0")
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            torch.utils.data.graph_settings.apply_sharding(
                self._dataset, self._world_size, self._rank
            )
        self._begin(None if resume is None else resume)

    def _begin(self, resume: Resume | None) -> None:
        """Make the fetcher; of a loaded state, where that was."""
        is_iterable = self._dataset_kind == _DatasetKind.Iterable
        if resume is not None and is_iterable and resume.n_workers and resume.n_yielded:
            raise other_workers(resume.n_workers, 0)
        state = None if resume is None else resume.of_worker(0, 0)
        self._fetcher = begin_fetching(
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self._collate_for(),
            self._drop_last,
            state,
        )
        if self._example_seed is not None:
            self._fetcher.dataset = Seeded(self._dataset)
        if resume is not None:
            n_missing = resume.n_more
            if is_iterable and not resume.has_worker_state:
                n_missing += resume.n_yielded
                self._num_yielded = 0
            for _ in range(n_missing):
                next(self)
            self._finished = resume.is_finished

    def _collate_for(self) -> Any:
        """The collate function. Of a dataset of Arrow columns also finds what gathers them."""
        self._columns: ColumnGatherer | None = None
        self._converter = converter_for(self._collate_fn, self._dataset)
        if self._auto_collation and isinstance(self._converter, ConcatConverter):
            plain = plain_columns(self._dataset)
            if plain is not None and plain.is_arrow:
                self._columns = ColumnGatherer(plain, self._converter.padding)
        if isinstance(self._converter, ColumnsCollate):
            return self._converter
        return self._collate if self._collate_fn is default_collate else self._collate_fn

    def _gathered(self, keys: Any) -> Any:
        """The batch of Arrow columns; None if it has to be made of examples."""
        if self._columns is None:
            return None
        indices = index_array(keys, MOST_ROWS)
        batch = None if indices is None else self._columns.gather(indices)
        return tensors_of(batch) if isinstance(self._converter, ColumnsCollate) else batch

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._begin(None)

    def _collate(self, examples: list[Any]) -> Any:
        return collate(default_collate, examples, self._keys)

    def _next_data(self) -> Any:
        keys = next(self._sampler_iter)
        data = self._gathered(keys)
        if type(keys) is np.ndarray:
            keys = keys.tolist()
        self._keys = keys
        if data is not None:
            pass
        elif self._example_seed is None:
            data = self._fetcher.fetch(keys)
        else:
            with generators_kept():
                self._fetcher.dataset.begin((*self._example_seed, self._sampler_iter.n_drawn))
                data = self._fetcher.fetch(keys)
        if self._pin_memory:
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def state_dict(self) -> dict[str, Any]:
        state = state_of(0, self._dataset_kind, self._fetcher, self._dataset)
        return {
            **self._sampler_state([]),
            "_num_yielded": self._num_yielded,
            "fetcher_state": state["fetcher_state"],
            "dataset_state": state["dataset_state"],
            "_iterator_finished": self._finished,
            **program_state(self._draws_globally),
        }

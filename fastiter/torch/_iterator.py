"""What both ways to fetch have in common: the sampler, its random numbers, and the end."""

from __future__ import annotations

import collections
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import dataloader as torch_dataloader

from fastiter.torch._state import Resume, is_stateful, state_if_any

if TYPE_CHECKING:
    from fastiter.torch._loader import DataLoader


class LoaderIterator(torch_dataloader._BaseDataLoaderIter):
    """One iteration over a `DataLoader`: draws the sampler's keys in torch's order.

    Parameters
    ----------
    loader : DataLoader
    resume : Resume or None
        The state to continue from.
    """

    def __init__(self, loader: DataLoader, resume: Resume | None) -> None:
        if resume is not None:
            _set_generator(loader, resume.main.get("_generator_state"))
        self._generator_state = _generator_state(loader)
        super().__init__(loader)
        self._loader = loader
        self._n_drawn = 0
        self._finished = False
        if resume is not None:
            self._load_sampler(resume)
            self._finished = resume.is_finished

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._generator_state = _generator_state(loader)
        super()._reset(loader, first_iter)
        self._n_drawn = 0
        self._finished = False

    def _next_index(self) -> Any:
        keys = next(self._sampler_iter)
        self._n_drawn += 1
        return keys

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self._finished = True
            raise

    def _sampler_state(self) -> dict[str, Any]:
        """Where the sampler is now."""
        return {
            "_index_sampler_state": state_if_any(self._index_sampler),
            "_sampler_iter_state": state_if_any(self._sampler_iter),
            "_sampler_iter_yielded": self._n_drawn,
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_shared_seed": self._shared_seed,
            "_generator_state": self._generator_state.tolist(),
        }

    def _load_sampler(self, resume: Resume) -> None:
        main, sampler = resume.main, self._index_sampler
        self._n_drawn = main["_sampler_iter_yielded"]
        if is_stateful(sampler) or is_stateful(self._sampler_iter):
            if is_stateful(sampler):
                sampler.load_state_dict(main["_index_sampler_state"])
            self._sampler_iter = iter(sampler)
            if main["_sampler_iter_state"] is not None:
                self._sampler_iter.load_state_dict(main["_sampler_iter_state"])
        elif self._dataset_kind != torch_dataloader._DatasetKind.Iterable:
            self._sampler_iter = iter(sampler)
            # Now, since a sampler draws its seed with its first key, and what is loaded later, such
            # as a dataset's state, may set the generator.
            collections.deque(itertools.islice(self._sampler_iter, self._n_drawn), maxlen=0)
        self._num_yielded = resume.n_yielded
        self._IterableDataset_len_called = main["_IterableDataset_len_called"]
        self._shared_seed = main["_shared_seed"]


def _generator_state(loader: DataLoader) -> torch.Tensor:
    generator = loader.generator
    return torch.get_rng_state() if generator is None else generator.get_state()


def _set_generator(loader: DataLoader, state: Any) -> None:
    """Go back to the random numbers at the start of the resumed epoch."""
    if state is None:
        return
    state = torch.as_tensor(state, dtype=torch.uint8)
    if loader.generator is None:
        torch.set_rng_state(state)
    else:
        loader.generator.set_state(state)

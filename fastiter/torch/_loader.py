"""`DataLoader`, the class of torch with fastiter's workers and a state."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.utils.data

from fastiter.torch._serial import SerialIterator
from fastiter.torch._state import Resume
from fastiter.torch._parallel import WorkersIterator


_T = TypeVar("_T", covariant=True)


class DataLoader(torch.utils.data.DataLoader[_T]):
    def __init__(
        self,
        *args: Any,
        snapshot_every_n_steps: int | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._loaded: Resume | None = None
        self._is_untouched = False  # the iterator was made for its state, and is not in a loop yet

    def _get_iterator(self) -> Any:
        loaded, self._loaded = self._loaded, None
        if self.num_workers == 0:
            return SerialIterator(self, loaded)
        self.check_worker_number_rationality()
        return WorkersIterator(self, loaded)

    def __iter__(self) -> Any:
        iterator = self._iterator
        if self._is_untouched:
            self._is_untouched = False
        elif self.persistent_workers and iterator is not None:
            iterator._reset(self)
        else:
            iterator = self._iterator = self._get_iterator()
        if iterator._finished:  # by the loaded state
            if self.persistent_workers:
                iterator._reset(self)
            else:
                iterator = self._iterator = self._get_iterator()
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was delivered last; before the first, that of its start."""
        if self._iterator is None:
            self._iterator = self._get_iterator()
            self._is_untouched = True
        return self._iterator.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next iteration begin after the batch at which `state_dict` was called."""
        self._iterator = None
        self._is_untouched = False
        if state_dict:
            self._loaded = Resume.of(state_dict)

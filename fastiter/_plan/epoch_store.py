"""The orders and cuts of epochs beside the current one: kept for addresses, or drawn ahead."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fastiter._plan.drawing import draw_epoch
from fastiter._util.concurrency import ThreadOfNoLocks

if TYPE_CHECKING:
    from fastiter._plan.epoch_sampler import Epoch, EpochSampler

_MOST_KEPT = 2


class EpochStore:
    """Epochs of an iterator's sampler: the two that were asked for last, and one drawn ahead.

    Each is found by all that it depends on. Used under the iterator's lock.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, Epoch] = {}
        self._ahead: _Drawing | None = None

    def epoch(self, sampler: EpochSampler, *key: Any) -> Epoch:
        """As `draw_epoch`; that epoch is kept."""
        ahead = self._ahead
        if ahead is not None and ahead.key == key:
            ahead.join()
            if ahead.epoch is not None:
                self._kept[key] = ahead.epoch
            self._ahead = None
        if key not in self._kept:
            self._kept[key] = draw_epoch(sampler, *key)
        epoch = self._kept[key]
        while len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return epoch

    def next_epoch(self, *arguments: Any) -> Epoch:
        """As `draw_epoch`. That epoch becomes the current one, and is not kept here."""
        epoch = self.epoch(*arguments)
        for key in [key for key, kept in self._kept.items() if kept is epoch]:
            del self._kept[key]
        return epoch

    def begin(self, sampler: EpochSampler, *key: Any) -> None:
        """Have that epoch drawn by a thread. If none can be started, or the former one still draws
        what a loaded state has made useless, it is drawn when it is needed."""
        if key not in self._kept and (self._ahead is None or not self._ahead.is_alive()):
            ahead = _Drawing(sampler, key)
            with contextlib.suppress(RuntimeError):
                ahead.start()
                self._ahead = ahead

    def clear(self) -> None:
        """Forget all. A thread ends by itself."""
        self._kept.clear()
        if self._ahead is not None and not self._ahead.is_alive():
            self._ahead = None


class _Drawing(ThreadOfNoLocks):
    """Draws an epoch. The interpreter's exit waits for it, if need be; its errors are those that
    come again where the epoch is needed."""

    epoch: Epoch | None = None

    def __init__(self, sampler: EpochSampler, key: Any) -> None:
        super().__init__(name="fastiter-epoch", daemon=False)
        self.key = key
        self._sampler = sampler

    def run(self) -> None:
        with contextlib.suppress(Exception):
            self.epoch = draw_epoch(self._sampler, *self.key)

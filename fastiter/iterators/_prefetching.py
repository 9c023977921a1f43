"""Iterators whose workers make batches ahead, and copies of these to a GPU, also ahead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from fastiter._engine.device_stage import DeviceStage
from fastiter._stats.autotune import FIRST_PREFETCH, MOST_PREFETCH
from fastiter._util.arguments import checked_seconds
from fastiter.iterators._arguments import OnTimeout, checked_retries
from fastiter.iterators._base import PlannedIterator
from fastiter.iterators._properties import Given, given

if TYPE_CHECKING:
    from fastiter.iterators._stream_parts import PartStore

_SHARED = [*inspect.signature(PlannedIterator.__init__).parameters][1:]


def shared(given: dict[str, Any]) -> dict[str, Any]:
    """Those of a constructor's arguments that all iterators have."""
    return {name: given[name] for name in _SHARED}


class PrefetchingIterator(PlannedIterator):
    """Base of the iterators whose workers make batches on the host."""

    _n_device_prefetch: int
    _n_prefetch: int | Literal["auto"]

    n_device_prefetch: Given[int] = given(
        "_n_device_prefetch", "Batches copied to a GPU ahead of the one that ``next()`` returns."
    )
    dataset_timeout: Given[float | None] = given(
        "_dataset_timeout", "Seconds that the dataset may take for one example; None for no limit."
    )
    on_timeout: Given[OnTimeout] = given(
        "_on_timeout", "Treatment of a worker that takes longer than `dataset_timeout`."
    )
    n_retries: Given[int] = given(
        "_n_retries",
        "Number of further attempts to fetch an example that takes too long, with "
        "`on_timeout='retry'`.",
    )

    def _set_timeout(self, dataset_timeout: Any, on_timeout: Any, n_retries: Any) -> None:
        """Check the limit of a worker's time, and the action when a worker exceeds it."""
        self._dataset_timeout = checked_seconds("dataset_timeout", dataset_timeout)
        self._on_timeout, self._n_retries = checked_retries(
            on_timeout, n_retries, self._dataset_timeout
        )

    @property
    def n_prefetch(self) -> int:
        """Batches fetched ahead of the one that ``next()`` waits for; with 'auto', at present."""
        return self._first_prefetch if self._tuner is None else self._executor.n_prefetch

    @property
    def _first_prefetch(self) -> int:
        return FIRST_PREFETCH if self._n_prefetch == "auto" else self._n_prefetch

    def _auto_settings(self) -> dict[str, int]:
        is_auto = self._n_prefetch == "auto" and not self._is_serial
        return {"n_prefetch": MOST_PREFETCH} if is_auto else {}

    def _part_timeout(self, store: PartStore) -> float | None:
        """Seconds that a worker may take for a part of a shard."""
        seconds = self._dataset_timeout
        if seconds is not None and self._on_timeout == "retry":
            seconds *= store.rows  # as a call of ``__getitems__`` for as many
        return seconds

    def _new_stage(self) -> DeviceStage | None:
        maker = self._batch_maker
        return DeviceStage(maker.gpu, self._n_device_prefetch) if maker.is_on_gpu else None

    def _finish(self) -> Callable[[Any], Any] | None:
        """The function that sends batches of the host to the device, or begins to; None: none."""
        if self._stage is not None:
            return self._stage.begin
        return None if self._device is None else self._batch_maker.sent

"""A progress bar over the batches of an iterator."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fastiter._stats.timer import Timer, now
from fastiter._util.context import Closing
from fastiter._util.start_default import default_method_kept

_SHARE_NS = 500_000_000  # at least; the share of waiting is of such a time, and drawn as often


def progress(iterator: Iterator[Any], **options: Any) -> Progress:
    """Iterate over batches and draw a bar: epoch, examples, examples/s, time spent waiting.

    ``for batch in fastiter.progress(iterator): ...`` iterates over the iterator's batches. The bar
    shows the current epoch, and starts over with each. It is closed when the iteration ends, when
    it is deleted (after a ``break`` or an exception has left the loop), by ``close()``, and at the
    end of a ``with`` statement. The iterator itself stays open.

    Parameters
    ----------
    iterator : SerialIterator, MultithreadIterator, MultiprocessIterator or DataLoader
        Iterator, perhaps in the middle of an epoch. Worker processes are started if they are not.
        Of a `fastiter.torch.DataLoader`, the bar shows one epoch, that of one ``for``.
    **options
        Of ``tqdm.auto.tqdm``: ``disable``, ``file``, ``leave``, ``position``, ``desc`` (shown
        before the epoch), ``postfix`` (shown before the share of waiting) and so on.

    Returns
    -------
    iterator
        Its ``next()`` returns and raises what the iterator's does, and may be called again when
        the iterator's may be.

    Raises
    ------
    ImportError
        Without tqdm.
    TypeError
        If ``iterator`` is no iterator of fastiter, or tqdm does not know an option.

    Notes
    -----
    Examples count when their batch is delivered. The share of waiting is the time blocked in
    ``next()`` divided by all time, over the last half second or longer; ``iterator.stats()`` says
    what would help.
    """
    return Progress(iterator, options)


class Progress(Closing, Iterator[Any]):
    """The iterator that `progress` returns."""

    def __init__(self, iterator: Any, options: dict[str, Any]) -> None:
        self._bar: Any = None
        if not hasattr(iterator, "trace"):  # as all that have statistics
            raise _no_iterator(iterator)
        try:
            tqdm = importlib.import_module("tqdm.auto").tqdm
        except ImportError as error:
            raise ImportError("fastiter.progress needs tqdm: pip install tqdm") from error
        # Before the bar is created: tqdm starts a thread, and forking is unsafe then.
        getattr(iterator, "start", lambda: None)()
        iterator = iter(iterator)  # may begin an epoch: see as_torch
        timer = getattr(iterator, "_timer", None)
        if not isinstance(timer, Timer):
            raise _no_iterator(iterator)
        self._iterator = iterator
        self._timer = timer
        name, self._note = options.pop("desc", None), options.pop("postfix", None)
        self._prefix = "" if name is None else f"{name} "
        self._epoch = iterator.epoch
        self._is_full = False
        self._last = self._times()
        with default_method_kept():  # the first bar makes a lock of multiprocessing's
            self._bar = tqdm(
                total=iterator._epoch_size,
                initial=iterator.current_position,
                desc=f"{self._prefix}epoch {self._epoch}",
                **{"unit": " examples", "unit_scale": True, **options},
            )

    def __next__(self) -> Any:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self.close()
            raise
        self._draw()
        return batch

    def close(self) -> None:
        """Close the bar. It may be called again."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._show_waiting(bar)
            bar.close()

    def __del__(self, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _exits():  # else globals of modules may be None; tqdm closes its bars itself
            self.close()

    # ---- drawing

    def _draw(self) -> None:
        iterator, bar = self._iterator, self._bar
        if bar is None:
            return
        if self._is_full:
            self._is_full = False
            bar.set_description(f"{self._prefix}epoch {self._epoch}", refresh=False)
            bar.reset(total=iterator._epoch_size)
        if now() - self._last[0] >= _SHARE_NS:
            self._show_waiting(bar)
        if iterator.is_new_epoch:
            # The next bar begins with the examples that belong to the next epoch.
            bar.update(bar.total - bar.n)
            bar.refresh()
            self._is_full = True
            self._epoch = iterator.epoch
        else:
            bar.update(iterator.current_position - bar.n)

    def _show_waiting(self, bar: Any) -> None:
        """Write the share of waiting since the last time behind the bar; it is drawn with it."""
        now, last = self._times(), self._last
        seconds = now[1] - last[1]
        if seconds > 0:
            self._last = now
            waiting = f"waiting {(now[2] - last[2]) / seconds:.0%}"
            note = waiting if self._note is None else f"{self._note}, {waiting}"
            bar.set_postfix_str(note, False)

    def _times(self) -> tuple[int, float, float]:
        """The time in ns, and seconds of the loop and of its waiting so far, start included."""
        start, inside, waited, between, _ = self._timer.read()
        return now(), start + inside + between, start + waited


def _no_iterator(iterator: Any) -> TypeError:
    return TypeError(
        "progress needs an iterator of fastiter (for its epoch and statistics), not "
        f"{type(iterator).__qualname__}"
    )

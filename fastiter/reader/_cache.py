"""A reader that keeps what it has read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from fastiter._util.concurrency import lock_of_child, renew_in_child
from fastiter.reader._opening import Reader, open_reader, require_readers

_END = object()


class Cache:
    """The reader that `cache` makes. Several passes, in several threads too, share one source and
    one list; a pass takes from the source what no other has taken before.

    A copy that is pickled, for another process, keeps nothing and reads for itself.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.RLock()
        self._samples: list[Any] = []
        self._source: Iterator[Any] | None = None
        self._is_complete = False
        self._is_reading = False  # the source runs
        renew_in_child(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._reader,)

    def __call__(self) -> Iterator[Any]:
        place = 0
        samples = self._samples
        while True:
            if place == len(samples) and not self._read_on(samples, place):
                return
            yield samples[place]
            place += 1

    def _read_on(self, samples: list[Any], place: int) -> bool:
        """Reads the sample at `place`, unless another pass has; False at the end."""
        with self._lock:
            if place < len(samples):
                return True
            if samples is not self._samples:
                raise RuntimeError(
                    "the reader behind cache has failed in another pass, or this process was "
                    "forked while another thread read from it: begin a new pass"
                )
            if self._is_complete:
                return False
            if self._is_reading:
                raise RuntimeError("the reader behind cache reads from that cache itself")
            try:
                self._is_reading = True
                if self._source is None:
                    self._source = open_reader(self._reader)
                sample = next(self._source, _END)
            except BaseException:
                self._read_anew()
                raise
            finally:
                self._is_reading = False
            if sample is _END:
                self._source, self._is_complete = None, True
                return False
            samples.append(sample)
            return True

    def _read_anew(self) -> None:
        """A failed source cannot go on, and what it gave is not all: so the next pass does it."""
        self._source, self._samples = None, []

    def _after_fork(self) -> None:
        """In a forked child: a thread that was amid the source is not there to go on with it."""
        if self._is_reading and not self._lock._is_owned():  # type: ignore[attr-defined]
            self._read_anew()
            self._is_reading = False
        self._lock = lock_of_child(self._lock)


def cache(reader: Reader) -> Reader:
    """Keeps all samples in memory, so that the source is read once only.

    It is read as far as the first pass goes; later passes replay that and read on. If the source
    fails, the next pass begins anew.

    Parameters
    ----------
    reader : callable

    Returns
    -------
    callable
        A reader of the same samples: the very objects, in each pass.
    """
    require_readers((reader,))
    return Cache(reader)

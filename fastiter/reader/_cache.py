"""The `cache` decorator: a reader that keeps its samples."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from fastiter._util.concurrency import lock_of_child, renew_in_child
from fastiter.reader._opening import Reader, open_reader, require_readers

_END = object()


class Cache:
    """The reader that `cache` returns.

    All passes, also in several threads, share one source and one list of samples. A pickled copy
    holds no samples: another process reads for itself.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.RLock()
        self._samples: list[Any] = []
        self._source: Iterator[Any] | None = None
        self._is_complete = False
        self._is_reading = False  # a thread is in the source
        renew_in_child(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._reader,)

    def __call__(self) -> Iterator[Any]:
        place = 0
        samples = self._samples
        while place < len(samples) or self._read_on(samples, place):
            yield samples[place]
            place += 1

    def _read_on(self, samples: list[Any], place: int) -> bool:
        """Read the sample at ``place``, unless another pass has; False at the end."""
        with self._lock:
            if place < len(samples):
                return True
            if samples is not self._samples:
                raise RuntimeError(
                    "the cached reader has failed in another pass, or this process was forked "
                    "while another thread was reading: begin a new pass"
                )
            if self._is_complete:
                return False
            if self._is_reading:
                raise RuntimeError("the cached reader reads from its own cache")
            try:
                self._is_reading = True
                if self._source is None:
                    self._source = open_reader(self._reader)
                sample = next(self._source, _END)
            except BaseException:
                self._begin_anew()
                raise
            finally:
                self._is_reading = False
            if sample is _END:
                self._source, self._is_complete = None, True
                return False
            samples.append(sample)
            return True

    def _begin_anew(self) -> None:
        """The source has failed and its samples are incomplete: the next pass reads all again."""
        self._source, self._samples = None, []

    def _after_fork(self) -> None:
        """In a forked child: a thread that was in the source does not exist here."""
        lock, self._lock = self._lock, lock_of_child(self._lock)
        if self._is_reading and lock is not self._lock:
            self._begin_anew()
            self._is_reading = False


def cache(reader: Reader) -> Reader:
    """Keep all samples in memory, so that the source is read only once.

    The first pass reads as far as it goes; later passes repeat its samples, the same objects, and
    continue reading. If the source fails, the next pass reads all samples again.
    """
    require_readers((reader,))
    return Cache(reader)

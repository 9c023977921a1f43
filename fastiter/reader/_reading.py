"""What the worker process of one reader runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fastiter._ring.stream import SampleWriter
from fastiter._ring.worker_ring import WorkerRing
from fastiter._workers.main import WorkerArguments
from fastiter.reader._opening import Reader, close_samples, open_reader


def name_of(reader: Reader) -> str:
    """A reader's name for messages."""
    return getattr(reader, "__qualname__", None) or type(reader).__qualname__


class ReadingJob:
    """Reads one of several readers: that of the worker's number."""

    image = "the image of the readers"
    instead = "or pass context='fork', which inherits them"

    def __init__(self, readers: tuple[Reader, ...]):
        self._readers = readers

    @property
    def names(self) -> dict[str, Any]:
        return {
            f"reader {number} ({name_of(reader)})": reader
            for number, reader in enumerate(self._readers)
        }

    def prepare(self, end: WorkerRing, seat: WorkerArguments, seed: int) -> Callable[[], None]:
        writer = SampleWriter(end, seat.bell_pipe.fd)
        return functools.partial(_publish_all, self._readers[seat.number], writer)


def _publish_all(reader: Reader, writer: SampleWriter) -> None:
    try:
        samples = open_reader(reader)
        try:
            for sample in samples:
                if sample is None:
                    raise ValueError("the reader gave None as a sample, which stands for no sample")
                if not writer.put(sample):
                    return
        finally:
            close_samples(samples)
    except BaseException as error:
        writer.fail(error)
    else:
        writer.finish()

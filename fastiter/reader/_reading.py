"""The job of a worker process that runs one reader."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fastiter._ring.arena import WorkerRing
from fastiter._ring.stream import SampleWriter
from fastiter._workers.main import Job, WorkerArguments
from fastiter.reader._opening import Reader, name_of, opened


class ReadingJob(Job):
    """Runs the reader with the number of the worker."""

    image = "the image of the readers"
    repeats = False

    def __init__(self, readers: tuple[Reader, ...]):
        self._readers = readers

    @property
    def names(self) -> dict[str, Any]:
        return {
            f"reader {number} ({name_of(reader)})": reader
            for number, reader in enumerate(self._readers)
        }

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        writer = SampleWriter(end, arguments.bell_pipe.fd)
        return functools.partial(_publish_all, self._readers[arguments.number], writer)


def _publish_all(reader: Reader, writer: SampleWriter) -> None:
    try:
        with opened(reader) as (samples,):
            for sample in samples:
                if sample is None:
                    raise ValueError("the reader yielded None, which cannot be a sample")
                if not writer.put(sample):
                    return
    except BaseException as error:
        writer.fail(error)
    else:
        writer.finish()

"""A writer of datasets in files of pickles."""

from __future__ import annotations

import io
import pickle
import threading
from typing import Any

from fastiter._util.arguments import checked_path
from fastiter._util.concurrency import renew_in_child
from fastiter._util.context import Closing

__all__ = ["PickleDatasetWriter", "open_pickle_dataset_writer"]


class PickleDatasetWriter(Closing):
    """Writes examples as pickles for `PickleDataset`.

    Threads may write at the same time. An example that cannot be pickled leaves the file
    unchanged. Use the writer in a ``with`` statement, or close it.

    Parameters
    ----------
    writer : binary file
        File with ``write`` and ``close``, and optionally ``flush``.
    protocol : int
        The protocol of `pickle`.
    """

    def __init__(self, writer: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> None:
        self._writer = writer
        self._protocol = protocol
        self._lock = threading.Lock()
        self._is_cut = False  # the file may end within an example
        renew_in_child(self)

    def write(self, x: Any) -> None:
        """Append an example.

        Raises the errors of `pickle.dumps` if the example cannot be pickled, OSError if the file
        cannot be written, ValueError if the writer has been closed, or could not write before.
        """
        data = pickle.dumps(x, protocol=self._protocol)
        with self._lock:
            if self._is_cut:
                raise ValueError(
                    "an earlier example could not be written, and part of it may be in the file: "
                    "what follows could not be read. Write the file anew"
                )
            try:
                written = self._writer.write(data)
                while isinstance(self._writer, io.RawIOBase) and written < len(data):  # in parts
                    written += self._writer.write(data[written:])
            except BaseException:
                self._is_cut = True
                raise

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def flush(self) -> None:
        """Flush the writer, if it can."""
        if hasattr(self._writer, "flush"):
            self._writer.flush()

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()


def open_pickle_dataset_writer(
    path: Any, protocol: int = pickle.HIGHEST_PROTOCOL
) -> PickleDatasetWriter:
    """Open a file for a `PickleDataset`; an existing file is overwritten.

    OSError if it cannot be opened. See `PickleDatasetWriter` for the protocol.
    """
    return PickleDatasetWriter(open(checked_path("path", path), "wb"), protocol)

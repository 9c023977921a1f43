"""A dataset in a file of pickles."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np

from fastiter._util.concurrency import renew_in_child
from fastiter._util.context import Closing
from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._files import Cursor, SharedFile

__all__ = ["PickleDataset", "open_pickle_dataset"]

_BUFFER_BYTES = 16 << 10  # pickle looks at the whole buffer once for each example


class PickleDataset(Closing, DatasetMixin):
    """The examples in a file of pickles, which `PickleDatasetWriter` writes.

    The constructor loads each example once to see where it ends; later, a fetch reads the example
    from the file. As with any pickle, the file must come from a source that you trust.

    A plain file (`open_pickle_dataset`, or ``open(path, "rb")``) is read at offsets: threads read
    at the same time, and forked processes do not disturb each other. It is pickled as its path.
    Any other reader is read under a lock. It must be picklable if the dataset is pickled. If forked
    processes cannot share it, it needs a method ``after_fork``, which is called in each of them.

    Parameters
    ----------
    reader : binary file
        File with ``seekable``, ``seek``, ``tell``, ``read``, ``readline`` and ``close``.

    Raises
    ------
    TypeError, ValueError, pickle.UnpicklingError
        If the reader is not a file, or not seekable; or if an example cannot be loaded: it is
        damaged or incomplete, or a class cannot be imported.
    """

    def __init__(self, reader: Any) -> None:
        if not hasattr(reader, "seekable"):
            raise TypeError(
                f"reader must be a binary file, not {reader!r} of type "
                f"{type(reader).__qualname__}; open_pickle_dataset takes a path"
            )
        if not reader.seekable():
            raise ValueError(f"the reader must support random access, but {reader!r} does not")
        file = reader.file if type(reader) is Cursor else SharedFile.adopted(reader)
        self._source: SharedFile | _LockedReader = file or _LockedReader(reader)
        self._reader = None if file is None else reader  # is closed with the file
        stream = reader if file is None else file.stream(_BUFFER_BYTES)
        self._bounds = np.array(_bounds(stream, self._source.name), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def get_example(self, i: int) -> Any:
        """Load example ``i``; negative indices count from the end.

        ValueError if the dataset has been closed, OSError if the file cannot be read.
        """
        row = row_at(i, len(self))
        start = self._bounds.item(row)
        return pickle.loads(self._source.read(start, self._bounds.item(row + 1) - start))

    def close(self) -> None:
        """Close the reader. Later fetches raise ValueError."""
        self._source.close()
        if self._reader is not None:
            self._reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}


def open_pickle_dataset(path: Any) -> PickleDataset:
    """Open a file that `open_pickle_dataset_writer` wrote, fastiter's or Chainer's, as a dataset.

    Call its ``close()``, use it in a ``with`` statement, or drop it to close the file. A relative
    path is resolved at once. OSError if the file cannot be opened; see also `PickleDataset`.
    """
    return PickleDataset(Cursor(SharedFile(path)))


def _bounds(stream: Any, name: str) -> list[int]:
    """Return the offsets of the pickles in a stream, and of its end."""
    bounds = [0]
    stream.seek(0)
    while True:
        try:
            pickle.load(stream)
        except OSError:
            raise
        except Exception as error:  # damaged bytes may cause nearly any error
            if isinstance(error, EOFError) and stream.tell() == bounds[-1]:
                return bounds
            raise pickle.UnpicklingError(
                f"example {len(bounds) - 1}, at byte {bounds[-1]} of {name}, cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        bounds.append(stream.tell())


class _LockedReader:
    """A reader with a position, which one thread uses at a time."""

    def __init__(self, reader: Any) -> None:
        self.name = repr(reader)
        self._reader = reader
        self._lock = threading.Lock()
        renew_in_child(self)

    def read(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._reader.seek(offset)
            data = b""
            while len(data) < size:
                if not (more := self._reader.read(size - len(data))):
                    raise OSError(f"{self.name} ends within an example")
                data += more
        return data

    def close(self) -> None:
        """Close the reader, after the read of another thread."""
        with self._lock:
            self._reader.close()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        if callable(hook := getattr(self._reader, "after_fork", None)):
            hook()

    def __getstate__(self) -> Any:
        return self._reader

    def __setstate__(self, reader: Any) -> None:
        _LockedReader.__init__(self, reader)

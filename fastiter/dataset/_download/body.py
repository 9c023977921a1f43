"""The bytes of a download, as they arrive."""

from __future__ import annotations

import hashlib
import os
from io import FileIO
from typing import Any

from fastiter._util.start_default import default_method_kept


class Body:
    """A new file that is written, hashed if asked, and counted.

    Parameters
    ----------
    path : str
        Where there is no file yet.
    url : str
        What messages and the progress bar name.
    sha256 : str or None
        What the content is to have, in lower case.
    progress : bool
        Whether to show a bar.
    """

    def __init__(self, path: str, url: str, sha256: str | None, progress: bool) -> None:
        self.size = 0  #: bytes so far
        self._path = path
        self._url = url
        self._wanted = sha256
        self._hash = hashlib.sha256()
        self._bar: Any = None
        self._file = FileIO(path, "xb")
        if progress:
            from tqdm import tqdm

            name = os.path.basename(url.partition("?")[0].rstrip("/")) or url
            with default_method_kept():
                self._bar = tqdm(desc=name, unit="B", unit_scale=True, unit_divisor=1024)

    def expect(self, total: int | None) -> None:
        """Tells the bar how many bytes there will be in all."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.refresh()

    def write(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            reason = f"{error.strerror}, after {self.size} bytes of {self._url}"
            raise OSError(error.errno, reason, self._path) from None
        self.size += len(chunk)
        if self._wanted is not None:
            self._hash.update(chunk)
        if self._bar is not None:
            self._bar.update(len(chunk))

    def restart(self) -> None:
        """Forgets what has arrived."""
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self.size = 0
        if self._bar is not None:
            self._bar.reset()

    def check(self) -> None:
        """Raises OSError if the content is not the wanted one."""
        found = self._hash.hexdigest()
        if self._wanted not in (None, found):
            raise OSError(
                f"the {self.size} bytes of {self._url} are not those that were expected: their "
                f"SHA-256 is {found}, sha256={self._wanted!r}"
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._file.close()


def has_sha256(path: str, wanted: str | None) -> bool:
    """Whether there is a file with this content; with None, whether there is one."""
    if wanted is None:
        return os.path.exists(path)
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                found.update(chunk)
    except FileNotFoundError:
        return False
    return found.hexdigest() == wanted

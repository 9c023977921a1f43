"""What the helper process tells the program: a few facts in shared memory, written as a whole."""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import Any

from fastiter._workers.shared_object import Shared, reserve_file

_BYTES = 1 << 16
_HEAD = struct.Struct("<II")


class Board:
    """Facts by name: `reason`, `nodes`, `warnings`. The helper writes them, and anyone reads."""

    def __init__(self) -> None:
        self._file: Shared[None] = reserve_file(_BYTES)

    def write(self, facts: dict[str, Any]) -> None:
        """Replace all facts."""
        text = json.dumps(facts).encode()
        if len(text) + _HEAD.size <= _BYTES:  # else the last ones stay
            os.pwrite(self._file.fd, _HEAD.pack(len(text), zlib.crc32(text)) + text, 0)

    def read(self) -> dict[str, Any]:
        """The facts written last; none before the first, and while others are being written."""
        record = os.pread(self._file.fd, _BYTES, 0)
        size, check = _HEAD.unpack_from(record)
        text = record[_HEAD.size : _HEAD.size + size]
        facts: dict[str, Any] = {}
        if size and zlib.crc32(text) == check:
            facts = json.loads(text)
        return facts

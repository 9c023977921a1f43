"""Serializers that snapshots go through, as strict as Chainer's."""

from __future__ import annotations

from typing import Any

import numpy as np


class Saver:
    """Keeps what it is given, as Chainer's DictionarySerializer does; cannot store None."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}

    def __call__(self, key: str, value: Any) -> Any:
        if value is None:
            raise TypeError(f"cannot store None under {key!r}")
        self.stored[key] = np.array(value)
        return value


class Loader:
    """Gives what is stored, as Chainer's NpzDeserializer does: arrays are overwritten in place."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self.stored = stored

    def __call__(self, key: str, value: Any) -> Any:
        stored = self.stored[key]
        if stored is None:
            return None
        if value is None:
            return np.asarray(stored)
        if isinstance(value, np.ndarray):
            np.copyto(value, stored)
            return value
        return type(value)(np.asarray(stored))


class LenientLoader(Loader):
    """Leaves alone what is not stored, as Chainer's does with ``strict=False``."""

    def __call__(self, key: str, value: Any) -> Any:
        return super().__call__(key, value) if key in self.stored else value

    def load(self, iterator: Any) -> None:
        iterator.serialize(self)

"""Datasets whose examples a test makes, or that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Calling:
    """Each example is what ``function(index)`` gives."""

    def __init__(self, function: Callable[[int], Any], size: int) -> None:
        self.function = function
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


class Failing:
    """Raises at some indices."""

    def __init__(self, errors: dict[int, BaseException], size: int = 8) -> None:
        self._errors = errors
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        if index in self._errors:
            raise self._errors[index]
        return index


class FailingTogether(Failing):
    """A list of examples fails as a whole, if one of them does."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]

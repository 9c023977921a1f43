"""Datasets whose examples fail."""

from __future__ import annotations


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

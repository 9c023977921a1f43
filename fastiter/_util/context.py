"""Context managers that are closed at the end of their ``with`` block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self as Self
else:
    Self = Any  # in hints that a program reads


class Closing:
    """A context manager that returns itself, and calls `close` at the end."""

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

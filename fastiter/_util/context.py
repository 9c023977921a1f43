"""Context managers that release what they hold at the end of their ``with`` block."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Managed:
    """A context manager that returns itself. A subclass defines ``_let_go``, the end of a block."""

    def _let_go(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._let_go()

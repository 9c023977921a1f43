"""Datasets and writers that hold files: closed where their ``with`` block ends."""

from __future__ import annotations

from fastiter._util.context import Managed


class Closing(Managed):
    """A context manager that gives itself and calls `close` at the end."""

    def close(self) -> None:
        """Let go of the files."""
        raise NotImplementedError

    def _let_go(self) -> None:
        self.close()

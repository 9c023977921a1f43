"""What iterators that stand for another one have in common."""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING, Any

from fastiter._util.context import Managed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self


class Wrapped(Managed):
    """Stands for an iterator: what it does not do itself, that one does.

    The iterator stays usable, and is closed by its own end or by ``finalize()``, not when this
    object goes.

    Parameters
    ----------
    iterator : iterator
        Gives batches.

    Raises
    ------
    TypeError
        If it is no iterator.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        if not hasattr(iterator, "__next__"):
            raise TypeError(
                "an iterator over batches is needed, such as fastiter.MultiprocessIterator, not "
                f"{type(iterator).__qualname__}, which has no __next__"
            )
        self._iterator = iterator

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # not there yet, or no more
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def next(self) -> Any:
        """Return the next batch; the same as ``next(iterator)``."""
        return self.__next__()

    def __bool__(self) -> bool:
        return bool(self._iterator)  # a generator has no length to go by

    def __len__(self) -> int:
        return len(self._iterator)  # type: ignore[arg-type]

    def serialize(self, serializer: Any) -> None:
        """Save the wrapped iterator's state to, or load it from, a serializer of Chainer's kind."""
        self._iterator.serialize(serializer)  # type: ignore[attr-defined]

    def finalize(self) -> None:
        """Finalize the wrapped iterator."""
        finalize = getattr(self._iterator, "finalize", None)
        if finalize is not None:
            finalize()

    def _let_go(self) -> None:
        self.finalize()

    def __del__(self) -> None:
        """Leave the wrapped iterator alone: others may use it."""

    def __copy__(self) -> Self:
        """Stand for a copy of the wrapped iterator."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _iterator=copy.copy(self._iterator))
        return other

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._iterator!r}>"


def library(name: str, function: str, remedy: str) -> Any:
    """Import a library that is no requirement of ours.

    Raises
    ------
    ImportError
        If it is missing, or does not work with what is installed; says what to install.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # Chainer's import raises AttributeError on a newer NumPy
        raise ImportError(
            f"fastiter.interop.{function} needs {name.partition('.')[0]}, whose import failed "
            f"({type(error).__name__}: {error}): {remedy}"
        ) from error

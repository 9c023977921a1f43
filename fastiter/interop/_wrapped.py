"""Common parts of the adapters: wrappers of iterators, nested structures, and optional imports."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, MutableMapping
from typing import Any

from fastiter._util.context import Self
from fastiter.dataset.iterator import Iterator


class Wrapped(Iterator):
    """Wraps an iterator, and delegates to it what the wrapper does not define.

    The iterator stays usable. Its own end or ``finalize()`` closes it, not the wrapper's deletion.
    """

    def __init__(self, iterator: Any) -> None:
        if not hasattr(iterator, "__next__"):
            raise TypeError(
                "expected an iterator over batches, such as fastiter.MultiprocessIterator, not "
                f"{type(iterator).__qualname__}, which has no __next__"
            )
        self._iterator = iterator

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # not set yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        return next(self._iterator)

    def __bool__(self) -> bool:
        return bool(self._iterator)  # __len__ would fail for a generator

    def __len__(self) -> int:
        return len(self._iterator)

    def serialize(self, serializer: Any) -> None:
        """Save the wrapped iterator's state to, or load it from, a serializer of Chainer's kind."""
        self._iterator.serialize(serializer)

    def finalize(self) -> None:
        """Finalize the wrapped iterator."""
        getattr(self._iterator, "finalize", lambda: None)()

    def __del__(self) -> None:
        """Leave the wrapped iterator open: it may be in use elsewhere."""

    def __copy__(self) -> Self:
        """Wrap a copy of the wrapped iterator."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _iterator=copy.copy(self._iterator))
        return other

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._iterator!r}>"


class EpochLoops(Wrapped):
    """A wrapper over which, with ``repeat=False``, each ``for`` is an epoch."""

    @property
    def iterator(self) -> Any:
        return self._iterator

    def __iter__(self) -> Any:
        """Begin an epoch, or continue from a loaded state; with ``repeat`` always continue."""
        inner = self._iterator
        begin_loop = getattr(inner, "_begin_loop", None)  # of an iterator of fastiter
        if begin_loop is not None:
            begin_loop(each_is_an_epoch=True)
        # Any other one only knows its end, by the attributes of Chainer's interface.
        elif getattr(inner, "repeat", True) is False and getattr(inner, "epoch", 0) > 0:
            self.reset()
        return _OneLoop(self)

    def close(self) -> None:
        """Finalize the wrapped iterator; the same as `finalize`."""
        self.finalize()


class _OneLoop(Wrapped):
    """The iterator of one ``for``. Its own ``iter()`` begins no epoch, so that ``for`` can follow
    ``batches = iter(loader); first = next(batches)``."""


def map_leaves(
    function: Callable[[Any], Any], value: Any, is_leaf: Callable[[Any], bool] = lambda _: False
) -> Any:
    """Apply ``function`` to all but tuples, lists and mutable mappings that are no leaves."""
    if not is_leaf(value):
        if isinstance(value, (tuple, list)):
            return sequence_like(value, [map_leaves(function, part, is_leaf) for part in value])
        if isinstance(value, MutableMapping):
            parts = {key: map_leaves(function, part, is_leaf) for key, part in value.items()}
            return mapping_like(value, parts)
    return function(value)


def sequence_like(value: Any, parts: list[Any]) -> Any:
    """A tuple or list of the class of ``value``, with ``parts``; a tuple that has these, itself."""
    if isinstance(value, list):
        other = copy.copy(value)  # with the attributes of a subclass
        other[:] = parts
        return other
    if all(a is b for a, b in zip(parts, value, strict=True)):
        return value
    try:
        return tuple.__new__(type(value), parts)  # its own constructor may take other arguments
    except TypeError:  # a class of C: torch.Size takes integers alone, one with fields anything
        return type(value)(parts) if hasattr(value, "n_fields") else tuple(parts)


def mapping_like(value: MutableMapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """A mapping of the type and attributes of ``value``, with ``parts``."""
    other = copy.copy(value)
    other.update(parts)
    return other


def library(name: str, function: str, remedy: str) -> Any:
    """Import an optional library; ImportError says what to install."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # Chainer's import raises AttributeError on a newer NumPy
        raise ImportError(
            f"fastiter.interop.{function} needs {name.partition('.')[0]}, but importing it failed "
            f"({type(error).__name__}: {error}): {remedy}"
        ) from error

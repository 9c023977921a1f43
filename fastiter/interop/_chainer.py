"""The adapter of iterators for Chainer: `as_chainer`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from fastiter.interop._wrapped import Wrapped, library

_REMEDY = "install chainer 7.8.1, which needs NumPy below 1.24: pip install chainer 'numpy<1.24'"


def as_chainer(iterator: Iterator[Any]) -> Any:
    """Wrap an iterator in an instance of Chainer's iterator class, which its updaters check for.

    ``StandardUpdater(as_chainer(iterator), optimizer)`` and ``Evaluator(as_chainer(iterator),
    model)`` then work as with a dict, ``{"main": iterator}``.

    Parameters
    ----------
    iterator : iterator
        An iterator of fastiter, or any other with the interface of Chainer's.

    Returns
    -------
    chainer.dataset.Iterator
        Has all attributes and methods of ``iterator``. Copies and pickles wrap those of
        ``iterator``; ``finalize()`` finalizes it. Chainer's own iterators are returned unchanged.

    Raises
    ------
    TypeError
        If ``iterator`` is no iterator.
    """
    base = library("chainer", "as_chainer", _REMEDY).dataset.Iterator
    return iterator if isinstance(iterator, base) else _wrapper_of(base)(iterator)


@functools.cache
def _wrapper_of(base: type) -> Any:
    """The class of wrappers, which needs Chainer's class."""

    class ChainerIterator(Wrapped, base):  # type: ignore[misc]
        """An iterator that is an instance of Chainer's class."""

        def __reduce__(self) -> tuple[Any, ...]:
            return as_chainer, (self._iterator,)

    return ChainerIterator

"""Batches as tensors of torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np

from fastiter.dataset.convert import concat_examples
from fastiter.interop._wrapped import Wrapped, library

_REMEDY = "install PyTorch, see https://pytorch.org/get-started (without a GPU: pip install torch)"


def as_torch(iterator: Iterator[Any]) -> TorchIterator:
    """Wrap an iterator in one that gives the same batches as tensors, without copying.

    ``for x, y in as_torch(MultiprocessIterator(dataset, 64, converter=concat_examples))``.

    Parameters
    ----------
    iterator : iterator
        One of fastiter, with ``converter=concat_examples`` or another converter, or any iterator
        over batches. Without a converter batches are lists of examples; these are joined field by
        field first, nested tuples and dicts too, and lists whose parts differ in shape.

    Returns
    -------
    TorchIterator

    Raises
    ------
    ImportError
        If torch is not installed.
    TypeError
        If ``iterator`` is none.
    """
    return TorchIterator(iterator)


class TorchIterator(Wrapped):
    """Gives the batches of an iterator as tensors; `as_torch` makes one.

    Arrays, in tuples, lists, dicts and other mutable mappings of any depth, become tensors that
    share their memory. The storage of a tensor keeps that memory, so it may be held as long as the
    array might be.

    - An array that torch cannot share is copied: one that is read-only, of a foreign byte order, or
      with negative strides.
    - An array that holds no numbers (strings, objects, times, structures), and whatever else is no
      array, stays as it is.
    - Arrays of other libraries, as CuPy's, go through DLPack, on their device.

    All attributes and methods are those of the wrapped iterator, ``iterator``. With
    ``repeat=False`` each ``for`` is an epoch, as with torch's DataLoader: it resets an iterator
    that has ended, and one of fastiter's whose last loop was left early. After a state was loaded
    (also in a copy, and after unpickling) the first ``for`` goes on from there, unless that is the
    end.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._torch = library("torch", "as_torch", _REMEDY)
        super().__init__(iterator)

    @property
    def iterator(self) -> Any:
        """The wrapped iterator."""
        return self._iterator

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, or go on from a loaded state; with ``repeat`` go on in any case."""
        inner = self._iterator
        # Whoever gave out the last batch knows whether a state was loaded since. An iterator that
        # is none of fastiter's tells only of its end, with the attributes of Chainer's.
        has_ended = getattr(inner, "repeat", True) is False and getattr(inner, "epoch", 0) > 0
        if getattr(inner, "_is_past_start", has_ended):
            self.reset()
        return _Loop(self)

    def __next__(self) -> Any:
        """Return the next batch, of tensors.

        Raises
        ------
        StopIteration
            At the end of the iteration.
        TypeError
            If an array's dtype is one of numbers that torch lacks.
        Exception
            What the wrapped iterator raises.
        """
        batch = next(self._iterator)
        if type(batch) is list and batch and getattr(self._iterator, "converter", None) is None:
            return self._joined(batch)
        return self._tensors(batch)

    def close(self) -> None:
        """Finalize the wrapped iterator; the same as `finalize`."""
        self.finalize()

    def __reduce__(self) -> tuple[Any, ...]:
        return as_torch, (self._iterator,)

    def _joined(self, examples: Sequence[Any]) -> Any:
        """Tensors of a list of examples."""
        first = examples[0]
        if isinstance(first, tuple):
            fields = [self._joined(values) for values in zip(*examples, strict=True)]
            return _tuple_like(first, fields)
        if isinstance(first, list) and _differ_in_shape(first):
            return [self._joined(values) for values in zip(*examples, strict=True)]
        if isinstance(first, MutableMapping):
            return _mapping_like(
                first, {key: self._joined([example[key] for example in examples]) for key in first}
            )
        if isinstance(first, self._torch.Tensor):
            return self._torch.stack(tuple(examples))
        numbers = np.ndarray, np.number, np.bool_, bool, int, float, complex, list
        if isinstance(first, numbers) or hasattr(first, "__dlpack__"):
            return self._tensors(concat_examples(list(examples)))
        return list(examples)

    def _tensors(self, value: Any) -> Any:
        """A batch, or a part of it, with tensors in the place of arrays."""
        if isinstance(value, np.ndarray):
            return self._tensor(value)
        if isinstance(value, tuple):
            return _tuple_like(value, [self._tensors(part) for part in value])
        if isinstance(value, list):
            return [self._tensors(part) for part in value]
        if isinstance(value, MutableMapping):
            return _mapping_like(value, {key: self._tensors(part) for key, part in value.items()})
        if hasattr(value, "__dlpack__") and not isinstance(value, self._torch.Tensor):
            return self._torch.from_dlpack(value)
        return value

    def _tensor(self, array: Any) -> Any:
        dtype = array.dtype
        if dtype.kind not in "biufc" or isinstance(array, np.ma.MaskedArray):
            return array
        if not dtype.isnative:
            array = array.astype(dtype.newbyteorder("="))
        elif not array.flags.writeable or any(
            step < 0 or step % dtype.itemsize for step in array.strides
        ):
            array = array.copy()
        try:
            return self._torch.from_numpy(array)
        except TypeError as error:
            raise TypeError(
                f"torch {self._torch.__version__} has no dtype for this array of shape "
                f"{array.shape} and dtype {array.dtype}: let the dataset or the converter give "
                "another, for example by array.astype(numpy.float32)"
            ) from error


class _Loop(Wrapped):
    """What a ``for`` asks for batches: it begins no epoch when it is asked for an iterator again,
    as ``for`` does after ``batches = iter(loader); first = next(batches)``."""


def _tuple_like(value: tuple[Any, ...], parts: list[Any]) -> Any:
    """A tuple of the same kind, if it is one with names."""
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _mapping_like(value: MutableMapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """A mapping of the same kind; what else it holds, as a default factory, goes along."""
    if type(value) is dict:
        return parts
    other = copy.copy(value)
    other.update(parts)
    return other


def _differ_in_shape(parts: list[Any]) -> bool:
    """Whether the parts of a list cannot be rows of one array."""
    try:
        return len({np.shape(part) for part in parts}) > 1
    except ValueError:  # a part is a list of lists that differ in length
        return True

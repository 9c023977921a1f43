"""The adapter of iterators for PyTorch: `as_torch`."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np

from fastiter.dataset.convert import concat_examples
from fastiter.interop._wrapped import EpochLoops, library, map_leaves, mapping_like, sequence_like

_REMEDY = "install PyTorch, see https://pytorch.org/get-started (without a GPU: pip install torch)"


def as_torch(iterator: Iterator[Any]) -> TorchIterator:
    """Wrap an iterator in one that returns the same batches as tensors, without copying.

    ``for x, y in as_torch(MultiprocessIterator(dataset, 64, converter=concat_examples))``.

    Parameters
    ----------
    iterator : iterator
        An iterator of fastiter, with ``converter=concat_examples`` or another converter, or any
        iterator over batches. Without a converter batches are lists of examples; these are joined
        field by field first, also in nested tuples and dicts, and in lists whose parts differ in
        shape.

    Raises
    ------
    TypeError
        If ``iterator`` is no iterator.
    """
    return TorchIterator(iterator)


class TorchIterator(EpochLoops):
    """Returns the batches of an iterator as tensors; `as_torch` creates it.

    Arrays in tuples, lists, dicts and other mutable mappings, at any depth, become tensors that
    share their memory. The storage of a tensor keeps that memory alive, as the array would.

    - An array that torch cannot share is copied: a read-only one, one of a foreign byte order, or
      one with negative strides.
    - An array without numbers (strings, objects, times, structures), and everything that is no
      array, stays unchanged.
    - Arrays of other libraries, such as CuPy, go through DLPack, on their device.

    All attributes and methods are those of the wrapped iterator, ``iterator``. With
    ``repeat=False`` each ``for`` is an epoch, as with torch's DataLoader: it resets an iterator
    that has ended, and an iterator of fastiter whose last loop was left early. After a state was
    loaded (also in a copy, and after unpickling) the first ``for`` continues from there, unless
    that is the end.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._torch = library("torch", "as_torch", _REMEDY)
        super().__init__(iterator)

    def __next__(self) -> Any:
        """Return the next batch, of tensors.

        Raises
        ------
        StopIteration
            At the end of the iteration.
        TypeError
            If torch lacks the dtype of an array of numbers.
        Exception
            Exceptions of the wrapped iterator.
        """
        batch = next(self._iterator)
        if type(batch) is list and batch and getattr(self._iterator, "converter", None) is None:
            return self._joined(batch)
        return map_leaves(self._tensor, batch)

    def __reduce__(self) -> tuple[Any, ...]:
        return as_torch, (self._iterator,)

    def _joined(self, examples: Sequence[Any]) -> Any:
        first = examples[0]
        if isinstance(first, tuple) or (isinstance(first, list) and _differ_in_shape(first)):
            fields = [self._joined(values) for values in zip(*examples, strict=True)]
            return sequence_like(first, fields)
        if isinstance(first, MutableMapping):
            return mapping_like(
                first, {key: self._joined([example[key] for example in examples]) for key in first}
            )
        if isinstance(first, self._torch.Tensor):
            return self._torch.stack(tuple(examples))
        numbers = np.ndarray, np.number, np.bool_, bool, int, float, complex, list
        if isinstance(first, numbers) or hasattr(first, "__dlpack__"):
            return map_leaves(self._tensor, concat_examples(list(examples)))
        return list(examples)

    def _tensor(self, value: Any) -> Any:
        """A leaf of a batch, as a tensor if it is an array of numbers."""
        if not isinstance(value, np.ndarray):
            if hasattr(value, "__dlpack__") and not isinstance(value, self._torch.Tensor):
                return self._torch.from_dlpack(value)
            return value
        array, dtype = value, value.dtype
        is_number = dtype.kind in "biufc" or dtype.isbuiltin == 2  # as those of ml_dtypes
        if not is_number or isinstance(array, np.ma.MaskedArray):
            return array
        if not (dtype.isnative and array.flags.writeable) or any(
            step < 0 or step % dtype.itemsize for step in array.strides
        ):
            array = array.astype(dtype.newbyteorder("="), "C")
        try:
            return self._torch.from_numpy(array)
        except TypeError as error:
            raise TypeError(
                f"torch {self._torch.__version__} takes no array of shape "
                f"{array.shape} and dtype {array.dtype}: let the dataset or the converter return "
                "another dtype, for example by array.astype(numpy.float32)"
            ) from error


def _differ_in_shape(parts: list[Any]) -> bool:
    """Whether the parts of a list cannot be rows of one array."""
    try:
        return len({np.shape(part) for part in parts}) > 1
    except ValueError:  # a part is a list of lists that differ in length
        return True

"""The adapter of PyTorch's datasets: `from_torch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._fetch.dataset_access import Columns, SourceColumn
from fastiter._util import torch_tensors
from fastiter.dataset.mixin import DatasetMixin
from fastiter.interop._torch import _REMEDY
from fastiter.interop._wrapped import library, map_leaves


def from_torch(dataset: Any) -> Any:
    """Make a dataset of arrays from a torch dataset.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        Map-style: with ``__getitem__`` or ``__getitems__``, and ``__len__``.

    Returns
    -------
    dataset
        Tensors in its examples, in tuples, lists, dicts and other mutable mappings at any depth,
        become NumPy arrays that share their memory, 0-d tensors NumPy scalars; everything else is
        unchanged. It has ``__getitems__`` if ``dataset`` does. A ``TensorDataset``, and a
        ``Subset`` of one, become columns, which are gathered without making examples.

    Raises
    ------
    TypeError
        If it is an ``IterableDataset``, or has no length or no indexing. Later, if NumPy has no
        array for a tensor of an example, such as one of bfloat16.
    """
    data = library("torch.utils.data", "from_torch", _REMEDY)
    name = type(dataset).__qualname__
    if isinstance(dataset, data.IterableDataset):
        raise TypeError(
            f"{name} is an IterableDataset, whose examples have no indices: write a function for "
            "each part of it that returns an iterator, for fastiter.reader.multiprocess_reader, or "
            "read the dataset into a list"
        )
    if not hasattr(dataset, "__len__") or not (
        hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    ):
        raise TypeError(f"a map-style dataset needs __len__ and __getitem__, but {name} lacks one")
    columns = _columns(dataset, data)
    if columns is not None:
        return columns
    return (_Batched if _gives_many(dataset, data) else _Single)(dataset)


def _columns(dataset: Any, data: Any) -> _Tensors | None:
    """The columns of a dataset of tensors; None for any other dataset."""
    if type(dataset) is data.TensorDataset:
        arrays = [torch_tensors.array_of(tensor.detach()) for tensor in dataset.tensors]
        found = [array for array in arrays if array is not None]
        return _Tensors(tuple(found)) if arrays and len(found) == len(arrays) else None
    if type(dataset) is data.Subset:
        whole = _columns(dataset.dataset, data)
        return None if whole is None else whole.part(dataset.indices)
    return None


def _gives_many(dataset: Any, data: Any) -> bool:
    """Whether ``__getitems__`` exists and does more than fetch one example after the other."""
    if type(dataset) is data.Subset:
        return _gives_many(dataset.dataset, data)
    return callable(getattr(dataset, "__getitems__", None))


class _Tensors(DatasetMixin):
    """A TensorDataset as arrays of the same length; ``rows`` are its examples, None means all."""

    def __init__(
        self, arrays: tuple[npt.NDArray[Any], ...], rows: npt.NDArray[np.int64] | None = None
    ) -> None:
        self._arrays = arrays
        self._rows = rows

    def part(self, indices: Any) -> _Tensors | None:
        """The examples at ``indices``; None if these are not integers within its length."""
        rows = np.asarray(indices)
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) == 0:
            return None
        size = len(self)
        if rows.min() < -size or rows.max() >= size:
            return None
        rows = rows.astype(np.int64)
        rows[rows < 0] += size
        return _Tensors(self._arrays, rows if self._rows is None else self._rows[rows])

    def __len__(self) -> int:
        return len(self._arrays[0] if self._rows is None else self._rows)

    def get_example(self, i: int) -> tuple[Any, ...]:
        row = i if self._rows is None else self._rows[i]
        return tuple(array[row] for array in self._arrays)

    def __fastiter_columns__(self) -> Columns:
        keys = tuple(map(str, range(len(self._arrays))))
        columns = tuple(SourceColumn(array, self._rows) for array in self._arrays)
        return Columns(tuple, keys, columns, views=True)


class _Single:
    """A dataset of torch that returns one example per call."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return map_leaves(_array, self.dataset[index])


class _Batched(_Single):
    """A dataset of torch that returns many examples per call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [map_leaves(_array, example) for example in self.dataset.__getitems__(indices)]


def _array(value: Any) -> Any:
    """A leaf of an example, as an array if it is a tensor."""
    kind = torch_tensors.tensor_type()
    if kind is None or not isinstance(value, kind):
        return value
    array = torch_tensors.as_array(value)
    return array[()] if array.ndim == 0 else array

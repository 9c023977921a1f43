"""Tensors of torch and memory maps of NumPy in examples: stored as plain arrays that share their
memory, delivered as what they were.

torch is not imported here to recognise its tensors: without it there are none. Only a process that
receives a pickled tensor imports it.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._util.loaded import loaded

NONE, TENSOR, MEMMAP = range(3)


def arrays_of(values: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """The values as plain arrays that share their memory, and their subtype; other values, or mixed
    ones, unchanged."""
    kind = type(values[0])
    if kind is np.memmap:
        if all(type(value) is np.memmap for value in values):
            return [value.view(np.ndarray) for value in values], MEMMAP
    elif kind is loaded("torch", "Tensor"):
        arrays = [array_of(value) for value in values]
        if all(array is not None for array in arrays):
            return arrays, TENSOR
    return values, NONE


def unwrap(values: Sequence[Any]) -> Sequence[Any]:
    """The values, with tensors of any kind and memory maps as plain arrays.

    TypeError if NumPy has no array for a tensor.
    """
    arrays, subtype = arrays_of(values)
    tensor = loaded("torch", "Tensor")
    if subtype == NONE and isinstance(values[0], tensor):
        return [as_array(v) if isinstance(v, tensor) else v for v in values]
    return arrays


def wrap(array: npt.NDArray[Any], subtype: int) -> Any:
    """A tensor or memory map that shares the array's memory and keeps it alive.

    The memory map has no file, as after unpickling: writes to it stay in memory.
    """
    return tensor_of(array) if subtype == TENSOR else array.view(np.memmap)


# ---- tensors -------------------------------------------------------------------------------------


def array_of(value: Any) -> npt.NDArray[Any] | None:
    """An ordinary tensor as an array that shares its memory; None for everything else.

    So for other types, subclasses (a Parameter), and tensors that require gradients or have
    attributes, are not dense, not in the host's memory, lazily conjugated, or of a dtype that NumPy
    lacks.
    """
    if type(value) is not loaded("torch", "Tensor") or value.__dict__:
        return None
    try:
        array: npt.NDArray[Any] = value.numpy()
    except (RuntimeError, TypeError):
        return None
    return array


def as_array(tensor: Any) -> npt.NDArray[Any]:
    """Any tensor as an array that shares its memory if possible.

    Gradients are dropped; a lazily conjugated or negated tensor is copied. TypeError if NumPy lacks
    the dtype, or the tensor is not dense or not in the host's memory.
    """
    try:
        array: npt.NDArray[Any] = tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"NumPy cannot represent a tensor with {tensor.dtype}, {tensor.layout} and device "
            f"{str(tensor.device)!r}: convert it in the dataset by .float(), .to_dense() or "
            ".cpu(), or pass the dataset itself to the iterator, without a converter, and let "
            f"fastiter.interop.as_torch join the tensors ({error})"
        ) from error
    return array


def tensor_of(array: npt.NDArray[Any]) -> Any:
    """An array as a tensor that shares its memory and keeps it alive. Read-only tensors do not
    exist: such an array is copied."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy("K"))


def _viewed(array: npt.NDArray[Any], dtype: Any) -> Any:
    return tensor_of(array).view(dtype)


def _reduce(tensor: Any, mapped: Callable[[Any], Any] | None = None) -> Any:
    """Pickle a tensor as an array of its elements, whose memory may stay outside of the pickle.

    torch itself pickles the whole storage, of which a tensor like ``data[7]`` is a small part, and
    copies it twice more. ``mapped`` returns None for an array that is no part of a mapped file.
    """
    if tensor.is_nested:
        return tensor.__reduce_ex__(5)
    dtype, array = None, array_of(tensor)
    if array is None and _is_nothing_but_floats(tensor):
        torch = sys.modules["torch"]
        dtype = tensor.dtype
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
        array = tensor.view(integers[tensor.element_size()]).numpy()
    is_mapped = mapped is not None and array is not None and mapped(array) is not None
    # torch does not load its own pickles of uint16 to uint64.
    is_wide = array is not None and array.dtype.kind == "u" and array.itemsize > 1
    if array is None or (_has_overlaps(tensor) and not is_mapped and not is_wide):
        return tensor.__reduce_ex__(5)
    return (tensor_of, (array,)) if dtype is None else (_viewed, (array, dtype))


def reduce_subclass(value: Any) -> Any:
    """Pickle a tensor of a subclass likewise; None for everything else, and for a class that says
    itself how it is pickled."""
    plain = loaded("torch", "Tensor")
    kind = type(value)
    if (
        not isinstance(value, plain)
        or kind is plain
        or kind.__reduce_ex__ is not plain.__reduce_ex__
        or kind.__torch_dispatch__ is not plain.__torch_dispatch__
        or value.requires_grad
    ):
        return None
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunctionSubclass():
        rebuild, arguments = _reduce(value.as_subclass(plain))
        state = torch._utils._get_obj_state(value)
    return torch._tensor._rebuild_from_type_v2, (rebuild, kind, arguments, state)


def _has_overlaps(tensor: Any) -> bool:
    """Whether elements share memory, as after ``expand``."""
    if tensor.layout is not sys.modules["torch"].strided or tensor.is_contiguous():
        return False
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(tensor.numel() > 1 + last)


def _is_nothing_but_floats(tensor: Any) -> bool:
    """Whether NumPy lacks only the dtype, as with bfloat16 and complex32."""
    torch = sys.modules["torch"]
    return bool(
        (tensor.dtype.is_floating_point or tensor.dtype is torch.complex32)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.__dict__)
    )


def reducers(mapped: Callable[[Any], Any] | None = None) -> dict[Any, Callable[[Any], Any]]:
    """Entries for a pickler's dispatch table; ``mapped`` as in `_reduce`."""
    tensor, storage = loaded("torch", "Tensor"), loaded("torch", "UntypedStorage")
    if not tensor:
        return {}
    return {
        tensor: functools.partial(_reduce, mapped=mapped),
        storage: _reduce_storage,
        loaded("torch", "TypedStorage"): _reduce_typed_storage,
    }


def _reduce_storage(storage: Any) -> Any:
    """Pickle a storage as a tensor of its bytes: torch does not load its own pickle of it."""
    torch = sys.modules["torch"]
    if storage.device.type != "cpu":
        return storage.__reduce_ex__(5)
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    return operator.methodcaller("untyped_storage"), (whole,)


def _reduce_typed_storage(storage: Any) -> Any:
    """Pickle the storage in torch's own pickle of a tensor likewise: torch adds an address to it,
    so that pickles of equal tensors differ."""
    whole = storage._untyped_storage
    if whole.device.type != "cpu":
        return storage.__reduce_ex__(5)
    kind: Any = type(storage)
    return functools.partial(kind, wrap_storage=whole, dtype=storage.dtype, _internal=True), ()


def shared_address(value: Any) -> int | None:
    """Address of a tensor or storage whose memory torch shares with other processes; None for
    memory of this process alone, and for other objects."""
    storage = getattr(value, "_untyped_storage", value)  # a typed one warns of itself
    try:
        if not storage.is_shared():
            return None
        return 0 if storage.device.type != "cpu" else int(storage.data_ptr())
    except (AttributeError, RuntimeError, NotImplementedError):  # a sparse tensor has no storage
        return None

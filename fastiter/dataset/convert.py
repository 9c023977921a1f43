"""Converters of batches of examples to the arrays of a training step."""

from __future__ import annotations

import contextlib
import functools
import operator
import pickle
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastiter._collate import collate
from fastiter._collate.padding import Padding
from fastiter._device import devices

if TYPE_CHECKING:
    from fastiter._device.transfer import AsyncTransfer

__all__ = ["ConcatWithAsyncTransfer", "Converter", "concat_examples", "converter", "to_device"]

_NO_PADDING = Padding()


def concat_examples(
    batch: Sequence[Any],
    device: Any = None,
    padding: Any = None,
    *,
    copy: bool = False,
    max_length: Any = None,
    pad_to_multiple: Any = None,
    return_lengths: Any = False,
) -> Any:
    """Convert a batch to arrays, one for each field of its examples.

    Examples are arrays, tuples of arrays or dicts of arrays, all with the same fields; numbers and
    (nested) lists of numbers count as arrays. Each field becomes one array with a new first axis of
    the length of the batch. A list is one array: it is never split into fields.

    In a batch that an iterator has delivered from shared memory, a field that has not been changed
    is returned without a copy: the result and the examples then share memory.

    Options that are a tuple or dict have a value for each field; None, or a missing key, leaves the
    field alone. A single length, or True, applies to each field with an axis; a single multiple to
    those of them that have a fill value.

    Parameters
    ----------
    batch : sequence
        Examples, at least one.
    device : device, optional
        Device that the arrays are sent to; see `to_device`.
    padding : object, tuple or dict, optional
        Fill value for examples that are smaller than the largest one. A padded field has the dtype
        of the first example, a padded field of lists the promoted one. Without padding, shapes must
        be equal, and dtypes are promoted.
    copy : bool
        Whether to copy always, so that the result never shares memory with the examples.
    max_length : int, tuple or dict, optional
        Maximal length of an example's first axis; the rest is cut off, before padding.
    pad_to_multiple : int, tuple or dict, optional
        Number whose multiple the first axis of padded fields becomes, after ``max_length``: with
        ``max_length=100, pad_to_multiple=64`` it has length 64 or 128. 1 is as None. In an iterator
        the padding may be that of an `ArrowDataset` or a `TokenDataset`.
    return_lengths : bool, tuple or dict
        Whether to return the lengths of the examples' first axes, too, after ``max_length`` and
        before padding: int64 (len(batch),), on the device of the field. They follow the fields of a
        tuple, have the keys ``name_lengths`` in a dict, and make a pair (array, lengths) of a
        single array.

    Raises
    ------
    ValueError
        If the batch is empty, shapes differ without padding, an example has a field that the first
        one lacks, or an option does not fit its field.
    IndexError, KeyError
        If an example or a tuple of paddings lacks a field of the first example, or a dict of
        paddings has an unknown key.
    TypeError
        If a field cannot become an array (strings, None), or an option has a wrong type.

    Examples
    --------
    >>> concat_examples([(1.0, 3), (2.0, 4)])
    (array([1., 2.]), array([3, 4]))
    >>> tokens = [np.array([5, 6, 7]), np.array([8])]
    >>> concat_examples(tokens, padding=0, pad_to_multiple=4, return_lengths=True)
    (array([[5, 6, 7, 0],
           [8, 0, 0, 0]]), array([3, 1]))
    """
    target = None if device is None else devices.resolve(device)
    rules = _NO_PADDING
    if (
        padding is not None
        or max_length is not None
        or pad_to_multiple is not None
        or return_lengths is not False
    ):
        rules = Padding(padding, max_length, pad_to_multiple, return_lengths).for_dataset()
    arrays = collate.collate(batch, rules, copy=copy)
    return devices.send_batch(target, arrays)


def to_device(device: Any, x: Any) -> Any:
    """Send an array, or a list or tuple of arrays, to a device, unless it is there already.

    Parameters
    ----------
    device : None, int, str, cupy.cuda.Device or device object
        Device; None: ``x`` stays where it is. The host: a negative int, ``'cpu'``, ``'@numpy'``. A
        GPU: its number, ``'cuda'`` (the current one), ``'cuda:1'``, ``'@cupy:1'``. The ``send`` of
        an object with ``xp`` and ``send`` is called, such as those of `converter` and Chainer.
    x : array, number, None, or list or tuple of these

    Raises
    ------
    TypeError, ValueError, RuntimeError
        If ``device`` is not a device, or a GPU without CuPy, or ``x`` is not an array.
    """
    target = devices.resolve(device)
    return x if target is None else target.send(x)


class Converter(ABC):
    """Base class of converters, which make the input of a training step from a batch."""

    @abstractmethod
    def __call__(self, batch: Any, device: Any) -> Any:
        """Convert the batch of an iterator, usually a list, and send the result to ``device``."""


class ConcatWithAsyncTransfer(Converter):
    """A converter like `concat_examples` that does not wait for the copy to a GPU.

    It joins a batch in pinned memory, and copies it to the GPU on a stream of its own, while the
    GPU works on the batch before. The stream that uses the arrays waits for the copy, so they can
    be used at once; neither the host nor the rest of the device waits. Each call returns new
    arrays. Their memory is reused when they are gone, and the work that the compute stream was
    given until the next call has ended.

    It keeps at most three pinned buffers of the size of a batch for each GPU. A call waits for the
    oldest copy if none of the three has ended. On the GPU, it uses the memory of about two
    batches, besides the arrays that you hold. When the object is deleted, it waits for its last
    copies and returns the memory to CuPy.

    It may be called for several GPUs, and from several threads. With CUDA's per-thread default
    streams, each thread needs its own object.

    Parameters
    ----------
    stream : cupy.cuda.Stream, optional
        The stream of the copies. By default a non-blocking stream for each GPU.
    compute_stream : cupy.cuda.Stream, optional
        The stream that uses the arrays. By default the stream that is current at the call. You have
        to order kernels on any other stream, also before you drop the arrays. As an attribute, it
        may be set between two calls.
    """

    def __init__(self, stream: Any = None, compute_stream: Any = None) -> None:
        self._stream = stream
        self.compute_stream = compute_stream
        self._transfers: dict[int, AsyncTransfer] = {}
        weakref.finalize(self, _close_all, self._transfers)

    def __call__(self, batch: Sequence[Any], device: Any = None, padding: Any = None) -> Any:
        """Join a batch as `concat_examples` does, and start its copy if the device is a GPU.

        Examples that are on a GPU already are joined there.

        Raises
        ------
        RuntimeError, ValueError
            If CuPy or the GPU is missing, the object has used a GPU in the parent from which this
            process was forked, or a stream belongs to another device.
        """
        target = None if device is None else devices.resolve(device)
        if not isinstance(target, devices.GpuDevice):
            return concat_examples(batch, target, padding)
        from fastiter._device.transfer import AsyncTransfer

        transfer = self._transfers.get(target.id)
        if transfer is None:
            transfer = AsyncTransfer(target.id, self._stream)
            transfer = self._transfers.setdefault(target.id, transfer)
        return transfer.send(concat_examples(batch, None, padding), self.compute_stream)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._stream, self.compute_stream)


def _close_all(transfers: dict[int, AsyncTransfer]) -> None:
    for transfer in transfers.values():
        transfer.close()


class _FunctionConverter(Converter):
    """Calls a function with a device object as its second argument, ``device``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"converter() decorates a callable, not {function!r}")
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            args = (args[0], devices.resolve(args[1]), *args[2:])
        elif "device" in kwargs:
            kwargs["device"] = devices.resolve(kwargs["device"])
        return self._function(*args, **kwargs)

    def __reduce__(self) -> str:
        # The decorator has replaced the function by this object: pickle it by the name.
        name = str(self.__dict__.get("__qualname__", self._function))
        with contextlib.suppress(AttributeError, KeyError):
            if operator.attrgetter(name)(sys.modules[self.__module__]) is self:
                return name
        raise pickle.PicklingError(
            f"the converter {name} cannot be pickled, because its name does not lead to it: "
            "decorate a function at module level or derive from Converter"
        )


def converter() -> Callable[[Callable[..., Any]], Converter]:
    """Make a converter from a function ``(batch, device)``; use it as ``@converter()``.

    The function receives None or an object with ``xp`` (the module of the arrays there) and
    ``send(arrays)``, even if the caller passes an integer or a string.
    """
    return _FunctionConverter

"""Converters: from a batch of examples to what a training step takes."""

from __future__ import annotations

import functools
import pickle
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastiter import _device
from fastiter._collate import collate
from fastiter._collate.padding import Padding

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
    """Make arrays of a batch: one for each field of its examples.

    Examples are arrays, tuples of arrays or dicts of arrays; numbers and (nested) lists of
    numbers count as arrays. Each field becomes one array with a new first axis, as long as the
    batch. A list is never split into fields: it is one array. All examples have the same fields.

    Of a batch that an iterator delivered from shared memory, a field whose examples are as
    they were delivered is handed over without copying: the result and the examples then share
    memory. ``copy=True`` always copies.

    Parameters
    ----------
    batch : sequence
        Examples, at least one.
    device : device, optional
        Where the arrays go; see `to_device`. None leaves them where the examples are.
    padding : object, tuple or dict, optional
        Fill value for what lies outside of an example's shape, if shapes differ; for tuples
        and dicts also one per field, as a tuple or a dict; None, or a key left out, for a field
        that is not padded. The dtype of a padded field is that of the first example, of lists
        the promoted one. Without padding shapes must be equal, and dtypes are promoted.
    copy : bool
        Whether the result must never share memory with the examples.
    max_length : int, tuple or dict, optional
        Most entries of an example's first axis; those behind are cut off, before padding. An int
        counts for every field that has an axis, so labels that are numbers are left alone. A
        tuple or dict has one per field, None or a key left out being no limit.
    pad_to_multiple : int, tuple or dict, optional
        Round the first axis of padded fields up to a multiple of this, with the fill value. An
        int counts for every field that has an axis and a fill value. It comes last: with
        ``max_length=100, pad_to_multiple=64`` the axis is 64 or 128 long.
    return_lengths : bool, tuple or dict
        Also return how long the first axis of each example was, after ``max_length`` and before
        padding: int64 (len(batch),), on the device of the field. True counts for every field
        that has an axis. Behind a tuple's fields the lengths follow in their order; a dict gets
        them as ``name_lengths``; of plain arrays a pair (array, lengths) is made.

    Returns
    -------
    array, tuple of arrays or dict of arrays
        Each of shape (len(batch), ...).

    Raises
    ------
    ValueError
        If the batch is empty, shapes do not fit, an example has a field that the first one lacks,
        the padding is NaN, infinite or out of range for
        an integer dtype, or an option is given for a field that it cannot apply to.
    IndexError, KeyError
        If an example, or a tuple of paddings, lacks a field that the first example has, or a dict
        of paddings has a key that is none of them.
    TypeError
        If a field cannot be made an array, as strings or None; or ``device`` is none; or an
        option is of a wrong type.
    RuntimeError
        If ``device`` is a GPU and CuPy is not installed.

    Examples
    --------
    >>> concat_examples([(1.0, 3), (2.0, 4)])
    (array([1., 2.]), array([3, 4]))
    >>> tokens = [np.array([5, 6, 7]), np.array([8])]
    >>> concat_examples(tokens, padding=0, pad_to_multiple=4, return_lengths=True)
    (array([[5, 6, 7, 0],
           [8, 0, 0, 0]]), array([3, 1]))
    """
    target = None if device is None else _device.resolve(device)
    rules = _NO_PADDING
    if (
        padding is not None
        or max_length is not None
        or pad_to_multiple is not None
        or (return_lengths is not False)
    ):
        rules = Padding(padding, max_length, pad_to_multiple, return_lengths)
    arrays = collate.collate(batch, rules, copy=copy)
    if target is None:
        return arrays
    if isinstance(arrays, dict):
        return {key: target.send(array) for key, array in arrays.items()}
    return target.send(arrays)


def to_device(device: Any, x: Any) -> Any:
    """Send an array, or a list or tuple of arrays, to a device.

    Parameters
    ----------
    device : None, int, str, cupy.cuda.Device or device object
        None leaves ``x`` where it is. The host: a negative integer, ``'cpu'``, ``'@numpy'``. A
        GPU: its number, ``'cuda'`` (the current one), ``'cuda:1'``, ``'@cupy:1'``. Objects with
        ``xp`` and ``send``, like those of `converter` and of Chainer, do it themselves.
    x : array, number, None, or list or tuple of these
        What to send.

    Returns
    -------
    array, None, or list or tuple of these
        ``x`` itself where it is on the device already.

    Raises
    ------
    TypeError, ValueError
        If ``device`` names no device, or ``x`` is no array.
    RuntimeError
        If ``device`` is a GPU and CuPy is not installed.
    """
    return _device.send(device, x)


class Converter(ABC):
    """Base class of converters: callables that make of a batch what a training step takes."""

    @abstractmethod
    def __call__(self, batch: Any, device: Any) -> Any:
        """Convert ``batch`` and send the result to ``device``.

        Parameters
        ----------
        batch : object
            What an iterator gives, usually a list of examples.
        device : device or None
            Where the result belongs; None leaves it where it is.
        """


class ConcatWithAsyncTransfer(Converter):
    """`concat_examples` that does not wait for the GPU: a converter for updaters.

    A batch of the host is joined, put into pinned memory, and copied to the GPU on a stream of its
    own, while the GPU goes on with the batch before. The stream that uses the arrays waits for the
    copy, so they can be used at once; neither the host nor the rest of the device waits. Each call
    returns new arrays, whose memory is used again only when they are gone and the work that was
    given to the compute stream until the next call has ended.

    It keeps at most three pinned buffers, each the size of a batch, for each GPU; a caller that
    is so far ahead of the GPU that copies out of all three are still to come waits for the oldest.
    On the GPU, besides the arrays that you hold, the memory of about two batches is in use. When
    the object goes, it waits for its last copies and gives all of that back to CuPy.

    It may be called for several GPUs, and from several threads. Where they use CUDA's per-thread
    default streams, each thread needs an object of its own.

    Parameters
    ----------
    stream : cupy.cuda.Stream, optional
        Where copies run. By default on a non-blocking stream, one for each GPU.
    compute_stream : cupy.cuda.Stream, optional
        Where the arrays are used. By default the stream that is current at the call. A kernel on
        any other stream has to be ordered by you, before the arrays are dropped too.

    Attributes
    ----------
    compute_stream : cupy.cuda.Stream or None
        As above; counts from the next call on when set.
    """

    def __init__(self, stream: Any = None, compute_stream: Any = None) -> None:
        self._stream = stream
        self.compute_stream = compute_stream
        self._transfers: dict[int, AsyncTransfer] = {}
        weakref.finalize(self, _close_all, self._transfers)

    def __call__(self, batch: Sequence[Any], device: Any = None, padding: Any = None) -> Any:
        """Join a batch, and begin to copy it if it goes to a GPU.

        Parameters
        ----------
        batch, padding
            See `concat_examples`.
        device : device, optional
            See `to_device`. With None, the host, or a device object of another library this is
            `concat_examples`.

        Returns
        -------
        array, tuple of arrays or dict of arrays
            Each of shape (len(batch), ...). Examples that are on a GPU already are joined there.

        Raises
        ------
        RuntimeError
            If ``device`` is a GPU, and CuPy or the GPU is missing, or this process was forked from
            one in which the object has used a GPU.
        ValueError
            If a stream belongs to another device; else as `concat_examples`.
        """
        target = None if device is None else _device.resolve(device)
        if not isinstance(target, _device.GpuDevice):
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
    """A function with its device argument, the second one, made a device object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"converter() decorates a callable, not {function!r}")
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            args = (args[0], _device.resolve(args[1]), *args[2:])
        elif "device" in kwargs:
            kwargs["device"] = _device.resolve(kwargs["device"])
        return self._function(*args, **kwargs)

    def __reduce__(self) -> str:
        # The decorator has put this object in the place of the function: pickle it by that name.
        module, name = self.__dict__.get("__module__"), self.__dict__.get("__qualname__")
        found: Any = sys.modules.get(module) if module else None
        for part in (name or "").split("."):
            found = getattr(found, part, None)
        if name is None or found is not self:
            raise pickle.PicklingError(
                f"the converter {name or self._function!r} cannot be pickled, since it is not "
                "found under its name: decorate a function at module level or derive from Converter"
            )
        return str(name)


def converter() -> Callable[[Callable[..., Any]], Converter]:
    """Make a converter of a function ``(batch, device)``; use it as ``@converter()``.

    The function gets its device as None or as an object with ``xp`` (the module of the arrays
    there) and ``send(arrays)``, whatever a caller passes: an integer, a string, and so on.

    Returns
    -------
    callable
        Turns a function into a `Converter`; raises TypeError for what is not callable.
    """
    return _FunctionConverter

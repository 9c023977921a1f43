"""Converters: from a batch of examples to what a training step takes."""

from __future__ import annotations

import functools
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from fastiter import _collate, _device

__all__ = ["Converter", "concat_examples", "converter", "to_device"]


def concat_examples(
    batch: Sequence[Any], device: Any = None, padding: Any = None, *, copy: bool = False
) -> Any:
    """Make arrays of a batch: one for each field of its examples.

    Examples are arrays, tuples of arrays or dicts of arrays; numbers and (nested) lists of
    numbers count as arrays. Each field becomes one array with a new first axis, as long as the
    batch. A list is never split into fields: it is one array.

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
        and dicts also one per field, as a tuple or a dict. The dtype of a padded field is that
        of the first example. Without padding shapes must be equal, and dtypes are promoted.
    copy : bool
        Whether the result must never share memory with the examples.

    Returns
    -------
    array, tuple of arrays or dict of arrays
        Each of shape (len(batch), ...).

    Raises
    ------
    ValueError
        If the batch is empty, or shapes do not fit.
    IndexError, KeyError
        If an example, or the padding, lacks a field that the first example has.
    TypeError
        If a field cannot be made an array, as strings or None; or ``device`` is none.
    RuntimeError
        If ``device`` is a GPU and CuPy is not installed.

    Examples
    --------
    >>> concat_examples([(1.0, 3), (2.0, 4)])
    (array([1., 2.]), array([3, 4]))
    """
    target = _device.resolve(device)
    arrays = _collate.collate(batch, padding, copy=copy)
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

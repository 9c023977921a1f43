"""The adapter of iterators for JAX: `as_jax`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from fastiter._util.failures import STOPS
from fastiter.dataset.convert import concat_examples
from fastiter.interop._wrapped import EpochLoops, library, map_leaves
from fastiter.iterators._base import PlannedIterator

_REMEDY = "install JAX, see https://docs.jax.dev (without a GPU: pip install jax)"


def as_jax(iterator: Iterable[Any], sharding: Any = None) -> JaxIterator:
    """Wrap an iterator in one that returns its batches as `jax.Array`, transferred one ahead.

    ``for x, y in as_jax(MultiprocessIterator(dataset, 64, converter=concat_examples))``.

    Parameters
    ----------
    iterator : iterator or iterable
        An iterator of fastiter. Without a converter its batches are lists of examples;
        `concat_examples` joins these first. Or any other iterator or iterable over batches of
        arrays, such as a `fastiter.torch.DataLoader`, that does not write into a batch it has
        returned; its batches are transferred when they are asked for, not ahead.
    sharding : jax.sharding.Sharding, optional
        Layout of the global arrays over devices, usually a ``NamedSharding`` that divides
        the first axis. Each process gives its own part of the batch, of the same length in all
        processes, as to ``jax.make_array_from_process_local_data``. None: arrays of this process,
        on JAX's default device.

    Raises
    ------
    TypeError
        If ``iterator`` cannot be iterated over, or ``sharding`` is no ``Sharding``.
    """
    return JaxIterator(iterator, sharding)


class JaxIterator(EpochLoops):
    """Returns the batches of an iterator as arrays of JAX; `as_jax` creates it.

    Arrays in tuples, lists, dicts and other mutable mappings, at any depth, become `jax.Array`.

    - Unless ``jax_enable_x64`` is set, JAX narrows numbers of 64 bits to 32, without a warning.
    - An array without numbers (strings, objects, times, structures), and everything that is no
      array, stays unchanged.
    - Arrays of other libraries, such as CuPy and torch, go through DLPack.
    - An array never changes. On the CPU it may share the memory of the batch, which it then keeps
      alive; a copy to a device keeps that memory until the copy has ended.

    All attributes and methods are those of the wrapped iterator, ``iterator``, or loader. They tell
    of the batch that was returned last, not of the one ahead, and so does a saved state. Each
    ``for`` is an epoch by the rules of `TorchIterator`; over a loader, an iteration of its own.
    """

    def __init__(self, iterator: Iterable[Any], sharding: Any = None) -> None:
        self._jax = library("jax", "as_jax", _REMEDY)
        if not isinstance(sharding, (self._jax.sharding.Sharding, type(None))):
            raise TypeError(
                "sharding must be a jax.sharding.Sharding, such as NamedSharding(mesh, "
                f"PartitionSpec('data')) or SingleDeviceSharding(device), not {sharding!r}"
            )
        self._sharding = sharding
        # The batch after the one returned last: of the iterator, and as arrays of JAX.
        self._ahead: tuple[Any, Any] = None, None
        if isinstance(iterator, Iterable):
            self._iterator: Any = iterator
        else:
            super().__init__(iterator)

    def __iter__(self) -> Any:
        if not hasattr(self._iterator, "__next__"):
            return JaxIterator(iter(self._iterator), self._sharding)
        return super().__iter__()

    def __next__(self) -> Any:
        """Return the next batch, of arrays of JAX.

        Of an iterator of fastiter, fetch also the batch after it, and begin its transfer. Blocks
        until both are there on the host, not until they are on the devices.

        Raises
        ------
        StopIteration
            At the end of the iteration.
        TypeError
            If JAX lacks the dtype of an array of numbers.
        ValueError
            If an array cannot be laid out as ``sharding`` says.
        Exception
            Exceptions of the wrapped iterator. All errors come with the call for their own batch,
            and the next call continues with the following one.
        """
        inner = self._iterator
        if not isinstance(inner, PlannedIterator):
            return map_leaves(self._array, next(inner))
        with inner._lock:
            before = inner._planner.snapshot()
            batch = next(inner)
            try:
                (following, sent), self._ahead = self._ahead, (None, None)
                if following is not batch:
                    sent = self._sent(batch)
                with contextlib.suppress(Exception):  # the call for that batch raises it
                    following = inner._peek()
                    self._ahead = following, self._sent(following)
                return sent
            except STOPS:  # Ctrl-C loses nothing: the next call returns this batch
                if not inner._finalized:
                    inner._go_on_from(before)
                raise

    def finalize(self) -> None:
        """Finalize the wrapped iterator, and drop the batch ahead."""
        super().finalize()
        self._ahead = None, None

    def __reduce__(self) -> tuple[Any, ...]:
        return as_jax, (self._iterator, self._sharding)

    def _sent(self, batch: Any) -> Any:
        """A batch whose arrays are on their way to the devices."""
        if type(batch) is list and self._iterator.converter is None:
            batch = concat_examples(batch)
        return map_leaves(self._array, batch)

    def _array(self, value: Any) -> Any:
        """A leaf of a batch, as an array of JAX if it is an array of numbers."""
        jax = self._jax
        if isinstance(value, np.ndarray):
            dtype = value.dtype
            is_number = dtype.kind in "biufc" or dtype.isbuiltin == 2  # as those of ml_dtypes
            if not is_number or isinstance(value, np.ma.MaskedArray):
                return value
            if not dtype.isnative:
                value = value.astype(dtype.newbyteorder("="))
        elif not isinstance(value, jax.Array):
            if not hasattr(value, "__dlpack__"):
                return value
            value = jax.dlpack.from_dlpack(value)
        facts = f"an array of shape {value.shape} and dtype {value.dtype}"
        try:
            if self._sharding is None:
                return jax.device_put(value)
            return jax.make_array_from_process_local_data(self._sharding, value)
        except TypeError as error:
            raise TypeError(
                f"jax {jax.__version__} takes no {facts[3:]}: let the dataset or the converter "
                "return another dtype, for example by array.astype(numpy.float32)"
            ) from error
        except ValueError as error:
            raise ValueError(
                f"{facts}, this process's part of a batch, does not fit {self._sharding}: {error}. "
                "Choose a batch_size that the devices divide; with repeat=False the last batch of "
                "an epoch may be shorter"
            ) from error

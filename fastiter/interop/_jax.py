"""The adapter of iterators for JAX: `as_jax`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from fastiter._util.failures import STOPS, Failure, reraise
from fastiter.dataset.convert import concat_examples
from fastiter.interop._wrapped import EpochLoops, Wrapped, library, map_leaves
from fastiter.iterators._base import PlannedIterator

_REMEDY = "install JAX, see https://docs.jax.dev (without a GPU: pip install 'fastiter[jax]')"
# What tells where an iterator with Chainer's interface is.
_POSITION = "epoch", "is_new_epoch", "epoch_detail", "previous_epoch_detail", "current_position"


def as_jax(iterator: Iterator[Any], sharding: Any = None) -> JaxIterator:
    """Wrap an iterator in one that returns its batches as `jax.Array`, transferred one ahead.

    ``for x, y in as_jax(MultiprocessIterator(dataset, 64, converter=concat_examples))``.

    Parameters
    ----------
    iterator : iterator
        An iterator of fastiter, or any iterator over batches of arrays that does not write into a
        batch it has returned. Without a converter batches of an iterator of fastiter are lists of
        examples; `concat_examples` joins these first.
    sharding : jax.sharding.Sharding, optional
        How the global arrays are laid out over devices, usually a ``NamedSharding`` that divides
        the first axis. Each process gives its own part of the batch, of the same length in all
        processes, as to ``jax.make_array_from_process_local_data``. None: arrays of this process,
        on JAX's default device.

    Returns
    -------
    JaxIterator

    Raises
    ------
    TypeError
        If ``iterator`` is no iterator, or ``sharding`` no ``Sharding``.
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
      alive; what is copied to a device keeps that memory until the copy has ended.

    All attributes and methods are those of the wrapped iterator, ``iterator``. They tell of the
    batch that was returned last, not of the one ahead, and so does a saved state. This includes the
    attributes of ``iterator`` itself if it is one of fastiter; any other one is a batch ahead.
    Each ``for`` is an epoch by the rules of `TorchIterator`.
    """

    def __init__(self, iterator: Iterator[Any], sharding: Any = None) -> None:
        self._jax = library("jax", "as_jax", _REMEDY)
        if not isinstance(sharding, (self._jax.sharding.Sharding, type(None))):
            raise TypeError(
                "sharding must be a jax.sharding.Sharding, such as NamedSharding(mesh, "
                f"PartitionSpec('data')) or SingleDeviceSharding(device), not {sharding!r}"
            )
        self._sharding = sharding
        # The batch after the one returned last: of the iterator, and as arrays of JAX.
        self._ahead: tuple[Any, Any] = None, None
        super().__init__(iterator if isinstance(iterator, PlannedIterator) else _Other(iterator))

    @property
    def iterator(self) -> Any:
        """The wrapped iterator."""
        inner = self._iterator
        return inner._iterator if isinstance(inner, _Other) else inner

    def __next__(self) -> Any:
        """Return the next batch, of arrays of JAX; fetch the one after it, and begin its transfer.

        Blocks until both batches are there on the host, not until they are on the devices. At most
        one batch is ahead.

        Raises
        ------
        StopIteration
            At the end of the iteration.
        TypeError
            If JAX lacks the dtype of an array of numbers.
        ValueError
            If an array cannot be laid out as ``sharding`` says.
        Exception
            What the wrapped iterator raises. All errors come with the call for their own batch,
            and the next call continues with the following one.
        """
        inner: Any = self._iterator
        with inner._lock:
            before = inner._snapshot()
            batch = next(inner)
            try:
                (following, sent), self._ahead = self._ahead, (None, None)
                if following is not batch:
                    sent = self._sent(batch)
                with contextlib.suppress(Exception):  # the call for that batch raises it
                    following = _peek(inner)
                    self._ahead = following, self._sent(following)
                return sent
            except STOPS:  # Ctrl-C loses nothing: the next call returns this batch
                if not getattr(inner, "_finalized", False):
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
        inner = self._iterator
        if type(batch) is list and isinstance(inner, PlannedIterator) and inner.converter is None:
            batch = concat_examples(batch)
        return map_leaves(self._array, batch)

    def _array(self, value: Any) -> Any:
        """A leaf of a batch, as an array of JAX if it is an array of numbers."""
        jax = self._jax
        if isinstance(value, np.ndarray):
            dtype = value.dtype
            # Numbers of ml_dtypes, such as bfloat16, are of the kind V.
            is_extended = dtype.kind == "V" and jax.numpy.issubdtype(dtype, np.number)
            if not (dtype.kind in "biufc" or is_extended) or isinstance(value, np.ma.MaskedArray):
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


def _peek(inner: Any) -> Any:
    """Make the batch that the next ``next(inner)`` returns, and return it; None if it fails."""

    def make() -> Any:
        plan = inner._planner.peek()
        if plan.outcome is None and plan.indices is not None and not inner._finalized:
            plan.outcome = inner._fetch(plan)
        return plan.outcome

    if isinstance(inner, _Other):
        outcome = inner._snapshot()[1]
    else:
        outcome = inner._timer.run(inner._lock, make)  # the timer counts what the loop waits for
    return None if isinstance(outcome, Failure) else outcome


class _Other(Wrapped):
    """An iterator that is not one of fastiter, with the methods of those that `JaxIterator` uses.

    Its attributes are those from before the batch ahead was fetched.
    """

    _lock = contextlib.nullcontext()

    def __init__(self, iterator: Iterator[Any]) -> None:
        # Of each batch ahead, one or for a moment two: the attributes before it, and the batch or
        # its failure.
        self._entries: list[tuple[dict[str, Any], Any]] = []
        super().__init__(iterator)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of another adapter, which knows of no batch ahead
            raise AttributeError(name)
        if self._entries and name in (attributes := self._entries[0][0]):
            return attributes[name]
        found = getattr(self._iterator, name)
        return self._dropping(found) if name in ("load_state_dict", "reset") else found

    def _dropping(self, method: Callable[..., None]) -> Callable[..., None]:
        """A method after which the batch ahead is not the next one."""

        def call(*arguments: Any, **keywords: Any) -> None:
            method(*arguments, **keywords)
            self._entries.clear()

        return call

    def __next__(self) -> Any:
        outcome = self._snapshot()[1]
        del self._entries[0]
        if isinstance(outcome, Failure):
            reraise(outcome)
        return outcome

    def _snapshot(self) -> tuple[dict[str, Any], Any]:
        """The entry of the next batch, which is fetched if that was not done."""
        if not self._entries:
            inner: Any = self._iterator
            attributes = {name: getattr(inner, name) for name in _POSITION if hasattr(inner, name)}
            if hasattr(inner, "state_dict"):
                state = copy.deepcopy(inner.state_dict())
                attributes["state_dict"] = lambda: state
            try:
                outcome = next(inner)
            except Exception as error:
                outcome = Failure(error)
            self._entries.append((attributes, outcome))
        return self._entries[0]

    def _go_on_from(self, entry: tuple[dict[str, Any], Any]) -> None:
        self._entries.insert(0, entry)

    def finalize(self) -> None:
        super().finalize()
        self._entries.clear()

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            "as_jax can copy, pickle and serialize iterators of fastiter only, not this "
            f"{type(self._iterator).__qualname__}: use state_dict(), or wrap a copy"
        )

    serialize = __copy__ = __reduce__ = _refuse  # type: ignore[assignment]

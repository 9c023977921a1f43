"""Checks of the iterators' arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from fastiter._device import devices
from fastiter._plan.epoch_sampler import is_epoch_sampler, words_of
from fastiter._util.arguments import checked_callable, checked_choice, checked_flag, checked_int
from fastiter.iterators.samplers._batches import CallableBatches
from fastiter.iterators.samplers.shuffle import gives_process_orders

if TYPE_CHECKING:
    from fastiter._order.example_context import Seed
    from fastiter.datasets.stream_dataset import StreamDataset

Rank: TypeAlias = int | Literal["auto"] | None
Tail: TypeAlias = Literal["pad", "mask", "drop"]
SeedExamples: TypeAlias = bool | int | Callable[[int], Any]
_Function = TypeVar("_Function", bound=Callable[..., None])

# The room of the shared segment; far beyond any useful number.
MOST_ROWS = 1 << 30  # in a batch
MOST_WORKERS = 1 << 14
MOST_PREFETCH = 1 << 14
DEFAULT_RETRIES = 2
#: Treatment of a worker that takes longer than ``dataset_timeout``.
OnTimeout = Literal["warn", "retry"]

# What other loaders, or other iterators here, call their arguments: what to write instead.
_WORKERS = (
    "worker processes are MultiprocessIterator's n_processes, threads are MultithreadIterator's "
    "n_threads, and SerialIterator has neither"
)
_OF_PROCESSES = "it is an argument of MultiprocessIterator"
_OF_WORKERS = "it is an argument of MultithreadIterator and MultiprocessIterator"
_SEED = "use order_sampler=ShuffleOrderSampler(seed), or one with a NumPy generator"
_RANKS = "use rank= and num_ranks=, or rank='auto', with order_sampler=ShuffleOrderSampler(seed)"
_COUNTERPARTS = {
    "collate_fn": "use converter=, which is called with the batch, and with the device if it has a "
    "second parameter",
    "context": _OF_PROCESSES,
    "dataset_timeout": _OF_WORKERS,
    "generator": _SEED,
    "hedge": _OF_PROCESSES,
    "max_length": "use converter=functools.partial(concat_examples, max_length=...)",
    "maxtasksperchild": _OF_PROCESSES,
    "multiprocessing_context": "use MultiprocessIterator's context=",
    "n_device_prefetch": _OF_WORKERS,
    "n_prefetch": _OF_WORKERS,
    "n_processes": _WORKERS,
    "n_retries": _OF_WORKERS,
    "n_threads": _WORKERS,
    "num_replicas": _RANKS,
    "num_workers": _WORKERS,
    "on_timeout": _OF_WORKERS,
    "padding": "use converter=functools.partial(concat_examples, padding=...)",
    "persistent_workers": "workers always stay until close()",
    "pin_memory": "leave it out: with device= a GPU reads batches from pinned memory by itself",
    "pin_memory_device": "use device=",
    "prefetch_factor": "use n_prefetch=, of MultithreadIterator and MultiprocessIterator, which "
    "counts batches in total, not for each worker",
    "sampler": "use order_sampler=, which is called with the current order and position and "
    "returns the indices of an epoch; WeightedOrderSampler is one",
    "seed": _SEED,
    "shared_mem": _OF_PROCESSES,
    "timeout": "use MultiprocessIterator's dataset_timeout=, seconds for one example",
    "worker_init": _OF_PROCESSES,
    "worker_init_fn": "use MultiprocessIterator's worker_init=",
    "world_size": _RANKS,
}


def names_counterparts(init: _Function) -> _Function:
    """Have a constructor that is given another loader's argument say what it is called here."""
    known = inspect.signature(init).parameters

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name in _COUNTERPARTS and name not in known:
                raise TypeError(
                    f"{type(self).__name__} has no argument {name!r}: {_COUNTERPARTS[name]}"
                )
        init(self, *args, **kwargs)

    return checked  # type: ignore[return-value]


def checked_order(shuffle: Any, order_sampler: Any) -> tuple[bool | None, Any]:
    """Both arguments, of which one at most may be given."""
    shuffle = None if shuffle is None else checked_flag("shuffle", shuffle)
    if order_sampler is not None and not callable(order_sampler):
        raise TypeError(
            "order_sampler must be a callable (current_order, current_position) that returns the "
            f"indices of an epoch, or None, not {order_sampler!r:.80}; for a fixed list of indices "
            "use shuffle=False and fastiter.datasets.SubDataset, for a torch Sampler lambda order, "
            "position: list(sampler)"
        )
    if order_sampler is not None and shuffle is not None:
        raise ValueError(
            f"shuffle={shuffle!r} and order_sampler exclude each other: leave shuffle at None to "
            "use the order_sampler"
        )
    return shuffle, order_sampler


def checked_cuts(
    batch_size: Any, batch_sampler: Any, drop_last: Any, shuffle: Any, order_sampler: Any
) -> tuple[int | None, bool, Any]:
    """Batch size, ``drop_last``, and the batch sampler, or None.

    Either a batch size is given or a batch sampler, which excludes all that it decides itself.
    """
    drop_last = checked_flag("drop_last", drop_last)
    if batch_sampler is None:
        if batch_size is None:
            raise TypeError("batch_size must be an integer; None is for those with a batch_sampler")
        return checked_int("batch_size", batch_size, maximum=MOST_ROWS), drop_last, None
    others = {"batch_size": batch_size, "shuffle": shuffle, "order_sampler": order_sampler}
    given = [name for name, value in others.items() if value is not None]
    given += ["drop_last"] * drop_last
    if given:
        raise ValueError(
            f"batch_sampler decides about {' and '.join(given)} itself: leave out "
            + " and ".join(f"{name}=" for name in given)
        )
    if is_epoch_sampler(batch_sampler):
        return None, False, batch_sampler
    if not callable(batch_sampler) or isinstance(batch_sampler, type):
        raise TypeError(
            "batch_sampler must be a callable that gives the list of an epoch's index arrays, "
            f"batch_sampler(epoch), not {batch_sampler!r:.80}; of a torch BatchSampler, which "
            "should be the same each time, lambda epoch: list(sampler)"
        )
    return None, False, CallableBatches(batch_sampler)


def check_of_stream(shuffle: Any, order_sampler: Any, batch_sampler: Any, skip_steps: Any) -> None:
    """Refuse arguments that a `StreamDataset` decides itself, or that need indices."""
    if shuffle or order_sampler is not None:
        raise ValueError(
            "shuffle and order_sampler need a dataset with indices: a StreamDataset shuffles by "
            "its own seed= and window="
        )
    given = {"batch_sampler": batch_sampler is not None, "skip_steps": len(tuple(skip_steps)) > 0}
    for name, is_given in given.items():
        if is_given:
            raise ValueError(
                f"{name} needs a dataset with indices, which a StreamDataset has not: leave it out"
            )


def seed_of_stream(stream: StreamDataset, seed_examples: Any) -> Seed:
    if checked_seed_examples(seed_examples, None):
        if stream.words is not None:
            raise _second_seed(seed_examples, "StreamDataset")
        return words_of(seed_examples)
    if seed_examples is not False and stream.words is None:
        raise ValueError(
            f"seed_examples={seed_examples!r:.80} needs a seed: set seed= of the StreamDataset, or "
            "make seed_examples an int"
        )
    return stream.words or (0, 0)


def check_same_on_ranks(order_sampler: Any) -> None:
    """Refuse samplers that do not draw the same global orders on all ranks."""
    if gives_process_orders(order_sampler):
        raise ValueError(
            "with num_ranks above 1 all ranks must draw the same orders, but this shuffle draws "
            "from NumPy's global generator, whose state is each process's own: use order_sampler="
            "ShuffleOrderSampler(seed), or shuffle=False"
        )


def checked_converter(converter: Any, device: Any) -> Any:
    """``converter`` itself, a callable or None; with a ``device`` there must be one."""
    checked_callable("converter", converter)
    if device is not None and converter is None:
        raise ValueError(
            f"device={device!r} needs a converter: set converter=fastiter.concat_examples, or "
            "leave device at None"
        )
    devices.resolve(device)
    return converter


def checked_prefetch(
    n_prefetch: Any, n_device_prefetch: Any, device: Any
) -> tuple[int | Literal["auto"], int]:
    """Both arguments. ``n_prefetch`` may be 'auto'; None becomes 1, or 2 if batches go to a GPU,
    since one of them is being copied."""
    if n_prefetch is None:
        n_prefetch = 2 if isinstance(devices.resolve(device), devices.GpuDevice) else 1
    ahead = checked_auto("n_prefetch", n_prefetch, maximum=MOST_PREFETCH)
    return ahead, checked_int(
        "n_device_prefetch", n_device_prefetch, minimum=0, maximum=MOST_PREFETCH
    )


def checked_auto(
    name: str, value: Any, *, minimum: int = 1, maximum: int | None = None
) -> int | Literal["auto"]:
    """Like `checked_int`, but 'auto' stays 'auto'."""
    if isinstance(value, str):
        if value == "auto":
            return "auto"
        raise ValueError(f"{name} must be an integer or 'auto', not {value!r}")
    return checked_int(name, value, minimum=minimum, maximum=maximum)


def checked_seed_examples(seed_examples: Any, sampler: Any) -> bool:
    """Whether ``seed_examples`` is a seed."""
    if type(seed_examples) is bool or callable(seed_examples):
        return False
    try:
        checked_int("seed_examples", seed_examples, minimum=0)
    except TypeError:
        raise TypeError(
            f"seed_examples must be True, a seed or a function of one, not {seed_examples!r:.80}"
        ) from None
    if is_epoch_sampler(sampler) and sampler.seed is not None:
        raise _second_seed(seed_examples, "sampler")
    return True


def _second_seed(seed: int, of: str) -> ValueError:
    return ValueError(
        f"seed_examples={seed} is a second seed, besides that of the {of}: use seed_examples=True"
    )


def checked_share(name: str, value: Any) -> float | None:
    """A share above 0 and at most 1, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number or None, not {value!r}")
    if not 0 < value <= 1:  # type: ignore[operator]
        raise ValueError(f"{name} must be above 0 and at most 1, or None for never, not {value!r}")
    return float(value)


def checked_retries(
    on_timeout: Any, n_retries: Any, seconds: float | None
) -> tuple[OnTimeout, int]:
    """``on_timeout`` and ``n_retries``, with their ``dataset_timeout``."""
    checked_choice("on_timeout", on_timeout, ("warn", "retry"))
    if on_timeout == "retry" and seconds is None:
        raise ValueError(
            "on_timeout='retry' needs a limit: set dataset_timeout to the seconds that one example "
            "may take"
        )
    n_retries = checked_int("n_retries", n_retries, minimum=0)
    if on_timeout == "warn" and n_retries != DEFAULT_RETRIES:
        raise ValueError(f"n_retries={n_retries} retries nothing: set on_timeout='retry', too")
    return on_timeout, n_retries


def checked_dataset(dataset: Any) -> Any:
    """``dataset`` itself, an object with a length that is indexable by integers."""
    name = type(dataset).__qualname__
    if isinstance(dataset, type):
        raise TypeError(
            f"dataset must be an object, but is the class {dataset.__qualname__}: make an object "
            f"of it, {dataset.__qualname__}(...)"
        )
    if isinstance(dataset, Mapping) and dataset and 0 not in dataset:
        keys = f"{list(dataset)!r:.80}"
        raise TypeError(
            f"dataset must be indexable by integers from 0 on, but this {name} has the keys {keys}:"
            " if its values are columns, use fastiter.datasets.DictDataset(**dataset); if they are "
            "datasets, choose one of them"
        )
    if not (hasattr(type(dataset), "__getitem__") or hasattr(dataset, "__getitems__")):
        lack = "indexable (__getitem__ or __getitems__), but {} is not"
    elif not hasattr(type(dataset), "__len__"):
        lack = "an object with a length (__len__), but {} has none"
    else:
        return dataset
    instead = ""
    if isinstance(dataset, Iterable):
        instead = (
            ": if its examples fit into memory, use list(dataset); else use "
            "fastiter.datasets.StreamDataset(shards, open_shard), where open_shard(shard) returns "
            "an iterator over the examples of a part, such as a file"
        )
    raise TypeError(f"dataset must be {lack.format(name)}{instead}")


def checked_context(context: Any) -> str | None:
    """The name of a start method, "safe", or None."""
    if hasattr(context, "Process"):
        # A context itself does not pickle; its name does, and stands for it. The default one has
        # none until the program sets it.
        context = context.get_start_method(allow_none=True)
    if context is None:
        return None
    if not isinstance(context, str):
        raise TypeError(
            f"context must be a start method's name, 'safe' or a context, not {context!r}"
        )
    import multiprocessing  # with the first iterator of processes, which has use for it

    checked_choice("context", context, [*multiprocessing.get_all_start_methods(), "safe"])
    return context

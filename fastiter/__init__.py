"""fastiter: a compiled data loader. Worker processes write batches once into shared memory.

Iterators take a dataset and a batch size, and return batches in order. Iterators, datasets and
converters have the interface of Chainer's.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING

from fastiter._util import shutdown as _shutdown  # noqa: F401  (its part of the exit comes late)

if importlib.util.find_spec("fastiter._collate.concat") is None:
    raise ImportError(
        f"fastiter's compiled modules are missing from {os.path.dirname(__file__)}. If this is a "
        "clone, and fastiter was installed from it by pip install ., the clone's folder hides the "
        "installed package here: start Python in another folder. To use the clone in place, run "
        "in it: pip install -e ."
    )

_FILES = {"__init__.py", "__main__.py", "errors.py", "kernels.py", "random.py"}


def _warn_of_others() -> None:
    """Warn if files of another distribution lie here: that called fastiter has the same folder."""
    try:
        found = os.listdir(os.path.dirname(__file__))
    except OSError:  # imported from an archive
        return
    others = sorted({name for name in found if name.endswith(".py")} - _FILES)
    if others:
        warnings.warn(
            f"another distribution has put {', '.join(others)} into the folder of fastiter-loader, "
            f"{os.path.dirname(__file__)}: each may overwrite or remove files of the other. "
            "Run: pip uninstall -y fastiter fastiter-loader, then install fastiter-loader again",
            RuntimeWarning,
            stacklevel=2,
        )


_warn_of_others()

_MODULES = (
    *("dataset", "datasets", "errors", "images", "interop", "iterators", "kernels", "random"),
    *("reader", "tokens"),
)

if TYPE_CHECKING:
    from fastiter import dataset as dataset
    from fastiter import datasets as datasets
    from fastiter import errors as errors
    from fastiter import images as images
    from fastiter import interop as interop
    from fastiter import iterators as iterators
    from fastiter import kernels as kernels
    from fastiter import random as random
    from fastiter import reader as reader
    from fastiter import tokens as tokens
    from fastiter._stats.iterator_stats import IteratorStats
    from fastiter._stats.progress import progress
    from fastiter._stats.stats import WorkerStats
    from fastiter._util.worker_info import WorkerInfo, get_worker_info
    from fastiter.dataset import (
        ConcatWithAsyncTransfer,
        Converter,
        DatasetMixin,
        Iterator,
        TabularDataset,
        concat_examples,
        converter,
        to_device,
    )
    from fastiter.datasets.cached_dataset import cache
    from fastiter.errors import (
        DatasetError,
        DatasetTimeoutError,
        ImageError,
        OverwrittenError,
        SkipLimitError,
        TimeoutWarning,
        WorkerDiedError,
    )
    from fastiter.iterators import (
        Address,
        BlockShuffleOrderSampler,
        Epoch,
        EpochSampler,
        LengthBucketBatchSampler,
        MixtureOrderSampler,
        MultiprocessIterator,
        MultithreadIterator,
        OrderSampler,
        Replacement,
        SerialIterator,
        ShuffleOrderSampler,
        Skipped,
        VirtualShuffleOrderSampler,
        WeightedOrderSampler,
    )
else:
    # Modules of the public names.
    _HOMES = {
        "IteratorStats": "_stats.iterator_stats",
        "WorkerInfo": "_util.worker_info",
        "WorkerStats": "_stats.stats",
        "cache": "datasets.cached_dataset",
        "get_worker_info": "_util.worker_info",
        "progress": "_stats.progress",
        **dict.fromkeys(("concat_examples", "converter", "to_device"), "dataset"),
        **dict.fromkeys(("ConcatWithAsyncTransfer", "Converter", "DatasetMixin"), "dataset"),
        **dict.fromkeys(("Iterator", "TabularDataset"), "dataset"),
    }

    # Threads that import a package and one of its modules at a time could find half of either.
    _lock = threading.RLock()

    def __getattr__(name):
        if name not in _MODULES and name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES.get(name, "errors" if name.endswith(("Error", "Warning")) else "iterators")
        with _lock:
            if name in _MODULES:
                return importlib.import_module(f"fastiter.{name}")
            return globals().setdefault(
                name, getattr(importlib.import_module(f"fastiter.{home}"), name)
            )


__version__ = "0.1.0"

__all__ = [
    "Address",
    "BlockShuffleOrderSampler",
    "ConcatWithAsyncTransfer",
    "Converter",
    "DatasetError",
    "DatasetMixin",
    "DatasetTimeoutError",
    "Epoch",
    "EpochSampler",
    "ImageError",
    "Iterator",
    "IteratorStats",
    "LengthBucketBatchSampler",
    "MixtureOrderSampler",
    "MultiprocessIterator",
    "MultithreadIterator",
    "OrderSampler",
    "OverwrittenError",
    "Replacement",
    "SerialIterator",
    "ShuffleOrderSampler",
    "SkipLimitError",
    "Skipped",
    "TabularDataset",
    "TimeoutWarning",
    "VirtualShuffleOrderSampler",
    "WeightedOrderSampler",
    "WorkerDiedError",
    "WorkerInfo",
    "WorkerStats",
    "cache",
    "concat_examples",
    "converter",
    "get_worker_info",
    "progress",
    "to_device",
]


def __dir__() -> list[str]:
    loaded = [name for name in globals() if name in ("ray", "torch") or name.startswith("__")]
    return sorted({*__all__, *_MODULES, *loaded})


# Not under `python -m fastiter run`: NumPy reads variables when it is imported, which the program
# may set first. What these names need takes long to import, and not every program uses it.
if not TYPE_CHECKING and getattr(sys, "argv", [])[:2] != ["-m", "run"]:
    for _name in {*__all__} - {"MultiprocessIterator", "MultithreadIterator", "cache"}:
        __getattr__(_name)

"""Functions that split a dataset into parts, also for cross-validation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fastiter._util.arguments import checked_int
from fastiter.datasets._parts import fixed_length
from fastiter.datasets.sub_dataset import SubDataset, checked_order

__all__ = [
    "get_cross_validation_datasets",
    "get_cross_validation_datasets_random",
    "split_dataset",
    "split_dataset_n",
    "split_dataset_n_random",
    "split_dataset_random",
]


def split_dataset(dataset: Any, split_at: int, order: Any = None) -> tuple[SubDataset, SubDataset]:
    """Split a dataset in two: the examples ``order[:split_at]`` and ``order[split_at:]``.

    Parameters
    ----------
    dataset : sequence
        Object with ``__len__`` and ``__getitem__``.
    split_at : int
        Size of the first part, from 0 to ``len(dataset)``.
    order : sequence of int, optional
        See `SubDataset`.

    Raises
    ------
    TypeError, ValueError
        If ``split_at`` is not an integer in this range, or the order has another length.
    """
    size = fixed_length(dataset)
    split_at = checked_int("split_at", split_at, minimum=0, maximum=size)
    order = checked_order(order, size)
    return SubDataset(dataset, 0, split_at, order), SubDataset(dataset, split_at, size, order)


def split_dataset_random(
    dataset: Any, first_size: int, seed: Any = None
) -> tuple[SubDataset, SubDataset]:
    """Split a dataset in two at random: ``first_size`` examples, and the others.

    Parameters
    ----------
    dataset, first_size
        See `split_dataset`, also for the errors.
    seed : int, optional
        Seed of `numpy.random.RandomState`. The same seed gives the same parts as before, and as
        Chainer; None gives other parts each time.
    """
    size = checked_int("first_size", first_size, minimum=0, maximum=fixed_length(dataset))
    return split_dataset(dataset, size, _permutation(dataset, seed))


def split_dataset_n(dataset: Any, n: int, order: Any = None) -> list[SubDataset]:
    """Split a dataset into parts of equal size.

    Part i has the examples ``order[i * size:(i + 1) * size]``, where ``size`` is
    ``len(dataset) // n``. The remainder is in no part.

    Parameters
    ----------
    dataset, order
        See `split_dataset`, also for the errors.
    n : int
        Number of parts, at least 1.
    """
    size = fixed_length(dataset) // checked_int("n", n)
    order = checked_order(order, len(dataset))
    return [SubDataset(dataset, size * i, size * (i + 1), order) for i in range(n)]


def split_dataset_n_random(dataset: Any, n: int, seed: Any = None) -> list[SubDataset]:
    """Split a dataset into parts of equal size as `split_dataset_n` does, but at random.

    See `split_dataset_random` for the seed.
    """
    return split_dataset_n(dataset, n, _permutation(dataset, seed))


def get_cross_validation_datasets(
    dataset: Any, n_folds: int | None = None, order: Any = None, *, n_fold: int | None = None
) -> list[tuple[SubDataset, SubDataset]]:
    """Make the pairs ``(training, test)`` of datasets of a k-fold cross-validation.

    Each example is in the test dataset of exactly one fold; the sizes of the test datasets differ
    by 1 at most. The first fold tests the end of the order, the second fold the part before it,
    and so on.

    Parameters
    ----------
    dataset, order
        See `split_dataset`, also for the errors. The order is copied.
    n_folds : int
        Number of pairs, from 1 to ``len(dataset)``.
    n_fold : int
        Deprecated name of ``n_folds``.
    """
    size = fixed_length(dataset)
    # The folds of an empty dataset are empty, whatever their number.
    folds = checked_int("n_folds", _folds(n_folds, n_fold), maximum=size or None)
    order = checked_order(np.arange(size) if order is None else np.array(order), size)
    # The test part moves to the end of each fold's order, which makes the order a window of this.
    twice = np.concatenate([order, order])
    splits = []
    for fold in reversed(range(folds)):
        start, finish = size * fold // folds, size * (fold + 1) // folds
        splits.append(split_dataset(dataset, size - finish + start, twice[finish:][:size]))
    return splits


def get_cross_validation_datasets_random(
    dataset: Any, n_folds: int | None = None, seed: Any = None, *, n_fold: int | None = None
) -> list[tuple[SubDataset, SubDataset]]:
    """Make the pairs of `get_cross_validation_datasets` at random.

    See `split_dataset_random` for the seed.
    """
    folds = _folds(n_folds, n_fold)
    return get_cross_validation_datasets(dataset, folds, _permutation(dataset, seed))


def _permutation(dataset: Any, seed: Any) -> Any:
    try:
        state = np.random.RandomState(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"seed must be an integer from 0 to 2**32 - 1, several of them, or None, not {seed!r}"
        ) from error
    return state.permutation(fixed_length(dataset))


def _folds(n_folds: Any, n_fold: Any) -> Any:
    if n_fold is None:
        return n_folds
    warnings.warn("n_fold is deprecated: pass n_folds", DeprecationWarning, stacklevel=3)
    return n_fold

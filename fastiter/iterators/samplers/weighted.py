"""Orders drawn by weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastiter._plan.epoch_sampler import Epoch, EpochSampler, Seed, words_of
from fastiter._util.arguments import checked_flag, checked_optional_int
from fastiter.iterators.samplers.shuffle import OrderSampler

__all__ = ["WeightedOrderSampler"]

_LARGEST_RATIO = 1e290  # of two weights, without replacement


class WeightedOrderSampler(EpochSampler, OrderSampler):
    """Draws the examples of every epoch with given probabilities.

    Parameters
    ----------
    weights : array-like of float, (n,)
        A weight for each example of the dataset, positive and finite, of any sum. To leave
        examples out, leave them out of the dataset: `fastiter.datasets.SubDataset`.
    seed : int, sequence of int, or numpy.random.SeedSequence
        Ints of any size, none negative. Each epoch has other draws of the seed.
    n_samples : int, optional
        Examples in an epoch, at least 1; as many as there are weights by default.
    replacement : bool
        True: every draw is independent of the others, so examples repeat. False: an example drawn
        is out for the rest of the epoch; the order is that of the draws.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong. A weight that is zero, negative, infinite or NaN is
        refused, as are, without replacement, more draws than weights, or weights of which one is
        more than 1e290 times another.

    Notes
    -----
    With replacement by a table of aliases (Walker, 1977; Vose, 1991), made once; a draw takes the
    same time whatever the weights. Without by exponential variates (Efraimidis and Spirakis,
    2006). The draws are the same on every processor.
    """

    kind: ClassVar[int] = 4

    def __init__(
        self,
        weights: Any,
        seed: Seed,
        *,
        n_samples: int | None = None,
        replacement: bool = True,
    ) -> None:
        self._weights = _checked_weights(weights)
        n_samples = checked_optional_int("n_samples", n_samples)
        self._n_samples = len(self._weights) if n_samples is None else n_samples
        self._replacement = checked_flag("replacement", replacement)
        if not self._replacement:
            _check_without_replacement(self._weights, self._n_samples)
        self.seed = words_of(seed)
        self._drawer: Any = None

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Any] = ()) -> Epoch:
        if n_examples != len(self._weights):
            raise ValueError(
                f"there are {len(self._weights)} weights for a dataset of {n_examples} examples"
            )
        if self._drawer is None:
            from fastiter._order import permutation

            kind = permutation.AliasTable if self._replacement else permutation.Race
            self._drawer = kind(self._weights)
        return Epoch(self._drawer.draw(self.seed, number, self._n_samples))

    def arguments(self) -> tuple[Any, ...]:
        from hashlib import blake2b

        weights = blake2b(self._weights.astype("<f8").tobytes(), digest_size=16).hexdigest()
        return weights, self._n_samples, self._replacement

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawer": None}


def _checked_weights(weights: Any) -> npt.NDArray[np.float64]:
    from fastiter._order import permutation

    try:
        array = np.array(weights, dtype=np.float64)  # a copy, which is not changed
    except (TypeError, ValueError) as error:
        raise TypeError(f"weights must be an array of numbers: {error}") from error
    if array.ndim != 1 or not 1 <= array.size <= permutation.WEIGHTS_MAX:
        raise ValueError(
            f"weights must be one-dimensional, of 1 to {permutation.WEIGHTS_MAX} numbers, not of "
            f"shape {array.shape}"
        )
    wrong = np.flatnonzero(~((array > 0) & (array < np.inf)))
    if wrong.size:
        raise ValueError(
            f"weights must be positive and finite, but {wrong.size} of {array.size} are not: "
            f"weights[{wrong[0]}] is {array[wrong[0]]}. Leave examples that are never to be drawn "
            "out of the dataset"
        )
    return array


def _check_without_replacement(weights: npt.NDArray[np.float64], n_samples: int) -> None:
    if n_samples > weights.size:
        raise ValueError(
            f"n_samples must be at most the number of weights, {weights.size}, without "
            f"replacement, but is {n_samples}"
        )
    least, most = float(weights.min()), float(weights.max())
    if least / most < 1 / _LARGEST_RATIO:
        raise ValueError(
            f"weights from {least} to {most} differ too much to be drawn without replacement: the "
            f"largest may be {_LARGEST_RATIO:g} times the smallest"
        )

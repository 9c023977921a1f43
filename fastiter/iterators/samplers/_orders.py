"""Orders that are computed or converted where they are sliced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


class CompactOrder:
    """An order in an array of any integers, such as 4 bytes an example, whose slices are int64.

    All indices are below ``index_bound``; 0 if a sampler vouches for them otherwise.
    """

    def __init__(self, rows: npt.NDArray[Any], index_bound: int) -> None:
        self._rows = rows
        self.index_bound = index_bound

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, part: slice) -> npt.NDArray[np.int64]:
        return self._rows[part].astype(np.int64)


class ComputedOrder:
    """An epoch's order that is measured, sliced and compared, and never stored as a whole.

    A subclass defines ``__len__``, ``_key()``, which decides about the order, and ``_piece(start,
    stop)``: indices from a position on, at least one and none behind ``stop``; not to be changed.
    """

    def __getitem__(self: Any, part: slice) -> npt.NDArray[np.int64]:
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"a computed order has slices of step 1 only, not {step}")
        return joined(start, stop, self._piece)

    def _key(self) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())


def joined(start: int, stop: int, piece: Callable[[int, int], Any]) -> npt.NDArray[np.int64]:
    """A new array of the pieces from ``start`` to ``stop``; see `ComputedOrder`."""
    pieces = []
    while start < stop:
        pieces.append(piece(start, stop))
        start += len(pieces[-1])
    if len(pieces) == 1:
        return pieces[0].copy()  # type: ignore[no-any-return]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

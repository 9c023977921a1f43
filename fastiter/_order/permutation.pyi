from typing import Any, Protocol, SupportsIndex, final, overload

import numpy as np
import numpy.typing as npt

class _Permutes(Protocol):
    def permutation(self, n: int, /) -> Any: ...

MOST_THREADS: int
TABLE_MAX: int
LENGTH_MAX: int
ROUNDS: int
WEIGHTS_MAX: int
ISA_AVX2: int

def permutation(random_state: _Permutes | None, n: int) -> Any: ...
def entropy_of(seed: Any) -> npt.NDArray[np.uint32]: ...
def seed_words(seed: Any) -> tuple[int, int]: ...
def fast_permutation(
    n: int,
    words: tuple[int, int],
    stream: int = 0,
    threads: int | None = None,
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]: ...
def isa_levels() -> list[int]: ...
def fast_permutation_by(
    n: int,
    words: tuple[int, int],
    stream: int,
    threads: int,
    isa: int,
    method: int,
    bucket_bits: int,
    block_bits: int,
    cells32: bool,
) -> npt.NDArray[np.int64]: ...

@final
class VirtualOrder:
    words: tuple[int, int]
    stream: int
    def __init__(self, n: SupportsIndex, words: tuple[int, int], stream: int) -> None: ...
    @property
    def index_bound(self) -> int: ...
    def __len__(self) -> int: ...
    def checked_part(
        self, start: SupportsIndex, count: SupportsIndex | None
    ) -> npt.NDArray[np.int64]: ...
    @overload
    def __getitem__(self, key: slice, /) -> npt.NDArray[np.int64]: ...
    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[type[VirtualOrder], tuple[int, tuple[int, int], int]]: ...

def fill_by(
    n: int, words: tuple[int, int], stream: int, start: int, count: int, isa: int, rounds: int
) -> npt.NDArray[np.int64]: ...
def example_words(words: tuple[int, int], epoch: int, index: int) -> npt.NDArray[np.uint64]: ...

@final
class AliasTable:
    def __new__(cls, weights: npt.NDArray[np.float64]) -> AliasTable: ...
    def draw(self, words: tuple[int, int], stream: int, count: int) -> npt.NDArray[np.int64]: ...

@final
class Race:
    weights: npt.NDArray[np.float64]
    def __init__(self, weights: npt.NDArray[np.float64]) -> None: ...
    def draw(self, words: tuple[int, int], stream: int, count: int) -> npt.NDArray[np.int64]: ...

def arrivals_by(
    weights: npt.NDArray[np.float64],
    words: tuple[int, int],
    stream: int,
    horizon: float,
    isa: int,
) -> list[tuple[float, int]]: ...

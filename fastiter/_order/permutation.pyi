from typing import Any, SupportsIndex, final

import numpy as np
import numpy.typing as npt

WEIGHTS_MAX: int
SHUFFLE_MAX: int
ISA: int

def permutation(random_state: Any, n: int) -> Any: ...
def seed_words(seed: Any, name: str = "seed") -> tuple[int, int]: ...
def fast_permutation(
    n: int,
    words: tuple[int, int],
    stream: int = 0,
    threads: int | None = None,
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]: ...

@final
class VirtualOrder:
    def __init__(self, n: SupportsIndex, words: tuple[int, int], stream: int) -> None: ...
    def __len__(self) -> int: ...
    def checked_part(
        self, start: SupportsIndex, count: SupportsIndex | None
    ) -> npt.NDArray[np.int64]: ...
    def __getitem__(self, key: slice, /) -> npt.NDArray[np.int64]: ...

def example_words(words: tuple[int, int], epoch: int, index: int) -> npt.NDArray[np.uint64]: ...
def example_seeds(
    words: tuple[int, int],
    epochs: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64],
    repeats: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.uint64]: ...

@final
class AliasTable:
    def __new__(cls, weights: npt.NDArray[np.float64]) -> AliasTable: ...
    def draw(self, words: tuple[int, int], stream: int, count: int) -> npt.NDArray[np.int64]: ...

@final
class Race:
    def __init__(self, weights: npt.NDArray[np.float64]) -> None: ...
    def draw(self, words: tuple[int, int], stream: int, count: int) -> npt.NDArray[np.int64]: ...

from typing import Any

import numpy as np
import numpy.typing as npt

ISA: int

def resize_into(
    pixels: npt.NDArray[np.uint8],
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    corner: tuple[int, int],
    out: npt.NDArray[Any],
    flip: bool = False,
    table: npt.NDArray[np.float32] | None = None,
    *,
    planes: bool,
    isa: int = ...,
) -> None: ...

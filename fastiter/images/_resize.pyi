from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter.images._transforms import CropWindow

def resized(
    pixels: npt.NDArray[np.uint8],
    window: CropWindow,
    out: Any = None,
    table: npt.NDArray[np.float32] | None = None,
    *,
    planes: bool,
    isa: int = ...,
) -> npt.NDArray[Any]: ...

"""Index arrays in the fewest bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def compact(index: NDArray[np.integer]) -> NDArray[Any]:
    """The same non-negative integers in the narrowest of uint8, uint16, int32 and int64."""
    top = int(index.max(initial=0))
    for dtype in (np.uint8, np.uint16, np.int32):
        if top <= np.iinfo(dtype).max:
            return index.astype(dtype)
    return index.astype(np.int64)

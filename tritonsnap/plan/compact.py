"""Index arrays in the fewest bytes."""

from __future__ import annotations

from collections.abc import Mapping
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


def signed(index: NDArray[np.integer]) -> NDArray[Any]:
    """The same in the first of uint8, int16, int32, int64 that holds them: Triton's types."""
    top = int(index.max(initial=0))
    for dtype in (np.uint8, np.int16, np.int32):
        if top <= np.iinfo(dtype).max:
            return index.astype(dtype)
    return index.astype(np.int64)


def shared(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The same arrays by name; those of equal dtype and content are one array."""
    known: dict[tuple[Any, ...], NDArray[Any]] = {}
    return {
        name: known.setdefault((array.dtype.str, array.shape, array.tobytes()), array)
        for name, array in arrays.items()
    }

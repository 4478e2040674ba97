"""Checks of the shapes and indices that patterns are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tritonsnap.checks import MOST, check_integer


def checked_shape(shape: Any) -> tuple[int, int]:
    """A shape as two integers; a `ValueError` unless it is one that indices can reach."""
    if not isinstance(shape, (tuple, list, np.ndarray)) or len(shape) != 2:
        raise ValueError(f"`shape` must be two integers, got {shape!r}")
    num_rows, num_cols = (check_integer("shape", size, 0, MOST) for size in shape)
    if num_rows * num_cols > MOST:
        raise ValueError(f"`shape` must have at most {MOST} entries, got {shape!r}")
    return num_rows, num_cols


def check_range(name: str, index: NDArray[np.integer], size: int) -> None:
    """Raise a `ValueError` that names `name` unless all indices lie in ``[0, size)``."""
    if index.size and (index.min() < 0 or index.max() >= size):
        raise ValueError(
            f"`{name}` must lie in [0, {size}), got values from {index.min()} to {index.max()}"
        )


def integers(name: str, values: ArrayLike) -> NDArray[np.integer]:
    """Values as an array of integers; a `TypeError` that names `name` if they are none."""
    array = array_of(name, values)
    if array.size == 0:
        return array.astype(np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"`{name}` must be integers, got dtype {array.dtype}")
    return array.astype(np.int64) if array.dtype == np.uint64 else array  # sums stay integers


def array_of(name: str, values: ArrayLike) -> NDArray[Any]:
    """Values as an array; a `ValueError` that names `name` if they cannot be one."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"`{name}` must be an array, got {type(values).__name__}") from error

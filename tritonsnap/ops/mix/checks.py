"""What all faces of `mix` check."""

from __future__ import annotations

from typing import Any

import numpy as np

from tritonsnap.arrays import dtype_name, library_of_arguments


def check_arguments(a: Any, b: Any, positions: Any) -> None:
    """Raise unless `b` fits `positions` and has the leading axes of `a`."""
    library_of_arguments({"positions": positions})
    kind = dtype_name(positions)
    if not kind.startswith(("int", "uint")):
        raise TypeError(f"`positions` must be an integer array, got {kind}")
    for name, values in (("a", a), ("b", b)):
        if isinstance(values, np.ndarray) and values.dtype.kind not in "biufc":
            raise TypeError(f"`{name}` must hold numbers, got {values.dtype}")
    if tuple(b.shape[-1:]) != tuple(positions.shape) or a.ndim == 0:
        raise ValueError(
            "`a`, `b` and `positions` must have shapes [..., nnz(a)], [..., nnz(b)] and [nnz(b)], "
            f"got {list(a.shape)}, {list(b.shape)} and {list(positions.shape)}"
        )
    if tuple(a.shape[:-1]) != tuple(b.shape[:-1]):
        raise ValueError(
            f"`a` and `b` must have the same leading axes, got {list(a.shape)} and {list(b.shape)}"
        )


def check_range(positions: Any, size: int) -> None:
    """Raise unless all positions, whose values must be known, lie in [0, size)."""
    if 0 in positions.shape:
        return
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= size:
        raise ValueError(f"`positions` must lie in [0, {size}), got values from {low} to {high}")

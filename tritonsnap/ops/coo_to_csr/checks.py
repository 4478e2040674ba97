"""What every face of `coo_to_csr` says of wrong arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tritonsnap.arrays import dtype_name
from tritonsnap.checks import check_integer


def check_arguments(rows: Any, num_rows: int) -> None:
    """Check what can be known without reading the rows."""
    dtype = dtype_name(rows)
    if dtype not in ("int32", "int64"):
        raise TypeError(f"`rows` must be int32 or int64, got {dtype}")
    if rows.ndim != 1:
        raise ValueError(f"`rows` must have the shape [nnz], got {list(rows.shape)}")
    check_integer("num_rows", num_rows)


def pointer_bits(dtype: str, nnz: int) -> int:
    """32 where both the rows and the pointers fit, 64 otherwise."""
    return 32 if dtype.endswith("int32") and nnz <= np.iinfo(np.int32).max else 64


def outside(low: int, high: int, num_rows: int) -> ValueError:
    """The error for rows from `low` to `high`, one of which is out of range."""
    wrong = low if low < 0 else high
    return ValueError(f"`rows` must be in [0, {num_rows}), got {wrong}")


def unsorted() -> ValueError:
    """The error for a broken promise."""
    return ValueError("`rows` must not decrease where `indices_are_sorted` is set")

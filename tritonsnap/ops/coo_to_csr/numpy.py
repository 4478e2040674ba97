"""`coo_to_csr` in NumPy: the definition of the op."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.coo_to_csr.checks import check_arguments, outside, pointer_bits, unsorted


def coo_to_csr(
    rows: NDArray[Any], num_rows: int, *, indices_are_sorted: bool = False
) -> NDArray[Any]:
    """Compress row indices to row pointers; see `tritonsnap.coo_to_csr`."""
    check_arguments(rows, num_rows)
    if rows.size and (rows.min() < 0 or rows.max() >= num_rows):
        raise outside(int(rows.min()), int(rows.max()), num_rows)
    if indices_are_sorted and bool(np.any(rows[1:] < rows[:-1])):
        raise unsorted()
    bits = pointer_bits(str(rows.dtype), rows.size)
    pointers = np.zeros(num_rows + 1, dtype=f"int{bits}")
    np.cumsum(np.bincount(rows, minlength=num_rows), out=pointers[1:])
    return pointers

"""What checking a projection and finding a pattern share. No framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.sparsity.pattern import SparsityPattern


def check_probe(
    path: str,
    pattern: SparsityPattern,
    values: NDArray[Any],
    direction: NDArray[Any],
    expected: NDArray[Any],
    epsilon: float,
    *,
    transposed: bool = False,
) -> None:
    """Raise unless a sparse Jacobian times a direction is the JVP in that direction.

    Parameters
    ----------
    path
        The leaf that the error names.
    pattern, values : [m, p], [nnz]
        The sparse Jacobian.
    direction, expected : [p], [m]
        The direction and the JVP of the function in it.
    epsilon
        Machine epsilon of the least precise dtype at work; ``sqrt(epsilon)`` is the tolerance,
        relative to the sum of magnitudes in a row.
    transposed
        Check the VJP instead: `direction` is [m] and `expected` [p].

    Raises
    ------
    ValueError
        If they differ, with the leaf's path and the rows (columns).
    """
    into, out_of, lines = pattern.rows, pattern.cols, "rows"
    if transposed:
        into, out_of, lines = out_of, into, "columns"
    terms = values.astype(np.result_type(values, np.float64)) * direction[out_of]
    product = np.zeros(len(expected), terms.dtype)
    np.add.at(product, into, terms)
    if not np.iscomplexobj(expected):
        product = product.real
    scale = np.bincount(into, np.abs(terms), len(expected)) + np.abs(expected)
    error = np.abs(product - expected)
    wrong = np.flatnonzero(~(error <= np.sqrt(epsilon) * scale))
    if len(wrong):
        shown = ", ".join(map(str, wrong[:8].tolist())) + (", ..." if len(wrong) > 8 else "")
        raise ValueError(
            f"the mask of leaf {path!r} misses nonzeros of the Jacobian: its product with a random "
            f"direction is off by up to {error[wrong].max():.3g} in {len(wrong)} {lines} ({shown})"
        )


def split_columns(
    rows: NDArray[np.integer], cols: NDArray[np.integer], num_rows: int, sizes: Sequence[int]
) -> list[SparsityPattern]:
    """Cut a pattern over the concatenation of several leaves into one pattern per leaf."""
    ends = np.cumsum(sizes)
    patterns = []
    for size, end in zip(sizes, ends, strict=True):
        own = (cols >= end - size) & (cols < end)
        patterns.append(
            SparsityPattern.from_coo(rows[own], cols[own] - (end - size), (num_rows, size))
        )
    return patterns

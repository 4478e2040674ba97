"""`mix`: add values on a pattern to those on a pattern that contains it."""

from __future__ import annotations

from typing import Any

from tritonsnap.ops.dispatch import face_of


def mix(a: Any, b: Any, positions: Any) -> Any:
    """Add the values on one pattern to those on a pattern that contains it.

    Parameters
    ----------
    a : array [..., nnz(a)]
        Values on the containing pattern.
    b : array [..., nnz(b)]
        Values on the contained one, with the same leading axes.
    positions : int [nnz(b)]
        Where the values of `b` lie among those of `a`: ``pattern_a.positions(pattern_b)``, found
        once and kept. NumPy, or of the library and device of `a`.

    Returns
    -------
    array [..., nnz(a)]
        A new array: `a` with `b` added.

    Raises
    ------
    ValueError
        If the shapes do not fit, or a position is out of range (in JAX under a transformation,
        where no value is known, that entry of `b` is left out).
    TypeError
        If `positions` are no integers, or the arrays belong to different libraries.

    Examples
    --------
    >>> import numpy as np
    >>> from tritonsnap.sparsity import SparsityPattern
    >>> influence = SparsityPattern.from_coo([0, 1, 1], [0, 0, 1], (2, 2))
    >>> immediate = SparsityPattern.identity(2)
    >>> mix(np.array([1, 2, 3]), np.array([10, 20]), influence.positions(immediate))
    array([11,  2, 23])
    """
    return face_of(__name__, a=a, b=b).mix(a, b, positions)

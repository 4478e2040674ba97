"""Flat values to and from JAX's BCOO and BCSR.

Values in canonical order are by column, and JAX's matrices by row: so the *transposed* matrix
shares the values, and the other one is a copy in another order.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.sparse import BCOO, BCSR

from tritonsnap.checks import check_instance
from tritonsnap.formats.order import canonical_order, row_major, row_pointers
from tritonsnap.sparsity.indices import index_dtype
from tritonsnap.sparsity.pattern import SparsityPattern


def to_bcoo(values: jax.Array, pattern: SparsityPattern, *, transposed: bool = False) -> BCOO:
    """Make a BCOO of values ``[nnz]``, without copying them.

    Parameters
    ----------
    values, pattern
        What the matrix ``[rows, columns]`` holds and where.
    transposed
        Make ``[columns, rows]`` instead, whose indices are sorted.

    Raises
    ------
    ValueError
        If `values` is not ``[nnz]``.
    """
    _check_flat(values, pattern)
    pair = (pattern.cols, pattern.rows) if transposed else (pattern.rows, pattern.cols)
    indices = np.stack(pair, axis=1).astype(index_dtype(max(pattern.shape)))
    return BCOO(
        (values, jnp.asarray(indices)),
        shape=pattern.shape[::-1] if transposed else pattern.shape,
        indices_sorted=transposed,
        unique_indices=True,
    )


def from_bcoo(matrix: BCOO) -> tuple[jax.Array, SparsityPattern]:
    """Take the values ``[nnz]`` and the pattern of a BCOO; its indices must not be traced.

    Padding is left out and duplicates are summed. If the indices are in canonical order already
    (as `to_bcoo` makes them), the values are those of `matrix`, not copied.
    """
    check_instance("matrix", matrix, BCOO)
    if isinstance(matrix.indices, jax.core.Tracer):
        raise TypeError("`matrix` has traced indices: convert it outside of jit")
    if matrix.n_batch or matrix.n_dense or matrix.n_sparse != 2:
        raise ValueError(
            "`matrix` must be a BCOO with n_sparse=2 and no batch or dense axes, got n_batch="
            f"{matrix.n_batch}, n_sparse={matrix.n_sparse}, n_dense={matrix.n_dense}"
        )
    rows, cols = np.asarray(matrix.indices).T
    order = canonical_order(rows, cols, (matrix.shape[0], matrix.shape[1]))
    if order.is_identity:
        return matrix.data, order.pattern
    if order.source is not None:
        return matrix.data[order.source], order.pattern
    entries = matrix.data if order.inside is None else matrix.data[order.inside]
    return jnp.zeros(order.pattern.nnz, entries.dtype).at[order.target].add(entries), order.pattern


def to_bcsr(values: jax.Array, pattern: SparsityPattern, *, transposed: bool = False) -> BCSR:
    """Make a BCSR of values ``[nnz]``.

    The arguments are those of `to_bcoo`. The transposed matrix shares the values; the other one
    has them in row-major order.
    """
    _check_flat(values, pattern)
    if transposed:
        indices, pointers = pattern.rows, pattern.indptr
    else:
        order = row_major(pattern)
        values, indices, pointers = values[order], pattern.cols[order], row_pointers(pattern)
    return BCSR(
        (
            values,
            jnp.asarray(indices),
            jnp.asarray(pointers.astype(index_dtype(pattern.nnz))),
        ),
        shape=pattern.shape[::-1] if transposed else pattern.shape,
        indices_sorted=True,
        unique_indices=True,
    )


def from_bcsr(matrix: BCSR) -> tuple[jax.Array, SparsityPattern]:
    """Take the values ``[nnz]`` and the pattern of a BCSR; see `from_bcoo`."""
    check_instance("matrix", matrix, BCSR)
    return from_bcoo(matrix.to_bcoo())


def _check_flat(values: jax.Array, pattern: SparsityPattern) -> None:
    check_instance("pattern", pattern, SparsityPattern)
    if getattr(values, "shape", None) != (pattern.nnz,):
        given = list(values.shape) if hasattr(values, "shape") else type(values).__name__
        raise ValueError(f"`values` must have shape [{pattern.nnz}], got {given}")

"""Flat values to and from torch's COO, CSR and CSC tensors.

Values in canonical order are those of a CSC tensor, and of the CSR tensor of the *transposed*
matrix: these share them. A CSR tensor of the matrix itself is a copy in another order.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from tritonsnap.checks import check_instance
from tritonsnap.formats.order import canonical_order, row_major, row_pointers
from tritonsnap.sparsity.pattern import SparsityPattern


def to_coo(values: torch.Tensor, pattern: SparsityPattern) -> torch.Tensor:
    """Make a COO tensor of values ``[nnz]``, without copying them.

    It is not coalesced: torch wants that by row, and canonical order is by column.

    Raises
    ------
    ValueError
        If `values` is not ``[nnz]``.
    """
    _check_flat(values, pattern)
    indices = torch.stack([_index(pattern.rows, values), _index(pattern.cols, values)])
    return torch.sparse_coo_tensor(indices, values, pattern.shape, check_invariants=False)


def to_csc(values: torch.Tensor, pattern: SparsityPattern) -> torch.Tensor:
    """Make a CSC tensor of values ``[nnz]``, without copying them."""
    _check_flat(values, pattern)
    return torch.sparse_csc_tensor(
        _index(pattern.indptr, values),
        _index(pattern.rows, values),
        values,
        pattern.shape,
        check_invariants=False,
    )


def to_csr(
    values: torch.Tensor, pattern: SparsityPattern, *, transposed: bool = False
) -> torch.Tensor:
    """Make a CSR tensor of values ``[nnz]``.

    Parameters
    ----------
    values, pattern
        What the matrix ``[rows, columns]`` holds and where.
    transposed
        Make ``[columns, rows]`` instead, which shares the values; else they are put in row-major
        order.
    """
    _check_flat(values, pattern)
    if transposed:
        pointers, columns, shape = pattern.indptr, pattern.rows, pattern.shape[::-1]
    else:
        order = row_major(pattern)
        pointers, columns, shape = row_pointers(pattern), pattern.cols[order], pattern.shape
        values = values.index_select(0, _index(order, values))
    return torch.sparse_csr_tensor(
        _index(pointers, values), _index(columns, values), values, shape, check_invariants=False
    )


def from_sparse(matrix: torch.Tensor) -> tuple[torch.Tensor, SparsityPattern]:
    """Take the values ``[nnz]`` and the pattern of a 2-D COO, CSR or CSC tensor.

    Duplicates are summed. If the entries are in canonical order already (those of a sorted CSC
    tensor are), the values are those of `matrix`, not copied.

    Raises
    ------
    TypeError
        If `matrix` is no such tensor.
    """
    check_instance("matrix", matrix, torch.Tensor)
    if matrix.layout not in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        raise TypeError(f"`matrix` must be a COO, CSR or CSC tensor, got layout {matrix.layout}")
    if matrix.ndim != 2 or matrix.dense_dim():
        raise TypeError(f"`matrix` must be 2-D with scalar entries, got {tuple(matrix.shape)}")
    entries = matrix._values() if matrix.layout == torch.sparse_coo else matrix.values()
    rows, cols = _coordinates(matrix)
    order = canonical_order(rows, cols, (matrix.shape[0], matrix.shape[1]))
    if order.is_identity:
        return entries, order.pattern
    if order.source is not None:
        return entries.index_select(0, _index(order.source, entries)), order.pattern
    zeros = entries.new_zeros(order.pattern.nnz)
    return zeros.index_add(0, _index(order.target, entries), entries), order.pattern


def _coordinates(matrix: torch.Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if matrix.layout == torch.sparse_coo:
        rows, cols = matrix._indices().cpu().numpy()
        return rows, cols
    by_row = matrix.layout == torch.sparse_csr
    pointers = (matrix.crow_indices() if by_row else matrix.ccol_indices()).cpu().numpy()
    minor = (matrix.col_indices() if by_row else matrix.row_indices()).cpu().numpy()
    major = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    return (major, minor) if by_row else (minor, major)


def _index(array: NDArray[np.integer], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(array, dtype=torch.int64, device=like.device)


def _check_flat(values: torch.Tensor, pattern: SparsityPattern) -> None:
    check_instance("values", values, torch.Tensor)
    check_instance("pattern", pattern, SparsityPattern)
    if values.shape != (pattern.nnz,):
        raise ValueError(f"`values` must have shape [{pattern.nnz}], got {list(values.shape)}")

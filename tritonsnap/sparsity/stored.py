"""What the sparse matrices of other libraries store. Imports none of them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Coordinates = tuple[NDArray[np.integer], NDArray[np.integer], tuple[int, int]]


def stored_coordinates(matrix: Any) -> Coordinates:
    """Row and column of each stored entry, and the shape; see `SparsityPattern.from_sparse`."""
    if hasattr(matrix, "n_sparse") and not hasattr(matrix, "indptr"):  # JAX BCOO
        if matrix.n_batch or matrix.n_dense or matrix.n_sparse != 2:
            raise ValueError(
                "`matrix` must be a BCOO with n_sparse=2 and no batch or dense axes, got "
                f"n_batch={matrix.n_batch}, n_sparse={matrix.n_sparse}, "
                f"n_dense={matrix.n_dense}"
            )
        rows, cols = np.asarray(matrix.indices).T
        inside = (rows < matrix.shape[0]) & (cols < matrix.shape[1])
        return rows[inside], cols[inside], tuple(matrix.shape)
    if hasattr(matrix, "tocoo"):  # SciPy
        coo = matrix.tocoo()
        return coo.row, coo.col, coo.shape
    if hasattr(matrix, "sparse_dim"):  # torch
        torch = sys.modules["torch"]
        if matrix.ndim != 2 or matrix.dense_dim():
            raise ValueError(
                f"`matrix` must be a 2-D sparse tensor of scalars, got {tuple(matrix.shape)}"
            )
        shape = (matrix.shape[0], matrix.shape[1])
        if matrix.layout == torch.sparse_coo:
            rows, cols = matrix._indices().cpu().numpy()
            return rows, cols, shape
        if matrix.layout == torch.sparse_csr:
            indptr, cols = matrix.crow_indices().cpu().numpy(), matrix.col_indices()
            rows = np.repeat(np.arange(shape[0]), np.diff(indptr))
            return rows, cols.cpu().numpy(), shape
        if matrix.layout == torch.sparse_csc:
            indptr, rows = matrix.ccol_indices().cpu().numpy(), matrix.row_indices()
            cols = np.repeat(np.arange(shape[1]), np.diff(indptr))
            return rows.cpu().numpy(), cols, shape
    raise TypeError(
        "`matrix` must be a SciPy sparse matrix, a JAX BCOO or a sparse torch tensor, "
        f"got {type(matrix).__name__}"
    )


def is_sparse_torch(source: Any) -> bool:
    """Whether something is a torch tensor with a sparse layout; imports no torch."""
    torch = sys.modules.get("torch")
    return (
        torch is not None and isinstance(source, torch.Tensor) and (source.layout != torch.strided)
    )

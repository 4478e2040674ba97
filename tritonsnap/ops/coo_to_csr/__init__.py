"""Row pointers of the entries of a sparse matrix."""

from __future__ import annotations

from typing import Any

from tritonsnap.arrays import library_of_arguments
from tritonsnap.checks import check_flag


def coo_to_csr(rows: Any, num_rows: int, *, indices_are_sorted: bool = False) -> Any:
    """Compress the row indices of a sparse matrix's entries to row pointers.

    The entries of row r are the ones from ``pointers[r]`` to ``pointers[r + 1] - 1`` once they
    are stably sorted by row. On a GPU: a binary search per row in sorted rows; otherwise
    histograms of chunks and a parallel prefix scan. There is no atomic on floats and every
    pointer has one owner, so the same input gives the same bits.

    Parameters
    ----------
    rows : array of int32 or int64, shape [nnz]
        The row of each entry, in any order. NumPy, torch or JAX. On a GPU torch copies rows that
        are not contiguous.
    num_rows : int
        The number of rows of the matrix.
    indices_are_sorted : bool
        Promise that `rows` never decreases. Broken, it is an error on the CPU; on a GPU the
        pointers are undefined.

    Returns
    -------
    array of int, shape [num_rows + 1]
        Of the dtype of `rows`, or of int64 where nnz needs it. The last pointer is nnz.

    Raises
    ------
    TypeError
        If `rows` is no array of int32 or int64, or `num_rows` no integer.
    ValueError
        If `rows` has not one dimension, `num_rows` is negative, or a row is outside of
        [0, num_rows). On a GPU torch checks the rows without waiting for them: they end as an
        asynchronous device-side assertion, as torch's own indexing does. Under a transformation
        of JAX, where no value is known, entries outside are left out, so the last pointer is less
        than nnz.
    """
    check_flag("indices_are_sorted", indices_are_sorted)
    face: Any
    library = library_of_arguments({"rows": rows})
    if library == "torch":  # import statements, because torch.compile follows no other import
        from tritonsnap.ops.coo_to_csr import torch as face
    elif library == "jax":
        from tritonsnap.ops.coo_to_csr import jax as face
    else:
        from tritonsnap.ops.coo_to_csr import numpy as face
    return face.coo_to_csr(rows, num_rows, indices_are_sorted=indices_are_sorted)

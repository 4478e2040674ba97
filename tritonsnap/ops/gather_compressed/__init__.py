"""`gather_compressed`: the nonzeros of a Jacobian from its compressed form."""

from __future__ import annotations

from typing import Any

from tritonsnap.ops.dispatch import face_of
from tritonsnap.sparsity.compression import Projection


def gather_compressed(compressed: Any, projection: Projection) -> Any:
    """Read the nonzeros of a Jacobian ``[m, p]`` from its compressed form.

    A compressed Jacobian is ``V J``: row c of it is the sum of all rows of J that have color c,
    which is what one VJP with a seed of ones and zeros computes. Rows of one color share no column,
    so each nonzero ``J[i, j]`` stands alone in ``compressed[color of i, j]``. For JVPs it is
    ``(J U)^T`` in the same way. Curtis, Powell & Reid, "On the estimation of sparse Jacobian
    matrices", 1974.

    Parameters
    ----------
    compressed : array [..., colors, p]
        For VJPs; ``[..., colors, m]`` for JVPs. In general ``[..., *compressed_shape]`` of
        `projection.compression`. Any dtype; leading axes are batch.
    projection
        A leaf of what `make_jacobian_projection` returns. Its index arrays may be NumPy's or of the
        library and device of `compressed`.

    Returns
    -------
    array [..., nnz]
        The values at `projection.pattern`, in canonical order; zero where that pattern leaves the
        mask.

    Raises
    ------
    ValueError
        If the last two axes are not the compressed shape of `projection`.

    Examples
    --------
    Rows 0 and 1 of ``[[1, 0], [0, 2], [3, 4]]`` share a color:

    >>> import numpy as np
    >>> from tritonsnap.sparsity import Compression, Projection, SparsityPattern
    >>> pattern = SparsityPattern.from_coo([0, 1, 2, 2], [0, 1, 0, 1], (3, 2))
    >>> projection = Projection.of(Compression.of(pattern, mode="row"))
    >>> projection.row_colors
    array([1, 1, 0], dtype=int32)
    >>> gather_compressed(np.array([[3, 4], [1, 2]]), projection)
    array([1, 3, 2, 4])
    """
    return face_of(__name__, compressed=compressed).gather_compressed(compressed, projection)

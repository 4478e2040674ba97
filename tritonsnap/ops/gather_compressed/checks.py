"""What all faces check."""

from __future__ import annotations

from typing import Any

from tritonsnap.sparsity.compression import Projection


def check_arguments(compressed: Any, projection: Projection) -> None:
    """Raise unless `compressed` ends in the compressed shape of `projection`."""
    if not isinstance(projection, Projection):
        raise TypeError(
            "`projection` must be a Projection (one leaf of a JacobianProjection), "
            f"got {type(projection).__name__}"
        )
    expected = projection.compression.compressed_shape
    if tuple(compressed.shape[-2:]) != expected:
        raise ValueError(
            f"`compressed` must have shape [..., {expected[0]}, {expected[1]}], "
            f"got {list(compressed.shape)}"
        )

"""The ops and sparse Jacobians of tritonsnap for torch."""

from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.jacobian.torch import (
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.ops.gather_compressed.torch import gather_compressed

__all__ = [
    "JacobianProjection",
    "detect_pattern",
    "gather_compressed",
    "make_jacobian_projection",
    "sp_jacfwd",
    "sp_jacrev",
    "verify_projection",
]

"""The ops and sparse Jacobians of tritonsnap for JAX."""

from tritonsnap.jacobian.jax import (
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.ops.gather_compressed.jax import gather_compressed

__all__ = [
    "JacobianProjection",
    "detect_pattern",
    "gather_compressed",
    "make_jacobian_projection",
    "sp_jacfwd",
    "sp_jacrev",
    "verify_projection",
]

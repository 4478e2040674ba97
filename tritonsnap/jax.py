"""The ops and sparse Jacobians of tritonsnap for JAX."""

from tritonsnap.formats.jax import from_bcoo, from_bcsr, to_bcoo, to_bcsr
from tritonsnap.jacobian.jax import (
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.ops.gather_compressed.jax import gather_compressed
from tritonsnap.ops.mix.jax import mix

__all__ = [
    "JacobianProjection",
    "detect_pattern",
    "from_bcoo",
    "from_bcsr",
    "gather_compressed",
    "make_jacobian_projection",
    "mix",
    "sp_jacfwd",
    "sp_jacrev",
    "to_bcoo",
    "to_bcsr",
    "verify_projection",
]

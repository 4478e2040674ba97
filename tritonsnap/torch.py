"""The ops and sparse Jacobians of tritonsnap for torch."""

from tritonsnap.formats.torch import from_sparse, to_coo, to_csc, to_csr
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.jacobian.torch import (
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.ops.gather_compressed.torch import gather_compressed
from tritonsnap.ops.mix.torch import mix

__all__ = [
    "JacobianProjection",
    "detect_pattern",
    "from_sparse",
    "gather_compressed",
    "make_jacobian_projection",
    "mix",
    "sp_jacfwd",
    "sp_jacrev",
    "to_coo",
    "to_csc",
    "to_csr",
    "verify_projection",
]

"""The ops and sparse Jacobians for PyTorch: what to import into one's own PyTorch code."""

from tritonsnap.arrays import import_library

import_library("torch")  # or says how to install it

from tritonsnap.formats.torch import from_sparse, to_coo, to_csc, to_csr
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.jacobian.torch import (
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.online.sharded_torch import Sharded
from tritonsnap.ops.coo_to_csr.torch import coo_to_csr
from tritonsnap.ops.gather_compressed.torch import gather_compressed
from tritonsnap.ops.influence_gradient.torch import influence_gradient
from tritonsnap.ops.influence_update.torch import influence_update
from tritonsnap.ops.masked_dsmm.torch import masked_dsmm
from tritonsnap.ops.masked_outer.torch import masked_outer
from tritonsnap.ops.mix.torch import mix

__all__ = [
    "JacobianProjection",
    "Sharded",
    "coo_to_csr",
    "detect_pattern",
    "from_sparse",
    "gather_compressed",
    "influence_gradient",
    "influence_update",
    "make_jacobian_projection",
    "masked_dsmm",
    "masked_outer",
    "mix",
    "sp_jacfwd",
    "sp_jacrev",
    "to_coo",
    "to_csc",
    "to_csr",
    "verify_projection",
]

"""The ops and sparse Jacobians for JAX: what to import into one's own JAX code."""

from tritonsnap.arrays import import_library

import_library("jax")  # or says how to install it

import tritonsnap.online.jax_sequence  # noqa: F401 - registers plans and learners as pytrees
from tritonsnap.formats.jax import from_bcoo, from_bcsr, to_bcoo, to_bcsr
from tritonsnap.jacobian.jax import (
    detect_pattern,
    make_jacobian_projection,
    sp_jacfwd,
    sp_jacrev,
    verify_projection,
)
from tritonsnap.jacobian.projection import JacobianProjection
from tritonsnap.online.sharded_jax import Sharded
from tritonsnap.ops.coo_to_csr.jax import coo_to_csr
from tritonsnap.ops.gather_compressed.jax import gather_compressed
from tritonsnap.ops.influence_gradient.jax import influence_gradient
from tritonsnap.ops.influence_update.jax import influence_update
from tritonsnap.ops.masked_dsmm.jax import masked_dsmm
from tritonsnap.ops.masked_outer.jax import masked_outer
from tritonsnap.ops.mix.jax import mix
from tritonsnap.plan.jax_target import lower_for

__all__ = [
    "JacobianProjection",
    "Sharded",
    "coo_to_csr",
    "detect_pattern",
    "from_bcoo",
    "from_bcsr",
    "gather_compressed",
    "influence_gradient",
    "influence_update",
    "lower_for",
    "make_jacobian_projection",
    "masked_dsmm",
    "masked_outer",
    "mix",
    "sp_jacfwd",
    "sp_jacrev",
    "to_bcoo",
    "to_bcsr",
    "verify_projection",
]

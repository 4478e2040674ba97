"""The ops for JAX: what to import into one's own JAX code."""

import tritonsnap.online.jax_sequence  # noqa: F401 - registers plans and learners as pytrees
from tritonsnap.ops.coo_to_csr.jax import coo_to_csr
from tritonsnap.ops.influence_gradient.jax import influence_gradient
from tritonsnap.ops.influence_update.jax import influence_update
from tritonsnap.ops.masked_dsmm.jax import masked_dsmm
from tritonsnap.ops.masked_outer.jax import masked_outer

__all__ = ["coo_to_csr", "influence_gradient", "influence_update", "masked_dsmm", "masked_outer"]

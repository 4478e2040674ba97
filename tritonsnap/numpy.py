"""The ops for NumPy: what to import into one's own NumPy code."""

from tritonsnap.ops.coo_to_csr.numpy import coo_to_csr
from tritonsnap.ops.gather_compressed.numpy import gather_compressed
from tritonsnap.ops.influence_gradient.numpy import influence_gradient
from tritonsnap.ops.influence_step import influence_step
from tritonsnap.ops.influence_update.numpy import influence_update
from tritonsnap.ops.masked_dsmm.numpy import masked_dsmm
from tritonsnap.ops.masked_outer.numpy import masked_outer
from tritonsnap.ops.mix.numpy import mix

__all__ = [
    "coo_to_csr",
    "gather_compressed",
    "influence_gradient",
    "influence_step",
    "influence_update",
    "masked_dsmm",
    "masked_outer",
    "mix",
]

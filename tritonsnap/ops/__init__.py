"""The ops: one folder each, with the same function for NumPy, PyTorch and JAX."""

from tritonsnap.ops.coo_to_csr import coo_to_csr
from tritonsnap.ops.gather_compressed import gather_compressed
from tritonsnap.ops.influence_gradient import influence_gradient
from tritonsnap.ops.influence_step import influence_step
from tritonsnap.ops.influence_update import influence_update
from tritonsnap.ops.masked_dsmm import masked_dsmm
from tritonsnap.ops.masked_outer import masked_outer
from tritonsnap.ops.mix import mix

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

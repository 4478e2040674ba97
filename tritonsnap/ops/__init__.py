"""The ops: one folder each, with the same function for NumPy, PyTorch and JAX."""

from tritonsnap.ops.coo_to_csr import coo_to_csr
from tritonsnap.ops.influence_gradient import influence_gradient
from tritonsnap.ops.influence_update import influence_update
from tritonsnap.ops.masked_dsmm import masked_dsmm
from tritonsnap.ops.masked_outer import masked_outer

__all__ = ["coo_to_csr", "influence_gradient", "influence_update", "masked_dsmm", "masked_outer"]

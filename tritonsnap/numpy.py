"""The ops for NumPy: what to import into one's own NumPy code."""

from tritonsnap.ops.coo_to_csr.numpy import coo_to_csr
from tritonsnap.ops.influence_gradient.numpy import influence_gradient
from tritonsnap.ops.influence_update.numpy import influence_update
from tritonsnap.ops.masked_dsmm.numpy import masked_dsmm
from tritonsnap.ops.masked_outer.numpy import masked_outer

__all__ = ["coo_to_csr", "influence_gradient", "influence_update", "masked_dsmm", "masked_outer"]

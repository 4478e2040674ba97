"""The ops for PyTorch: what to import into one's own PyTorch code."""

from tritonsnap.ops.coo_to_csr.torch import coo_to_csr
from tritonsnap.ops.influence_gradient.torch import influence_gradient
from tritonsnap.ops.influence_update.torch import influence_update
from tritonsnap.ops.masked_dsmm.torch import masked_dsmm
from tritonsnap.ops.masked_outer.torch import masked_outer

__all__ = ["coo_to_csr", "influence_gradient", "influence_update", "masked_dsmm", "masked_outer"]

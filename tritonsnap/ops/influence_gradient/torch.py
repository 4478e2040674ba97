"""`influence_gradient` in PyTorch: CPU tensors share their memory with NumPy."""

from __future__ import annotations

from torch import Tensor

from tritonsnap.ops.influence_gradient import numpy as face
from tritonsnap.ops.shared_memory import to_numpy_tree, to_torch_tree
from tritonsnap.plan.dsmm_plan import DsmmPlan


def influence_gradient(
    delta: Tensor,
    j: Tensor | tuple[Tensor, ...],
    plan: DsmmPlan,
    *,
    sum_batch: bool = False,
    packed: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """PyTorch face of `tritonsnap.influence_gradient`."""
    result = face.influence_gradient(
        to_numpy_tree(delta), to_numpy_tree(j), plan, sum_batch=sum_batch, packed=packed
    )
    return to_torch_tree(result)

"""`influence_update` in PyTorch: CPU tensors share their memory with NumPy."""

from __future__ import annotations

from torch import Tensor

from tritonsnap.ops.influence_update import numpy as face
from tritonsnap.ops.shared_memory import to_numpy_tree, to_torch_tree
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors


def influence_update(
    d: Tensor,
    j: Tensor | tuple[Tensor, ...],
    immediate: Tensor | tuple[Tensor, ...] | Factors,
    plan: DsmmPlan,
    *,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
) -> Tensor | tuple[Tensor, ...]:
    """PyTorch face of `tritonsnap.influence_update`."""
    result = face.influence_update(
        to_numpy_tree(d),
        to_numpy_tree(j),
        to_numpy_tree(immediate),
        plan,
        row_scale=to_numpy_tree(row_scale),
        precision=precision,
    )
    return to_torch_tree(result)

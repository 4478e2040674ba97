"""`masked_dsmm` in PyTorch: CPU tensors share their memory with NumPy."""

from __future__ import annotations

from torch import Tensor

from tritonsnap.ops.masked_dsmm import numpy as face
from tritonsnap.ops.shared_memory import to_numpy_tree, to_torch_tree
from tritonsnap.plan.dsmm_plan import DsmmPlan


def masked_dsmm(
    d: Tensor,
    x: Tensor | tuple[Tensor, ...],
    plan: DsmmPlan,
    *,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
) -> Tensor | tuple[Tensor, ...]:
    """PyTorch face of `tritonsnap.masked_dsmm`."""
    result = face.masked_dsmm(
        to_numpy_tree(d),
        to_numpy_tree(x),
        plan,
        row_scale=to_numpy_tree(row_scale),
        precision=precision,
    )
    return to_torch_tree(result)

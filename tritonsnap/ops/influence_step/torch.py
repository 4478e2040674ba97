"""`influence_step` in PyTorch as one kernel, where there is one for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tritonsnap.ops.arguments import Form
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors
from tritonsnap.plan.torch_operator import is_plain


def is_fused(
    d: Tensor, j: Any, immediate: Any, delta: Tensor, plan: DsmmPlan, row_scale: Tensor | None
) -> bool:
    """Whether the kernel serves these operands: on a GPU, without derivatives, of one dtype."""
    if d.device.type == "cpu" or torch.compiler.is_compiling():
        return False
    added = immediate[:-1] if isinstance(immediate, (Factors, Compressed)) else immediate
    operands = [d, delta] if row_scale is None else [d, delta, row_scale]
    for one in (j, added):
        operands += one if isinstance(one, (tuple, list)) else [one]
    real = all(one.dtype == d.dtype and not one.is_complex() for one in operands)
    return real and is_plain(operands) and plan.packing("triton").blocks[0].elementwise


def fused_step(
    d: Tensor,
    j: Any,
    immediate: Any,
    delta: Tensor,
    plan: DsmmPlan,
    row_scale: Tensor | None,
    form: Form | None,
    packed: bool,
) -> tuple[Any, Any]:
    """The step in one launch."""
    from tritonsnap.ops.influence_update.triton import snap1_step

    influence, gradient = snap1_step(d, j, immediate, delta, plan, row_scale=row_scale, form=form)
    return influence, (gradient,) if packed else gradient

"""`influence_step` in PyTorch as one kernel, where there is one for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tritonsnap.ops.arguments import (
    Form,
    check_rows,
    dynamics_form,
    read_influence,
)
from tritonsnap.ops.influence_update.compressed import read_immediate
from tritonsnap.ops.influence_update.out import Operands
from tritonsnap.ops.influence_update.torch_out import write_step
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors
from tritonsnap.plan.torch_layout import torch_packing
from tritonsnap.plan.torch_operator import is_transformed


def is_fused(
    d: Tensor, j: Any, immediate: Any, delta: Tensor, plan: DsmmPlan, row_scale: Tensor | None
) -> bool:
    """Whether the kernel serves these operands: on a GPU, without derivatives, of one dtype."""
    if d.device.type == "cpu":
        return False
    added = immediate[:-1] if isinstance(immediate, (Factors, Compressed)) else immediate
    operands = [d, delta] if row_scale is None else [d, delta, row_scale]
    for one in (j, added):
        operands += one if isinstance(one, (tuple, list)) else [one]
    real = all(one.dtype == d.dtype and not one.is_complex() for one in operands)
    return real and not is_transformed(operands) and _is_elementwise(plan)


@torch.compiler.assume_constant_result
def _is_elementwise(plan: DsmmPlan) -> bool:
    """Whether all columns have one row: asked outside of what is compiled, for it may build."""
    return bool(plan.packing("triton").blocks[0].elementwise)


def fused_step(
    d: Tensor,
    j: Any,
    immediate: Any,
    delta: Tensor,
    plan: DsmmPlan,
    row_scale: Tensor | None,
    form: Form | None,
    packed: bool,
    out: tuple[Tensor, ...] | None = None,
) -> tuple[Any, Any]:
    """The step in one launch."""
    packing = torch_packing(plan, d)
    given = read_influence("j", j, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    rows = {"delta": delta} if row_scale is None else {"delta": delta, "row_scale": row_scale}
    for name, array in rows.items():
        check_rows(name, array, plan.mask.shape[0], given.batch)
    added = read_immediate(immediate, plan, packing, given.batch)
    operands = Operands(d, form, given, added, row_scale, delta)
    blocks, gradient = write_step(packing, operands, out)
    influence = packing.unpack(blocks) if given.flat else blocks
    return influence, (gradient,) if packed else gradient

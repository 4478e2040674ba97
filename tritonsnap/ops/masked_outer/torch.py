"""`masked_outer` in PyTorch: an operator with a CPU kernel and all of its derivatives."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from tritonsnap.ops.arguments import Form, check_form, check_plan, first_array, read_pair
from tritonsnap.ops.masked_dsmm.torch import product, transposed
from tritonsnap.ops.masked_outer import numpy as face
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.torch_layout import torch_packing
from tritonsnap.plan.torch_operator import Call, PlanOperator, Shape, call_key


def masked_outer(
    r: Tensor | tuple[Tensor, ...],
    x: Tensor | tuple[Tensor, ...],
    plan: DsmmPlan,
    *,
    form: Form = "values",
) -> Tensor:
    """PyTorch face of `tritonsnap.masked_outer`."""
    check_plan(plan)
    check_form(form)
    packing = torch_packing(plan, first_array(r))
    left, right = read_pair(r, x, packing)
    if not packing.blocks:
        lead = torch.broadcast_shapes(left.batch, right.batch)
        dtype = torch.promote_types(left.arrays[0].dtype, right.arrays[0].dtype)
        return left.arrays[0].new_zeros((*lead, *_shape(packing, form)), dtype=dtype)
    return outer(packing, left.blocks, right.blocks, form)


def outer(packing: Packing, r: tuple[Tensor, ...], x: tuple[Tensor, ...], form: Form) -> Tensor:
    """R X^T at the entries of D, as values or as a dense matrix."""
    return _outer(call_key(packing, "masked_outer", form), (*r, *x))[0]


class _MaskedOuter(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        return [[len(shape) for shape in call.packing.shapes(side)] for side in ("mask", "x")]

    def shapes(self, call: Call) -> list[Shape]:
        return [_shape(call.packing, call.options[1])]

    def run(self, call: Call, *operands: NDArray[Any]) -> list[NDArray[Any]]:
        num = len(call.packing.blocks)
        return [face.outer(call.packing, operands[:num], operands[num:], call.options[1])]

    def run_on_device(self, call: Call, *operands: Tensor) -> list[Tensor]:
        from tritonsnap.ops.masked_outer.triton import entries_of_outer

        r, x = operands
        return [entries_of_outer(call.packing, r, x, self.lead(call, operands), call.options[1])]

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        packing, form = call.packing, call.options[1]
        num = len(packing.blocks)
        of_r: tuple[Tensor | None, ...] = (None,) * num
        of_x: tuple[Tensor | None, ...] = (None,) * num
        if any(needed[:num]):
            of_r = product(packing, grads[0], form, tuple(x.conj() for x in operands[num:]))
        if any(needed[num:]):
            flipped = transposed(packing, grads[0], form)
            conjugate = tuple(r.conj() for r in operands[:num])
            of_x = product(packing.transposed, flipped, form, conjugate)
        return [*of_r, *of_x]


_outer = _MaskedOuter("masked_outer")


def _shape(packing: Packing, form: Form) -> Shape:
    return packing.dynamics.shape if form == "dense" else (packing.dynamics.nnz,)

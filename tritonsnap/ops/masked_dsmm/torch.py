"""`masked_dsmm` in PyTorch: an operator with a CPU kernel and all of its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tritonsnap.ops.arguments import (
    Form,
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    give_back,
    read_influence,
    with_own_axes,
)
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.masked_dsmm import numpy as face
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.torch_layout import StaticIndex, put, static_index, take, torch_packing
from tritonsnap.plan.torch_operator import Call, PlanOperator, Shape, call_key


def masked_dsmm(
    d: Tensor,
    x: Tensor | tuple[Tensor, ...],
    plan: DsmmPlan,
    *,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
    form: Form | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """PyTorch face of `tritonsnap.masked_dsmm`."""
    check_plan(plan)
    check_precision(precision)
    packing = torch_packing(plan, d)
    given = read_influence("x", x, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    blocks = product(packing, d, form, given.blocks, row_scale, precision)
    return give_back(given, blocks, packing, *with_own_axes(d, form, row_scale))


def product(
    packing: Packing,
    d: Tensor,
    form: Form,
    blocks: tuple[Tensor, ...],
    row_scale: Tensor | None = None,
    precision: str = "ieee",
) -> tuple[Tensor, ...]:
    """The blocks of M * (D X)."""
    if not blocks:
        return ()
    scale = () if row_scale is None else (row_scale,)
    key = call_key(packing, "masked_dsmm", form, row_scale is not None, precision)
    return _product(key, (d, *scale, *blocks))


class _MaskedDsmm(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        _, form, scaled, _ = call.options
        own = [[2 if form == "dense" else 1], *([[1]] if scaled else [])]
        return [*own, [len(shape) for shape in call.packing.shapes("x")]]

    def shapes(self, call: Call) -> list[Shape]:
        return call.packing.shapes("mask")

    def run(self, call: Call, *operands: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        _, form, scaled, _ = call.options
        scale, blocks = (operands[1], operands[2:]) if scaled else (None, operands[1:])
        dynamics = Dynamics(operands[0], form, call.packing, np)
        return face.product(call.packing, dynamics, blocks, scale)

    def run_on_device(self, call: Call, *operands: Tensor) -> tuple[Tensor, ...]:
        from tritonsnap.ops.masked_dsmm.triton import scaled_product

        _, form, scaled, precision = call.options
        scale = operands[1] if scaled else None
        batch = self.lead(call, operands)
        return (
            scaled_product(call.packing, operands[0], form, operands[-1], scale, batch, precision),
        )

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        _, form, scaled, precision = call.options
        return product_adjoint(
            call.packing,
            form,
            operands[0],
            operands[1] if scaled else None,
            tuple(operands[1 + scaled :]),
            needed,
            tuple(grads),
            precision,
        )


_product = _MaskedDsmm("masked_dsmm")


def product_adjoint(
    packing: Packing,
    form: Form,
    d: Tensor,
    scale: Tensor | None,
    blocks: tuple[Tensor, ...],
    needed: list[bool],
    grads: tuple[Tensor, ...],
    precision: str,
) -> list[Tensor | None]:
    """The gradients of `product` in d, the row scale if there is one, and each block."""
    from tritonsnap.ops.masked_outer.torch import outer  # which is differentiated by this module

    of_d: Tensor | None = None
    of_scale: Tensor | None = None
    num = 1 if scale is None else 2
    if any(needed[:num]):
        of_d = outer(packing, grads, tuple(block.conj() for block in blocks), form)
        if scale is not None:
            of_scale = _sum_rows(packing, of_d * d.conj(), form)
            of_d = of_d * _of_rows(packing, scale.conj(), form)
    of_blocks: tuple[Tensor | None, ...] = (None,) * len(blocks)
    if any(needed[num:]):
        whole = d if scale is None else d * _of_rows(packing, scale, form)
        flipped = transposed(packing, whole.conj(), form)
        of_blocks = product(packing.transposed, flipped, form, grads, precision=precision)
    return [of_d, *(() if scale is None else (of_scale,)), *of_blocks]


def transposed(packing: Packing, d: Tensor, form: Form) -> Tensor:
    """The transposed D, in the same form."""
    if form == "dense":
        return d.mT
    rows, nnz = packing.dynamics.rows, packing.dynamics.nnz
    order = static_index(
        packing,
        ("transposed order",),
        lambda: StaticIndex(np.argsort(rows, kind="stable"), nnz),
    )
    return take(packing, d, order)


def _row_index(packing: Packing) -> StaticIndex:
    rows, num_rows = packing.dynamics.rows, packing.dynamics.shape[0]
    return static_index(packing, ("dynamics rows",), lambda: StaticIndex(rows, num_rows))


def _of_rows(packing: Packing, scale: Tensor, form: Form) -> Tensor:
    """What the row of each entry of D is scaled by, in a shape that multiplies D."""
    return scale[..., None] if form == "dense" else take(packing, scale, _row_index(packing))


def _sum_rows(packing: Packing, d: Tensor, form: Form) -> Tensor:
    """[..., m]: the sum of each row of D."""
    return d.sum(-1) if form == "dense" else put(packing, d, _row_index(packing))

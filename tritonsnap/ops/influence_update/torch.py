"""`influence_update` in PyTorch: an operator with a CPU kernel and all of its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tritonsnap.ops.arguments import (
    Form,
    check_batch,
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    read_influence,
)
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.influence_update import numpy as face
from tritonsnap.ops.influence_update.factors import check_factors
from tritonsnap.ops.masked_dsmm.torch import product, product_adjoint, torch_packing
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import Factors, FactorStructure
from tritonsnap.plan.packing import Packing
from tritonsnap.plan.torch_layout import StaticIndex, put, static_index, take
from tritonsnap.plan.torch_operator import Call, PlanOperator, Shape, call_key, common_dtype


def influence_update(
    d: Tensor,
    j: Tensor | tuple[Tensor, ...],
    immediate: Tensor | tuple[Tensor, ...] | Factors,
    plan: DsmmPlan,
    *,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
    form: Form | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """PyTorch face of `tritonsnap.influence_update`."""
    check_plan(plan)
    check_precision(precision)
    packing = torch_packing(plan, d)
    given = read_influence("j", j, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    if isinstance(immediate, Factors):
        check_factors(immediate, plan, given.batch)
        blocks = update(packing, d, form, given.blocks, immediate, row_scale, precision)
        return packing.unpack(blocks, like=given.values) if given.flat else blocks
    added = read_influence("immediate", immediate, packing, "mask")
    check_batch("immediate", added, given.batch)
    blocks = product(packing, d, form, given.blocks, row_scale, precision)
    if given.flat and added.flat:
        return packing.unpack(blocks, like=given.values) + added.values
    blocks = tuple(block + part for block, part in zip(blocks, added.blocks, strict=True))
    return packing.unpack(blocks, like=given.values) if given.flat else blocks


def update(
    packing: Packing,
    d: Tensor,
    form: Form,
    blocks: tuple[Tensor, ...],
    immediate: Factors,
    row_scale: Tensor | None = None,
    precision: str = "ieee",
) -> tuple[Tensor, ...]:
    """The blocks of M * (D J) + I."""
    if not blocks:
        return ()
    gains, sources, structure = immediate
    scale = () if row_scale is None else (row_scale,)
    key = call_key(packing, "influence_update", form, row_scale is not None, precision, structure)
    return _update(key, (gains, sources, d, *scale, *blocks))


class _InfluenceUpdate(PlanOperator):
    def axes(self, call: Call) -> list[list[int]]:
        _, form, scaled, _, _ = call.options
        own = [[2], [1], [2 if form == "dense" else 1], *([[1]] if scaled else [])]
        return [*own, [len(shape) for shape in call.packing.shapes("x")]]

    def shapes(self, call: Call) -> list[Shape]:
        return call.packing.shapes("mask")

    def run(self, call: Call, *operands: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        _, form, scaled, _, structure = call.options
        gains, sources, d, *rest = operands
        scale, blocks = (rest[0], rest[1:]) if scaled else (None, rest)
        factors = Factors(gains, sources, structure)
        dynamics = Dynamics(d, form, call.packing, np)
        return face.update(call.packing, dynamics, tuple(blocks), factors, scale)

    def run_on_device(self, call: Call, *operands: Tensor) -> tuple[Tensor, ...]:
        from tritonsnap.ops.influence_update.triton import factored_update

        _, form, scaled, precision, structure = call.options
        gains, sources, d, *rest = operands
        scale = rest[0] if scaled else None
        factors = Factors(gains, sources, structure)
        batch = self.lead(call, operands)
        return (factored_update(call.packing, d, form, rest[-1], factors, scale, batch, precision),)

    def adjoint(
        self, call: Call, operands: list[Tensor], needed: list[bool], grads: list[Tensor]
    ) -> list[Tensor | None]:
        _, form, scaled, precision, structure = call.options
        gains, sources, d, *rest = operands
        scale, blocks = (rest[0], rest[1:]) if scaled else (None, rest)
        of_factors: tuple[Tensor | None, ...] = (None, None)
        if any(needed[:2]):
            of_factors = _contract(call.packing, structure, gains, sources, grads)
        of_product = product_adjoint(
            call.packing, form, d, scale, tuple(blocks), needed[2:], tuple(grads), precision
        )
        return [*of_factors, *of_product]

    def tangent(
        self, call: Call, operands: list[Tensor], tangents: list[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """The outputs are linear in D, J and the row scale only beside the immediate Jacobian."""
        _, form, scaled, precision, structure = call.options
        lead = self.lead(call, operands)
        total = [
            operands[0].new_zeros((*lead, *shape), dtype=common_dtype(operands))
            for shape in self.shapes(call)
        ]
        first = 2 + scaled + 1
        for begin, end in ((0, 1), (1, 2), (2, 3), (3, first), (first, len(operands))):
            if all(tangent is None for tangent in tangents[begin:end]):
                continue
            along = list(operands)
            along[begin:end] = [
                one.new_zeros(one.shape) if tangent is None else tangent
                for one, tangent in zip(operands[begin:end], tangents[begin:end], strict=True)
            ]
            gains, sources, d, *rest = along
            if end <= 2:
                term = _expand(call.packing, structure, gains, sources)
            else:
                scale = rest[0] if scaled else None
                term = product(call.packing, d, form, tuple(rest[scaled:]), scale, precision)
            total = [one + other for one, other in zip(total, term, strict=True)]
        return tuple(total)


_update = _InfluenceUpdate("influence_update")


def _expand(
    packing: Packing, structure: FactorStructure, gains: Tensor, sources: Tensor
) -> tuple[Tensor, ...]:
    """The blocks of the immediate Jacobian, multiplied out."""
    blocks = []
    for number, shape in enumerate(packing.shapes("mask")):
        place, gain, source = _entries(packing, structure, number)
        values = take(packing, gains.flatten(-2), gain) * take(packing, sources, source)
        flat = put(packing, values, place)
        blocks.append(flat.reshape(*flat.shape[:-1], *shape))
    return tuple(blocks)


def _contract(
    packing: Packing,
    structure: FactorStructure,
    gains: Tensor,
    sources: Tensor,
    grads: list[Tensor],
) -> tuple[Tensor, Tensor]:
    """The gradients of `_expand` in the gains and in the sources."""
    of_gains: Any = 0
    of_sources: Any = 0
    for number, (grad, shape) in enumerate(zip(grads, packing.shapes("mask"), strict=True)):
        place, gain, source = _entries(packing, structure, number)
        values = take(packing, grad.flatten(-len(shape)), place)
        own_gains = take(packing, gains.flatten(-2), gain)
        own_sources = take(packing, sources, source)
        of_gains = of_gains + put(packing, values * own_sources.conj(), gain)
        of_sources = of_sources + put(packing, values * own_gains.conj(), source)
    return of_gains.reshape(*of_gains.shape[:-1], *gains.shape[-2:]), of_sources


def _entries(
    packing: Packing, structure: FactorStructure, number: int
) -> tuple[StaticIndex, StaticIndex, StaticIndex]:
    """Where a block has its immediate Jacobian, and the gain and source of each such value."""
    block = packing.blocks[number]
    sizes = (
        int(np.prod(block.mask_shape)),
        structure.num_targets * packing.groups.mask.shape[0],
        structure.num_sources,
    )

    def index(which: int) -> StaticIndex:
        return static_index(
            packing,
            ("immediate", which, structure, number),
            lambda: StaticIndex(structure.entries(block, packing)[which], sizes[which]),
        )

    return index(0), index(1), index(2)

"""`influence_update` in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from tritonsnap.ops.influence_update.factors import check_factors
from tritonsnap.ops.masked_dsmm.numpy import _with_zero, product
from tritonsnap.plan.blocks import Block, ElementwiseBlock, WalkBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorBlock, Factors
from tritonsnap.plan.packing import Packing

Array = NDArray[Any]


def influence_update(
    d: Array,
    j: Array | tuple[Array, ...],
    immediate: Array | tuple[Array, ...] | Factors,
    plan: DsmmPlan,
    *,
    row_scale: Array | None = None,
    precision: str = "ieee",
    form: Form | None = None,
) -> Array | tuple[Array, ...]:
    """NumPy face of `tritonsnap.influence_update`."""
    check_plan(plan)
    check_precision(precision)
    packing = plan.packing()
    given = read_influence("j", j, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    dynamics = Dynamics(d, form, packing, np)
    if isinstance(immediate, Factors):
        check_factors(immediate, plan, given.batch)
        blocks = update(packing, dynamics, given.blocks, immediate, row_scale)
        return packing.unpack(blocks, like=given.values) if given.flat else blocks
    added = read_influence("immediate", immediate, packing, "mask")
    check_batch("immediate", added, given.batch)
    blocks = product(packing, dynamics, given.blocks, row_scale)
    if given.flat and added.flat:
        return packing.unpack(blocks, like=given.values) + added.values
    blocks = tuple(block + part for block, part in zip(blocks, added.blocks, strict=True))
    return packing.unpack(blocks, like=given.values) if given.flat else blocks


def update(
    packing: Packing,
    dynamics: Dynamics,
    blocks: tuple[Array, ...],
    immediate: Factors,
    row_scale: Array | None = None,
    out: tuple[Array, ...] | None = None,
) -> tuple[Array, ...]:
    """The blocks of M * (D J) + I, written to `out` where it is given."""
    *axes, targets, rows = immediate.gains.shape
    gains = immediate.gains.reshape(*axes, targets * rows)
    lead = np.broadcast_shapes(gains.shape[:-1], immediate.sources.shape[:-1])
    results = product(packing, dynamics, blocks, row_scale, out)
    structure = immediate.structure
    for number, (block, factors) in enumerate(
        zip(packing.blocks, structure.layout(packing), strict=True)
    ):
        result = results[number]
        if len(lead) > result.ndim - len(block.mask_shape):
            result = np.broadcast_to(result, (*lead, *block.mask_shape)).copy()
            results = (*results[:number], result, *results[number + 1 :])
        _add(result, block, factors, gains, immediate.sources, packing.groups.mask.shape[0])
    return results


def _add(
    result: Array, block: Block, factors: FactorBlock, gains: Array, sources: Array, rows: int
) -> None:
    """Add the factored immediate Jacobian to a block, in place."""
    if factors.outer:
        assert isinstance(block, ElementwiseBlock)  # only these have outer factors
        gain = gains[..., factors.target * rows :][..., block.mask_row][..., None]
        begin = 0
        for first, count in factors.stretches:
            piece = sources[..., None, first : first + count]
            result[..., begin : begin + count] += gain * piece
            begin += count
        return
    index = factors.target_index * np.int64(rows) + factors.row  # [parts, G, C]
    gain = gains[..., index]
    values = gain * _with_zero(sources)[..., None, factors.source_index]
    if isinstance(block, ElementwiseBlock):
        inside = factors.place == 0
        result += np.where(inside, values, 0).sum(axis=-3)
        return
    groups = np.arange(len(block.groups))[:, None]
    columns = np.arange(block.columns.width)
    if isinstance(block, WalkBlock):
        begin = block.mask_indptr.astype(np.int64)
        size, first = np.diff(begin)[:, None], begin[:-1, None]
    else:
        size = np.full_like(groups, block.mask_shape[1])
    for part in range(len(factors.place)):
        place, added = factors.place[part].astype(np.int64), values[..., part, :, :]
        inside = place < size
        axes = (first + place,) if isinstance(block, WalkBlock) else (groups, place)
        at: tuple[Array, ...] = tuple(np.broadcast_to(axis, inside.shape) for axis in axes)
        if inside.shape[1] == 1:  # all columns of a group belong to one unit: whole rows
            kept = inside[:, 0]
            result[(..., *(along[kept, 0] for along in at), slice(None))] += added[..., kept, :]
        else:
            kept = inside & (factors.source_index < sources.shape[-1])
            column = np.broadcast_to(columns, kept.shape)[kept]
            result[(..., *(along[kept] for along in at), column)] += added[..., kept]

"""`masked_dsmm` in NumPy, with SciPy's compiled CSR product where a plan is packed for it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from tritonsnap.ops.dynamics import Dynamics, gather_groups
from tritonsnap.plan.blocks import DenseBlock, ElementwiseBlock, WalkBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing

Array = NDArray[Any]


def masked_dsmm(
    d: Array,
    x: Array | tuple[Array, ...],
    plan: DsmmPlan,
    *,
    row_scale: Array | None = None,
    precision: str = "ieee",
    form: Form | None = None,
) -> Array | tuple[Array, ...]:
    """NumPy face of `tritonsnap.masked_dsmm`."""
    check_plan(plan)
    check_precision(precision)
    packing = plan.packing()
    given = read_influence("x", x, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    blocks = product(packing, Dynamics(d, form, packing, np), given.blocks, row_scale)
    return give_back(given, blocks, packing, *with_own_axes(d, form, row_scale))


def product(
    packing: Packing,
    dynamics: Dynamics,
    blocks: tuple[Array, ...],
    row_scale: Array | None = None,
    out: tuple[Array, ...] | None = None,
) -> tuple[Array, ...]:
    """The blocks of M * (D X), written to `out` where it is given.

    Elementwise blocks may be written over themselves; the others read all of X.
    """
    scaled = dynamics if row_scale is None else dynamics.scaled(row_scale)
    results = []
    for number, (block, x) in enumerate(zip(packing.blocks, blocks, strict=True)):
        into = None if out is None else out[number]
        if isinstance(block, ElementwiseBlock):
            results.append(np.multiply(coefficients(block, scaled)[..., None], x, out=into))
        elif isinstance(block, WalkBlock):
            walk = _walk_by_row if block.by_row else _walk_by_class
            results.append(walk(block, scaled.values, x, into))
        elif row_scale is None or block.whole:
            results.append(np.matmul(gather_groups(scaled, block, np), x, out=into))
        else:  # D is shared by the batch: gather it once, scale what comes out
            result = np.matmul(gather_groups(dynamics, block, np), x)
            scale = _padded_rows(block, row_scale)[..., None]
            if into is None and np.broadcast_shapes(result.shape, scale.shape) == result.shape:
                into = result
            results.append(np.multiply(result, scale, out=into))
    return tuple(results)


def coefficients(block: ElementwiseBlock, dynamics: Dynamics) -> Array:
    """[..., G]: the entry of D that each group of one row is multiplied by."""
    values: Array = dynamics.values
    if block.ordered:
        return values
    if block.complete:
        return values[..., block.position]
    return _with_zero(values)[..., block.position]


def _walk_by_row(block: WalkBlock, values: Array, x: Array, out: Array | None) -> Array:
    """One block-diagonal CSR product over all groups of the block, per batch row."""
    template = block.csr
    entries = values[..., block.position]
    lead = np.broadcast_shapes(entries.shape[:-1], x.shape[:-2])
    if not lead and out is None:
        matrix = copy.copy(template)  # shares the indices, and is this call's own
        matrix.data = entries
        product: Array = matrix @ x
        return product
    entries = np.broadcast_to(entries, (*lead, block.nonzeros))
    x = np.broadcast_to(x, (*lead, *block.x_shape))
    result = np.empty((*lead, *block.mask_shape), np.result_type(values, x)) if out is None else out
    for row in np.ndindex(*lead):
        matrix = copy.copy(template)
        matrix.data = entries[row]
        result[row] = matrix @ x[row]
    return result


def _walk_by_class(block: WalkBlock, values: Array, x: Array, out: Array | None) -> Array:
    """Rows of about equal length at once: their first nonzeros, their second, and so on."""
    dtype = np.result_type(values, x)
    lead = np.broadcast_shapes(values.shape[:-1], x.shape[:-2])
    entries = _with_zero(values)
    stacked = np.empty((*lead, *block.mask_shape), dtype)
    begin = 0
    for row_class in block.classes:
        terms, rows = row_class.position.shape
        part = stacked[..., begin : begin + rows, :]
        part[...] = 0
        for term in range(terms):
            weight = entries[..., row_class.position[term], None]
            part += weight * np.take(x, row_class.x_index[term], axis=-2)
        begin += rows
    return np.take(
        stacked, block.place, axis=-2, out=out, mode="clip" if out is not None else ("raise")
    )


def _with_zero(values: Array) -> Array:
    """`values` with a zero behind them, where padding points to."""
    return np.concatenate([values, np.zeros((*values.shape[:-1], 1), values.dtype)], axis=-1)


def _padded_rows(block: DenseBlock, rows: Array) -> Array:
    """[..., G, S]: the entries of `rows` [..., m] at a dense block's rows, zero at padding."""
    return (_with_zero(rows) if block.padded else rows)[..., block.mask_support]

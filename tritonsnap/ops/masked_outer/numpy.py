"""`masked_outer` in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritonsnap.ops.arguments import Form, check_form, check_plan, read_pair
from tritonsnap.plan.blocks import DenseBlock, ElementwiseBlock, WalkBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing

Array = NDArray[Any]
_VALUES_AT_ONCE = 1 << 20
"""How many products of a walk's nonzeros are held at a time."""


def masked_outer(
    r: Array | tuple[Array, ...],
    x: Array | tuple[Array, ...],
    plan: DsmmPlan,
    *,
    form: Form = "values",
) -> Array:
    """NumPy face of `tritonsnap.masked_outer`."""
    check_plan(plan)
    check_form(form)
    packing = plan.packing()
    left, right = read_pair(r, x, packing)
    if not packing.blocks:
        lead = np.broadcast_shapes(left.batch, right.batch)
        own = (plan.dynamics.nnz,) if form == "values" else plan.dynamics.shape
        return np.zeros((*lead, *own), np.result_type(*left.arrays, *right.arrays))
    return outer(packing, left.blocks, right.blocks, form)


def outer(packing: Packing, r: tuple[Array, ...], x: tuple[Array, ...], form: Form) -> Array:
    """R X^T at the entries of D, as values or as a dense matrix."""
    pattern = packing.dynamics
    lead = np.broadcast_shapes(
        *(a.shape[: a.ndim - len(b.mask_shape)] for a, b in zip(r, packing.blocks, strict=True)),
        *(a.shape[: a.ndim - len(b.x_shape)] for a, b in zip(x, packing.blocks, strict=True)),
    )
    dtype = np.result_type(*r, *x)
    values = np.zeros((*lead, pattern.nnz + 1), dtype)  # the last takes what D lacks
    dense: Array | None = None
    for block, left, right in zip(packing.blocks, r, x, strict=True):
        if isinstance(block, ElementwiseBlock):
            values[..., block.position] += np.einsum("...gc,...gc->...g", left, right)
        elif isinstance(block, WalkBlock):
            _add_walk(values, block, left, right)
        else:
            if dense is None:
                dense = np.zeros((*lead, pattern.shape[0] + 1, pattern.shape[1] + 1), dtype)
            _add_dense(dense, block, left, right)
    values = values[..., :-1]
    if dense is not None:
        values = values + dense[..., pattern.rows, pattern.cols]
    if form == "values":
        return np.ascontiguousarray(values)
    result = np.zeros((*lead, *pattern.shape), dtype)
    result[..., pattern.rows, pattern.cols] = values
    return result


def _add_walk(values: Array, block: WalkBlock, r: Array, x: Array) -> None:
    """Add the dot product over columns of the two rows that each nonzero of D joins."""
    row, x_row, position = block.nonzero_rows()
    at_once = max(_VALUES_AT_ONCE // max(block.columns.width, 1), 1)
    lead = values.shape[:-1]
    r = np.broadcast_to(r, (*lead, *block.mask_shape))
    x = np.broadcast_to(x, (*lead, *block.x_shape))
    for index in np.ndindex(*lead):
        for start in range(0, len(row), at_once):
            part = slice(start, start + at_once)
            dots = np.einsum("nc,nc->n", r[index][row[part]], x[index][x_row[part]])
            np.add.at(values[index], position[part], dots)


def _add_dense(dense: Array, block: DenseBlock, r: Array, x: Array) -> None:
    """Add R X^T of every group at the group's rows of M and of X."""
    product = np.matmul(r, np.swapaxes(x, -1, -2))
    if block.whole:
        dense[..., :-1, :-1] += product[..., 0, :, :]
        return
    width = dense.shape[-1]
    at = block.mask_support[:, :, None] * np.int64(width) + block.x_support[:, None, :]
    product = np.broadcast_to(product, (*dense.shape[:-2], *at.shape))
    for index in np.ndindex(*dense.shape[:-2]):
        np.add.at(dense[index].reshape(-1), at.ravel(), product[index].ravel())

"""`masked_outer` in JAX: a primitive that XLA's array operations implement."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tritonsnap.ops import canonical_kernels, canonical_xla
from tritonsnap.ops.arguments import Form, check_form, check_plan, read_pair
from tritonsnap.ops.jax_launch import Launch
from tritonsnap.ops.masked_dsmm.jax import UNROLLED, bind_product, take
from tritonsnap.ops.primitive import PlanPrimitive
from tritonsnap.plan.blocks import DenseBlock, ElementwiseBlock, WalkBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.jax_target import jax_packing
from tritonsnap.plan.packing import Packing

Array = jax.Array


def masked_outer(
    r: Array | tuple[Array, ...],
    x: Array | tuple[Array, ...],
    plan: DsmmPlan,
    *,
    form: Form = "values",
) -> Array:
    """JAX face of `tritonsnap.masked_outer`."""
    check_plan(plan)
    check_form(form)
    packing = jax_packing(plan)
    left, right = read_pair(r, x, packing)
    if not packing.blocks:
        lead = jnp.broadcast_shapes(left.batch, right.batch)
        own = (plan.dynamics.nnz,) if form == "values" else plan.dynamics.shape
        return jnp.zeros((*lead, *own), jnp.result_type(*left.arrays, *right.arrays))
    return bind_outer(plan, left.blocks, right.blocks, form)


def bind_outer(plan: DsmmPlan, r: tuple[Array, ...], x: tuple[Array, ...], form: Form) -> Array:
    """Bind the primitive on packed values."""
    packing = jax_packing(plan)
    axes = [len(shape) for side in ("mask", "x") for shape in packing.shapes(side)]
    return _masked_outer(plan, (*r, *x), axes, form=form)[0]


def _implementation(plan: DsmmPlan, *blocks: Array, form: Form) -> tuple[Array, ...]:
    packing, num = jax_packing(plan), len(blocks) // 2
    if packing.target.canonical:
        return (_in_form(packing, canonical_xla.outer(packing, *blocks), form),)
    return (outer(packing, blocks[:num], blocks[num:], form),)


def _kernels(
    launch: Launch, plan: DsmmPlan, *operands: Array, form: Form
) -> tuple[Array, ...] | None:
    packing, same = jax_packing(plan), canonical_kernels.floats(*operands)
    if not packing.target.canonical or same is None:
        return None
    return (_in_form(packing, canonical_kernels.outer(launch, packing, *same), form),)


def _in_form(packing: Packing, values: Array, form: Form) -> Array:
    """The values of D, or D with zeros where it has none."""
    if form == "values":
        return values
    rows, cols = packing.dynamics.shape
    if packing.dynamics.nnz == rows * cols:
        return values.reshape(*values.shape[:-1], cols, rows).swapaxes(-1, -2)
    zeros = jnp.zeros((*values.shape[:-1], *packing.dynamics.shape), values.dtype)
    at = (..., *canonical_xla.entries_of(packing))
    return zeros.at[at].set(values, unique_indices=True)


def _adjoint(
    plan: DsmmPlan, operands: list[Any], cotangents: list[Array], params: dict[str, Any]
) -> list[Array] | None:
    if not jax_packing(plan).target.canonical:
        return None
    (d,), (r, x) = cotangents, operands
    if r is None:
        return list(bind_product(plan, d, params["form"], (x,)))
    return list(bind_product(plan, d, params["form"], (r,), flipped=True))


def _groups(num_operands: int, params: dict[str, Any]) -> list[int]:
    return [num_operands // 2, num_operands // 2]


_masked_outer = PlanPrimitive("masked_outer", _implementation, _groups, _adjoint, _kernels)


def outer(packing: Packing, r: tuple[Array, ...], x: tuple[Array, ...], form: Form) -> Array:
    """R X^T at the entries of D in XLA operations, as values or as a dense matrix."""
    pattern = packing.dynamics
    lead = jnp.broadcast_shapes(
        *(a.shape[: a.ndim - len(b.mask_shape)] for a, b in zip(r, packing.blocks, strict=True)),
        *(a.shape[: a.ndim - len(b.x_shape)] for a, b in zip(x, packing.blocks, strict=True)),
    )
    dtype = jnp.result_type(*r, *x)
    rows, cols = packing.dynamics_row, packing.dynamics_col
    if not len(rows):  # every block reads D as a dense matrix
        rows, cols = jnp.asarray(pattern.rows), jnp.asarray(pattern.cols)
    values = jnp.zeros((*lead, pattern.nnz), dtype)
    dense: Array | None = None
    for block, left, right in zip(packing.blocks, r, x, strict=True):
        if isinstance(block, ElementwiseBlock):
            sums = jnp.einsum("...gc,...gc->...g", left, right, precision=lax.Precision.HIGHEST)
            values = values.at[..., block.position].add(sums, mode="drop")
        elif isinstance(block, WalkBlock):
            values = _add_walk(values, block, left, right)
        else:
            if dense is None:
                dense = jnp.zeros((*lead, pattern.shape[0] + 1, pattern.shape[1] + 1), dtype)
            dense = _add_dense(dense, block, left, right)
    if dense is not None:
        values = values + dense[..., rows, cols]
    if form == "values":
        return values
    result = jnp.zeros((*lead, *pattern.shape), dtype)
    return result.at[..., rows, cols].set(values, unique_indices=True)


def _add_walk(values: Array, block: WalkBlock, r: Array, x: Array) -> Array:
    """Add the dot product over columns of the two rows that each nonzero of D joins."""
    in_classes = jnp.zeros_like(r).at[..., block.place, :].set(r, unique_indices=True)
    begin = 0
    for row_class in block.classes:
        terms, rows = row_class.position.shape
        left = in_classes[..., begin : begin + rows, :]
        begin += rows
        position, x_index = row_class.position, row_class.x_index

        def add(
            k: Any,
            values: Array,
            left: Array = left,
            position: Any = position,
            x_index: Any = x_index,
        ) -> Array:
            dots = (left * take(x, x_index[k], axis=-2)).sum(-1)
            return values.at[..., position[k]].add(dots, mode="drop")

        if terms <= UNROLLED:
            for k in range(terms):
                values = add(k, values)
        else:
            values = lax.fori_loop(0, terms, add, values)
    return values


def _add_dense(dense: Array, block: DenseBlock, r: Array, x: Array) -> Array:
    """Add R X^T of every group at the group's rows of M and of X."""
    product = jnp.matmul(r, jnp.swapaxes(x, -1, -2), precision=lax.Precision.HIGHEST)
    if block.whole:
        return dense.at[..., :-1, :-1].add(product[..., 0, :, :])
    at = (..., block.mask_support[:, :, None], block.x_support[:, None, :])
    return dense.at[at].add(product)

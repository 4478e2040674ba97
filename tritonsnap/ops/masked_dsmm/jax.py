"""`masked_dsmm` in JAX: a primitive that XLA's array operations implement."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import tritonsnap.plan.jax_tree  # noqa: F401 - registers plans as pytrees
from tritonsnap.ops.arguments import (
    Form,
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    read_influence,
)
from tritonsnap.ops.dynamics import Dynamics, gather_groups
from tritonsnap.ops.primitive import PlanPrimitive
from tritonsnap.plan.blocks import DenseBlock, ElementwiseBlock, WalkBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.packing import Packing

Array = jax.Array
UNROLLED = 16
"""Up to so many terms of a sum are written out; XLA's loops are slower than straight code."""


def masked_dsmm(
    d: Array,
    x: Array | tuple[Array, ...],
    plan: DsmmPlan,
    *,
    row_scale: Array | None = None,
    precision: str = "ieee",
    form: Form | None = None,
) -> Array | tuple[Array, ...]:
    """JAX face of `tritonsnap.masked_dsmm`."""
    check_plan(plan)
    check_precision(precision)
    packing = plan.packing("xla")
    given = read_influence("x", x, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    blocks = bind_product(plan, d, form, given.blocks, row_scale)
    return packing.unpack(blocks, like=given.values) if given.flat else blocks


def bind_product(
    plan: DsmmPlan, d: Array, form: Form, blocks: tuple[Array, ...], row_scale: Array | None
) -> tuple[Array, ...]:
    """Bind the primitive on packed values."""
    scale = () if row_scale is None else (row_scale,)
    axes = [2 if form == "dense" else 1, *(1 for _ in scale)]
    axes += [len(shape) for shape in plan.packing("xla").shapes("x")]
    operands = (d, *scale, *blocks)
    return _masked_dsmm(plan, operands, axes, form=form, scaled=row_scale is not None)


def _implementation(
    plan: DsmmPlan, d: Array, *rest: Array, form: Form, scaled: bool
) -> tuple[Array, ...]:
    packing = plan.packing("xla")
    row_scale, blocks = (rest[0], rest[1:]) if scaled else (None, rest)
    return product(packing, Dynamics(d, form, packing, jnp), blocks, row_scale)


def _groups(num_operands: int, params: dict[str, Any]) -> list[int]:
    single = [1, 1] if params["scaled"] else [1]
    return [*single, num_operands - len(single)]


def _adjoint(
    plan: DsmmPlan, operands: list[Any], cotangents: list[Array], params: dict[str, Any]
) -> list[Array] | None:
    from tritonsnap.ops.masked_outer.jax import bind_outer  # which is differentiated by this module

    if operands[0] is not None or params["scaled"]:
        return None
    return [bind_outer(plan, tuple(cotangents), tuple(operands[1:]), params["form"])]


_masked_dsmm = PlanPrimitive("masked_dsmm", _implementation, _groups, _adjoint)


def product(
    packing: Packing,
    dynamics: Dynamics,
    blocks: tuple[Array, ...],
    row_scale: Array | None = None,
) -> tuple[Array, ...]:
    """The blocks of M * (D X) in XLA operations."""
    scaled = dynamics if row_scale is None else dynamics.scaled(row_scale)
    results = []
    for block, x in zip(packing.blocks, blocks, strict=True):
        if isinstance(block, ElementwiseBlock):
            results.append(coefficients(block, scaled)[..., None] * x)
        elif isinstance(block, WalkBlock):
            results.append(_walk(block, scaled.values, x))
        elif row_scale is None or block.whole:
            results.append(_matmul(gather_groups(scaled, block, jnp), x))
        else:  # D is shared by the batch: gather it once, scale what comes out
            result = _matmul(gather_groups(dynamics, block, jnp), x)
            results.append(result * padded_rows(block, row_scale)[..., None])
    return tuple(results)


def coefficients(block: ElementwiseBlock, dynamics: Dynamics) -> Array:
    """[..., G]: the entry of D that each group of one row is multiplied by."""
    values: Array = dynamics.values
    if block.ordered:
        return values
    return take(values if block.complete else with_zero(values), block.position)


def _walk(block: WalkBlock, values: Array, x: Array) -> Array:
    """Rows of about equal length at once: their first nonzeros, their second, and so on."""
    entries = with_zero(values)
    lead = jnp.broadcast_shapes(values.shape[:-1], x.shape[:-2])
    dtype = jnp.result_type(values, x)
    parts = []
    for row_class in block.classes:
        position, x_index = row_class.position, row_class.x_index
        terms, rows = position.shape

        def term(k: Any, position: Any = position, x_index: Any = x_index) -> Array:
            return take(entries, position[k])[..., None] * take(x, x_index[k], axis=-2)

        part = jnp.zeros((*lead, rows, block.columns.width), dtype)
        if terms <= UNROLLED:
            for k in range(terms):
                part = part + term(k)
        else:
            part = lax.fori_loop(0, terms, lambda k, part, term=term: part + term(k), part)
        parts.append(part)
    if not parts:
        return jnp.zeros((*lead, *block.mask_shape), dtype)
    if len(parts) == 1:
        return parts[0]
    return take(jnp.concatenate(parts, axis=-2), block.place, axis=-2)


def _matmul(d: Array, x: Array) -> Array:
    return jnp.matmul(d, x, precision=lax.Precision.HIGHEST)


def take(values: Array, index: Array, axis: int = -1) -> Array:
    """Gather along an axis with indices that the plan guarantees to be in bounds."""
    at = values.at[(..., index.astype(jnp.int32), *(slice(None),) * (-axis - 1))]
    return at.get(mode="promise_in_bounds")


def with_zero(values: Array) -> Array:
    """`values` with a zero behind them, where padding points to."""
    return jnp.concatenate([values, jnp.zeros((*values.shape[:-1], 1), values.dtype)], axis=-1)


def padded_rows(block: DenseBlock, rows: Array) -> Array:
    """[..., G, S]: the entries of `rows` [..., m] at a dense block's rows, zero at padding."""
    return take(with_zero(rows) if block.padded else rows, block.mask_support)

"""`masked_dsmm` in JAX: a primitive that XLA's array operations implement."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import tritonsnap.plan.jax_tree  # noqa: F401 - registers plans as pytrees
from tritonsnap.ops import canonical_kernels, canonical_xla
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
from tritonsnap.ops.jax_launch import Launch
from tritonsnap.ops.primitive import PlanPrimitive
from tritonsnap.plan.blocks import DenseBlock, ElementwiseBlock, WalkBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.jax_target import jax_packing
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
    packing = jax_packing(plan)
    given = read_influence("x", x, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    blocks = bind_product(plan, d, form, given.blocks, row_scale, precision)
    return give_back(given, blocks, packing, *with_own_axes(d, form, row_scale))


def bind_product(
    plan: DsmmPlan,
    d: Array,
    form: Form,
    blocks: tuple[Array, ...],
    row_scale: Array | None = None,
    precision: str = "ieee",
    flipped: bool = False,
) -> tuple[Array, ...]:
    """Bind the primitive on packed values.

    `flipped`, for values in canonical order: the product ``X * (D^T M)``, given the same D.
    """
    scale = () if row_scale is None else (row_scale,)
    axes = [2 if form == "dense" else 1, *(1 for _ in scale)]
    axes += [len(shape) for shape in jax_packing(plan).shapes("mask" if flipped else "x")]
    return _masked_dsmm(
        plan,
        (d, *scale, *blocks),
        axes,
        form=form,
        scaled=row_scale is not None,
        precision=precision,
        flipped=flipped,
    )


def _implementation(
    plan: DsmmPlan,
    d: Array,
    *rest: Array,
    form: Form,
    scaled: bool,
    precision: str,
    flipped: bool,
) -> tuple[Array, ...]:
    packing = jax_packing(plan)
    row_scale, blocks = (rest[0], rest[1:]) if scaled else (None, rest)
    if packing.target.canonical:
        packing, dynamics = _oriented(packing, d, form, flipped)
        scaled_dynamics = dynamics if row_scale is None else dynamics.scaled(row_scale)
        return (canonical_xla.product(packing, scaled_dynamics, blocks[0]),)
    return product(packing, Dynamics(d, form, packing, jnp), blocks, row_scale)


def _kernels(
    launch: Launch,
    plan: DsmmPlan,
    *operands: Array,
    form: Form,
    scaled: bool,
    precision: str,
    flipped: bool,
) -> tuple[Array, ...] | None:
    packing, same = jax_packing(plan), canonical_kernels.floats(*operands)
    if not packing.target.canonical or same is None:
        return None
    packing, dynamics = _oriented(packing, same[0], form, flipped)
    scale = same[1] if scaled else None
    return (canonical_kernels.product(launch, packing, dynamics, same[-1], precision, scale),)


def _oriented(packing: Packing, d: Array, form: Form, flipped: bool) -> tuple[Packing, Dynamics]:
    """The packing and D of a product in canonical order, both transposed where it is flipped."""
    if not flipped:
        return packing, Dynamics(d, form, packing, jnp)
    if form == "dense":
        d = jnp.swapaxes(d, -1, -2)
    else:  # by column, then row: the stable order by row is that of the transposed D
        d = d[..., jnp.argsort(canonical_xla.entries_of(packing)[0], stable=True)]
    return packing.transposed, Dynamics(d, form, packing.transposed, jnp)


def _groups(num_operands: int, params: dict[str, Any]) -> list[int]:
    single = [1, 1] if params["scaled"] else [1]
    return [*single, num_operands - len(single)]


def _adjoint(
    plan: DsmmPlan, operands: list[Any], cotangents: list[Array], params: dict[str, Any]
) -> list[Array] | None:
    from tritonsnap.ops.masked_outer.jax import bind_outer  # which is differentiated by this module

    packing, form, flipped = jax_packing(plan), params["form"], params["flipped"]
    if not packing.target.canonical:
        if operands[0] is not None or params["scaled"]:
            return None
        return [bind_outer(plan, tuple(cotangents), tuple(operands[1:]), form)]
    d, *scale, x = operands
    if x is None:
        whole = d * _of_rows(packing, scale[0], form) if scale else d
        precision = params["precision"]
        return list(
            bind_product(plan, whole, form, tuple(cotangents), None, precision, not flipped)
        )
    pair = (x, cotangents[0]) if flipped else (cotangents[0], x)
    of_d = bind_outer(plan, pair[:1], pair[1:], form)
    if d is None:
        return [of_d * _of_rows(packing, scale[0], form) if scale else of_d]
    return [_sum_rows(packing, of_d * d, form)]


def _of_rows(packing: Packing, scale: Array, form: Form) -> Array:
    """What the row of each entry of D is scaled by, in a shape that multiplies D."""
    if form == "dense":
        return scale[..., None]
    return scale[..., canonical_xla.entries_of(packing)[0]]


def _sum_rows(packing: Packing, d: Array, form: Form) -> Array:
    """[..., m]: the sum of each row of D."""
    if form == "dense":
        return d.sum(-1)
    zeros = jnp.zeros((*d.shape[:-1], packing.dynamics.shape[0]), d.dtype)
    return zeros.at[..., canonical_xla.entries_of(packing)[0]].add(d)


_masked_dsmm = PlanPrimitive("masked_dsmm", _implementation, _groups, _adjoint, _kernels)


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

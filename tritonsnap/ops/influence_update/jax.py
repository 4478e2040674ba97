"""`influence_update` in JAX: a primitive that XLA's array operations implement."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tritonsnap.ops import canonical_kernels, canonical_xla
from tritonsnap.ops.arguments import (
    Form,
    Influence,
    check_batch,
    check_plan,
    check_precision,
    check_rows,
    dynamics_form,
    give_back,
    read_influence,
    with_own_axes,
)
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.influence_update.compressed import check_immediate
from tritonsnap.ops.influence_update.out import check_in_place
from tritonsnap.ops.jax_launch import Launch
from tritonsnap.ops.masked_dsmm.jax import bind_product, product, take, with_zero
from tritonsnap.ops.primitive import PlanPrimitive
from tritonsnap.plan.blocks import Block, ElementwiseBlock, WalkBlock
from tritonsnap.plan.compressed import Compressed, CompressedBlock, CompressedStructure
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.factors import FactorBlock, Factors, FactorStructure
from tritonsnap.plan.jax_target import jax_packing
from tritonsnap.plan.packing import Packing

Array = jax.Array


def influence_update(
    d: Array,
    j: Array | tuple[Array, ...],
    immediate: Array | tuple[Array, ...] | Factors | Compressed,
    plan: DsmmPlan,
    *,
    row_scale: Array | None = None,
    precision: str = "ieee",
    form: Form | None = None,
    out: tuple[Array, ...] | None = None,
) -> Array | tuple[Array, ...]:
    """JAX face of `tritonsnap.influence_update`."""
    check_plan(plan)
    check_precision(precision)
    packing = jax_packing(plan)
    given = read_influence("j", j, packing, "x")
    form = dynamics_form(d, plan, given.batch, form)
    check_over(out, given, packing)
    if row_scale is not None:
        check_rows("row_scale", row_scale, plan.mask.shape[0], given.batch)
    if isinstance(immediate, (Factors, Compressed)):
        scale = () if row_scale is None else (row_scale,)
        check_immediate(immediate, plan, given.batch)
        *added, structure = immediate
        primitive, own = _influence_update, [2, 1]
        if isinstance(immediate, Compressed):
            primitive, own = _compressed_update, [2]
        axes = [2 if form == "dense" else 1, *own, *(1 for _ in scale)]
        axes += [len(shape) for shape in packing.shapes("x")]
        blocks = primitive(
            structure,
            (d, *added, *scale, *given.blocks),
            axes,
            form=form,
            scaled=row_scale is not None,
            precision=precision,
            over=out is not None,
        )
        others = with_own_axes(d, form, row_scale, immediate)
        return give_back(given, blocks, packing, *others)
    values = read_influence("immediate", immediate, packing, "mask")
    check_batch("immediate", values, given.batch)
    blocks = bind_product(plan, d, form, given.blocks, row_scale, precision)
    others = with_own_axes(d, form, row_scale)
    if given.flat and values.flat:
        return give_back(given, blocks, packing, *others) + values.values
    blocks = tuple(block + part for block, part in zip(blocks, values.blocks, strict=True))
    return give_back(given, blocks, packing, *others)


def check_over(out: tuple[Array, ...] | None, j: Influence, packing: Packing) -> None:
    """Raise unless `out` is None, or `j` where that may be written over.

    Raises
    ------
    ValueError
        That names `out`.
    """
    if out is None:
        return
    if (
        j.flat
        or not isinstance(out, (tuple, list))
        or list(map(id, out)) != list(map(id, j.blocks))
    ):
        raise ValueError(
            "`out` must be `j` itself, packed by `plan.pack`: JAX's arrays never change, and XLA "
            "can only lay the result over what is given"
        )
    check_in_place(packing, True)


def _implementation(
    structure: FactorStructure,
    d: Array,
    gains: Array,
    sources: Array,
    *rest: Array,
    form: Form,
    scaled: bool,
    precision: str,
    over: bool,
) -> tuple[Array, ...]:
    packing = jax_packing(structure.plan)
    row_scale, blocks = (rest[0], rest[1:]) if scaled else (None, rest)
    dynamics = Dynamics(d, form, packing, jnp)
    if packing.target.canonical:
        whole = dynamics if row_scale is None else dynamics.scaled(row_scale)
        product_of_d = canonical_xla.product(packing, whole, blocks[0])
        return (product_of_d + _multiplied_out(structure, gains, sources),)
    return update(packing, dynamics, blocks, Factors(gains, sources, structure), row_scale)


def _kernels(
    launch: Launch,
    structure: FactorStructure | CompressedStructure,
    *operands: Array,
    form: Form,
    scaled: bool,
    precision: str,
    over: bool,
) -> tuple[Array, ...] | None:
    packing, same = jax_packing(structure.plan), canonical_kernels.floats(*operands)
    if not packing.target.canonical or same is None:
        return None
    d, *rest = same
    immediate, rest = immediate_of(structure, rest)
    scale, j = rest[0] if scaled else None, rest[-1]
    dynamics = Dynamics(d, form, packing, jnp)
    result = canonical_kernels.product(
        launch, packing, dynamics, j, precision, scale, immediate, over
    )
    return (result,)


def immediate_of(
    structure: FactorStructure | CompressedStructure, operands: Sequence[Array]
) -> tuple[Factors | Compressed, list[Array]]:
    """The immediate Jacobian that the first operands make up, and the other operands."""
    if isinstance(structure, FactorStructure):
        gains, sources, *rest = operands
        return Factors(gains, sources, structure), rest
    values, *rest = operands
    return Compressed(values, structure), rest


def _reference(
    structure: FactorStructure,
    d: Array,
    gains: Array,
    sources: Array,
    *rest: Array,
    form: Form,
    scaled: bool,
    precision: str,
    over: bool,
) -> tuple[Array, ...]:
    """What is differentiated: in canonical order, the product by its own primitive."""
    plan = structure.plan
    if not jax_packing(plan).target.canonical:
        return _implementation(
            structure,
            d,
            gains,
            sources,
            *rest,
            form=form,
            scaled=scaled,
            precision=precision,
            over=over,
        )
    (result,) = bind_product(plan, d, form, rest[-1:], rest[0] if scaled else None, precision)
    return (result + _multiplied_out(structure, gains, sources),)


def _multiplied_out(structure: FactorStructure, gains: Array, sources: Array) -> Array:
    packing = jax_packing(structure.plan)
    return canonical_xla.immediate(
        packing, structure.canonical(), structure.num_units, gains, sources
    )


_influence_update = PlanPrimitive(
    "influence_update", _implementation, kernels=_kernels, reference=_reference
)


def _compressed_implementation(
    structure: CompressedStructure,
    d: Array,
    values: Array,
    *rest: Array,
    form: Form,
    scaled: bool,
    precision: str,
    over: bool,
) -> tuple[Array, ...]:
    packing = jax_packing(structure.plan)
    row_scale, blocks = (rest[0], rest[1:]) if scaled else (None, rest)
    products = bind_product(structure.plan, d, form, blocks, row_scale, precision)
    if packing.target.canonical:
        colors = structure.canonical()
        added = canonical_xla.compressed(packing, colors, structure.num_colors, values)
        return (products[0] + added,)
    compressed = values.reshape(*values.shape[:-2], values.shape[-2] * values.shape[-1])
    return tuple(
        _with_compressed(result, block, part, compressed)
        for result, block, part in zip(
            products, packing.blocks, structure.layout(packing), strict=True
        )
    )


_compressed_update = PlanPrimitive(
    "compressed_update", _compressed_implementation, kernels=_kernels
)


def update(
    packing: Packing,
    dynamics: Dynamics,
    blocks: tuple[Array, ...],
    immediate: Factors,
    row_scale: Array | None = None,
) -> tuple[Array, ...]:
    """The blocks of M * (D J) + I in XLA operations."""
    products = product(packing, dynamics, blocks, row_scale)
    layout = immediate.structure.layout(packing)
    *axes, targets, rows = immediate.gains.shape
    gains = immediate.gains.reshape(*axes, targets * rows)
    rows = packing.groups.mask.shape[0]
    return tuple(
        _added(result, block, factors, gains, immediate.sources, rows)
        for result, block, factors in zip(products, packing.blocks, layout, strict=True)
    )


def _added(
    result: Array, block: Block, factors: FactorBlock, gains: Array, sources: Array, rows: int
) -> Array:
    """A block with the factored immediate Jacobian added."""
    if factors.outer:
        own = gains[..., factors.target * rows : (factors.target + 1) * rows]
        assert isinstance(block, ElementwiseBlock)  # only these have outer factors
        gain = own if block.all_rows else take(own, block.mask_row)
        pieces = [sources[..., first : first + count] for first, count in factors.stretches]
        source = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis=-1)
        return result + gain[..., None] * source[..., None, :]
    index = factors.target_index.astype(jnp.int32) * rows + factors.row.astype(jnp.int32)
    source = take(with_zero(sources), factors.source_index)[..., None, :, :]
    values = take(gains, index) * source  # [..., parts, G, C]
    parts = factors.place.shape[0]
    if isinstance(block, ElementwiseBlock):
        for part in range(parts):
            inside = factors.place[part] == 0
            result = result + jnp.where(inside, values[..., part, :, :], 0)
        return result
    lead = jnp.broadcast_shapes(
        result.shape[: result.ndim - len(block.mask_shape)], values.shape[:-3]
    )
    result = jnp.broadcast_to(result, (*lead, *block.mask_shape))
    width = block.columns.width
    if isinstance(block, WalkBlock):
        first = block.mask_indptr[:-1, None].astype(jnp.int32)
        size = jnp.diff(block.mask_indptr.astype(jnp.int32))[:, None]
        flat = result
    else:
        groups, most = block.mask_shape[:2]
        size = jnp.asarray(most)
        first = jnp.arange(groups)[:, None] * size
        flat = result.reshape(*lead, groups * most, width)
    outside = flat.shape[-2]
    for part in range(parts):
        place = factors.place[part].astype(jnp.int32)
        place = jnp.where(place < size, first + place, outside)  # dropped
        added = values[..., part, :, :]
        if place.shape[1] == 1:  # all columns of a group belong to one unit: whole rows
            flat = flat.at[..., place[:, 0], :].add(added, mode="drop")
        else:
            column = jnp.broadcast_to(jnp.arange(width), place.shape)
            flat = flat.at[..., place, column].add(added, mode="drop")
    return flat.reshape(result.shape)


def _with_compressed(
    result: Array, block: Block, part: CompressedBlock, compressed: Array
) -> Array:
    """A block with the flattened compressed immediate Jacobian added."""
    if part.whole:
        return result + take(with_zero(compressed), part.source)
    own = len(block.mask_shape)
    lead = jnp.broadcast_shapes(result.shape[: result.ndim - own], compressed.shape[:-1])
    flat = jnp.broadcast_to(result, (*lead, *block.mask_shape))
    flat = flat.reshape(*lead, math.prod(block.mask_shape))
    flat = flat.at[..., part.place.astype(jnp.int32)].add(
        take(compressed, part.source), unique_indices=True, mode="promise_in_bounds"
    )
    return flat.reshape(*lead, *block.mask_shape)

"""`influence_gradient` in JAX: a primitive that XLA's array operations implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tritonsnap.ops import canonical_kernels, canonical_xla
from tritonsnap.ops.arguments import check_plan, check_rows, read_influence, without_values
from tritonsnap.ops.jax_launch import Launch
from tritonsnap.ops.masked_dsmm.jax import UNROLLED, padded_rows, take
from tritonsnap.ops.primitive import PlanPrimitive
from tritonsnap.plan.blocks import ElementwiseBlock, WalkBlock
from tritonsnap.plan.dsmm_plan import DsmmPlan
from tritonsnap.plan.jax_target import jax_packing
from tritonsnap.plan.packing import Packing

Array = jax.Array


def influence_gradient(
    delta: Array,
    j: Array | tuple[Array, ...],
    plan: DsmmPlan,
    *,
    sum_batch: bool = False,
    packed: bool = False,
) -> Array | tuple[Array, ...]:
    """JAX face of `tritonsnap.influence_gradient`."""
    check_plan(plan)
    packing = jax_packing(plan)
    given = read_influence("j", j, packing, "mask")
    check_rows("delta", delta, plan.mask.shape[0], given.batch)
    axes = [1, *(len(shape) for shape in packing.shapes("mask"))]
    blocks = _influence_gradient(plan, (delta, *given.blocks), axes, sum_batch=sum_batch)
    if packed:
        return blocks
    if blocks:
        return packing.unpack_columns(blocks)
    none = without_values((delta, 1), *((j, 1) for j in given.arrays))
    return packing.unpack_columns((), like=none.sum() if sum_batch else none.sum(-1))


def _implementation(
    plan: DsmmPlan, delta: Array, *blocks: Array, sum_batch: bool
) -> tuple[Array, ...]:
    packing = jax_packing(plan)
    if packing.target.canonical:
        return (canonical_xla.gradient(packing, delta, blocks[0], sum_batch),)
    return gradient(packing, delta, blocks, sum_batch)


def _kernels(
    launch: Launch, plan: DsmmPlan, *operands: Array, sum_batch: bool
) -> tuple[Array, ...] | None:
    packing, same = jax_packing(plan), canonical_kernels.floats(*operands)
    if not packing.target.canonical or same is None:
        return None
    delta, j = same
    return (canonical_kernels.gradient(launch, packing, delta, j, sum_batch),)


class _Gradient(PlanPrimitive):
    def _batch(
        self, args: Sequence[Any], dims: Sequence[Any], *, tree: Any, axes: Any, params: Any
    ) -> tuple[Any, Any]:
        """Every mapped row keeps a gradient of its own: only the other batch axes are summed."""
        each = (("sum_batch", False),)
        outputs, _ = super()._batch(args, dims, tree=tree, axes=axes, params=each)
        if dict(params)["sum_batch"]:
            plan = jax.tree_util.tree_unflatten(tree, args[len(axes) :])
            shapes = jax_packing(plan).column_shapes()
            outputs = [
                one.sum(axis=tuple(range(1, one.ndim - len(shape))))
                for one, shape in zip(outputs, shapes, strict=True)
            ]
        return outputs, [0] * len(outputs)


_influence_gradient = _Gradient(
    "influence_gradient",
    _implementation,
    lambda num_operands, _: [1, num_operands - 1],
    kernels=_kernels,
)


def gradient(
    packing: Packing, delta: Array, blocks: tuple[Array, ...], sum_batch: bool
) -> tuple[Array, ...]:
    """delta^T J of each block, ``[..., G, C]``, summed over all batch axes on request."""
    results = []
    for block, j in zip(packing.blocks, blocks, strict=True):
        if isinstance(block, ElementwiseBlock):
            rows = delta if block.all_rows else take(delta, block.mask_row)
            result = rows[..., None] * j
        elif isinstance(block, WalkBlock):
            result = _sum_groups(block, delta, j)
        else:
            rows = padded_rows(block, delta)
            if sum_batch and delta.ndim == 2 and j.ndim == 4:
                product = jnp.einsum("bgs,bgsc->gc", rows, j, precision=lax.Precision.HIGHEST)
                results.append(product)
                continue
            result = jnp.einsum("...gs,...gsc->...gc", rows, j, precision=lax.Precision.HIGHEST)
        results.append(sum_rows(result, result.ndim - 2) if sum_batch else result)
    return tuple(results)


def sum_rows(array: Array, num_axes: int) -> Array:
    """Sum over the leading axes, written out where they are few: XLA's reduction is slow there."""
    flat = array.reshape(-1, *array.shape[num_axes:])
    rows = flat.shape[0]
    if rows > 4 * UNROLLED:
        return flat.sum(axis=0)
    total = jnp.zeros(flat.shape[1:], flat.dtype)
    for row in range(rows):
        total = total + flat[row]
    return total


def _sum_groups(block: WalkBlock, delta: Array, j: Array) -> Array:
    """Sum the rows of each group of a walk, times delta: first rows, second rows, and so on."""
    begin = block.mask_indptr.astype(jnp.int32)
    last = block.mask_row.shape[0] - 1
    weights = take(delta, block.mask_row)
    lead = jnp.broadcast_shapes(delta.shape[:-1], j.shape[:-2])
    total = jnp.zeros(
        (*lead, block.columns.num_groups, block.columns.width), jnp.result_type(delta, j)
    )

    def add(k: int | Array, total: Array) -> Array:
        row = begin[:-1] + k
        weight = jnp.where(row < begin[1:], take(weights, jnp.minimum(row, last)), 0)
        inside = (row < begin[1:])[:, None]
        rows = jnp.where(inside, take(j, jnp.minimum(row, last), axis=-2), 0)
        return total + weight[..., None] * rows

    if block.most_rows <= UNROLLED:
        for k in range(block.most_rows):
            total = add(k, total)
        return total
    return lax.fori_loop(0, block.most_rows, add, total)

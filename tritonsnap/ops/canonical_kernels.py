"""The ops on values in canonical order in JAX by Triton kernels: what a GPU lowering calls."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from tritonsnap.ops.canonical import (
    Addend,
    gradient_arguments,
    group_arguments,
    outer_arguments,
    snap1_arguments,
    walk_arguments,
)
from tritonsnap.ops.canonical_xla import block_of, run_of
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.jax_launch import Launch
from tritonsnap.plan.canonical import UNIT
from tritonsnap.plan.factors import Factors
from tritonsnap.plan.packing import Packing

Array = jax.Array


def product(
    launch: Launch,
    packing: Packing,
    dynamics: Dynamics,
    x: Array,
    precision: str,
    row_scale: Array | None = None,
    immediate: Factors | None = None,
) -> Array:
    """``M * (diag(row_scale) D X)`` and the immediate Jacobian, ``[..., padded nnz]``.

    In one launch, or in two for a plan of both regimes.
    """
    from tritonsnap.ops.influence_update.kernels import SNAP1_UPDATE
    from tritonsnap.ops.masked_dsmm.kernels import GROUP_PRODUCT, WALK_PRODUCT

    block, shape, nnz = block_of(packing), packing.dynamics.shape, packing.groups.mask.nnz
    dense_read = not block.elementwise and len(block.dense_tiles) > 0
    value_read = block.elementwise or len(block.tiles) > 0
    leads = [x.shape[:-1], dynamics.batch]
    if row_scale is not None:
        leads.append(row_scale.shape[:-1])
    if immediate is not None:
        leads += [immediate.gains.shape[:-2], immediate.sources.shape[:-1]]
    batch = jnp.broadcast_shapes(*leads)
    dtype = x.dtype
    x = full_batch(x, batch)
    addend = _addend(immediate, row_scale, batch)
    values = batch_rows(dynamics.values, 1, batch) if value_read else x
    outputs = {"out": (len(x), block.mask_values)}
    size = {"values": nnz, "batch": len(x)}
    if not nnz:
        return jnp.zeros((*batch, block.mask_values), dtype)
    if block.elementwise:
        sizes = (shape[0], packing.dynamics.nnz, nnz)
        arguments = snap1_arguments(block, values, x, addend, None, sizes)
        _, out = launch(SNAP1_UPDATE, arguments, {"gradient": (UNIT,), **outputs}, size, dtype)
        return out.reshape(*batch, block.mask_values)
    if value_read:
        arguments = walk_arguments(block, values, x, addend, shape, nnz)
        (out,) = launch(WALK_PRODUCT, arguments, outputs, size, dtype)
    if dense_read:
        kernel = GROUP_PRODUCT[block.dense_shape.rows, 8 if block.aligned else 1]
        columns = nnz // max(len(block.mask_row), 1)
        size = {"rows": block.dense_shape.rows, "columns": columns, "batch": len(x)}
        matrix = batch_rows(dynamics.dense, 2, batch)
        arguments = group_arguments(block, matrix, x, addend, shape)
        # other types have one precision
        precision = precision if dtype == jnp.float32 else "ieee"
        (dense,) = launch(kernel, arguments, outputs, size, dtype, precision)
        out = jnp.where(_dense_values(packing), dense, out if value_read else 0)
    return out.reshape(*batch, block.mask_values)


def outer(launch: Launch, packing: Packing, r: Array, x: Array) -> Array:
    """R X^T at the entries of D, ``[..., nnz(dynamics)]``."""
    from tritonsnap.ops.masked_outer.kernels import OUTER_WALK

    batch = jnp.broadcast_shapes(r.shape[:-1], x.shape[:-1])
    r, x = full_batch(r, batch), full_batch(x, batch)
    num_entries = packing.dynamics.nnz
    arguments = outer_arguments(block_of(packing), packing.pairs, r, x, num_entries)
    sizes = {"entries": num_entries, "batch": len(r)}
    (out,) = launch(OUTER_WALK, arguments, {"out": (len(r), num_entries)}, sizes, r.dtype)
    return out.reshape(*batch, num_entries)


def gradient(launch: Launch, packing: Packing, delta: Array, j: Array, sum_batch: bool) -> Array:
    """delta^T J, ``[..., p]``, summed over the batch on request."""
    from tritonsnap.ops.influence_gradient.kernels import COLUMN_GRADIENT

    batch = jnp.broadcast_shapes(delta.shape[:-1], j.shape[:-1])
    mask = packing.groups.mask
    num_columns = mask.shape[1]
    j = full_batch(j, batch)
    arguments = gradient_arguments(block_of(packing), batch_rows(delta, 1, batch), j, num_columns)
    mean_rows = mask.nnz / max(num_columns, 1)
    rows = next(rows for rows in (1, 4, 16) if mean_rows <= rows or rows == 16)
    (out,) = launch(
        COLUMN_GRADIENT[rows, sum_batch],
        arguments,
        {"gradient": (1 if sum_batch else len(j), num_columns)},
        {"columns": num_columns, "batch": len(j)},
        j.dtype,
    )
    return out[0] if sum_batch else out.reshape(*batch, num_columns)


def floats(*operands: Array) -> list[Array] | None:
    """The operands in the one dtype that they promote to; None if no kernel works on it."""
    dtype = jnp.result_type(*operands)
    if str(dtype) not in ("float64", "float32", "float16", "bfloat16"):
        return None
    return [one.astype(dtype) for one in operands]


def batch_rows(array: Array, own_axes: int, batch: tuple[int, ...]) -> Array:
    """[batch, ...]; [1, ...] where all batch rows share it."""
    lead, own = array.shape[: array.ndim - own_axes], array.shape[array.ndim - own_axes :]
    if all(size == 1 for size in lead):
        return array.reshape(1, *own)
    return jnp.broadcast_to(array, (*batch, *own)).reshape(math.prod(batch), *own)


def full_batch(values: Array, batch: tuple[int, ...]) -> Array:
    """[batch, values], repeated along batch axes that it lacks."""
    size = values.shape[-1]
    return jnp.broadcast_to(values, (*batch, size)).reshape(math.prod(batch), size)


def _addend(immediate: Factors | None, row_scale: Array | None, batch: tuple[int, ...]) -> Addend:
    scale = None if row_scale is None else batch_rows(row_scale, 1, batch)
    if immediate is None:
        return Addend(row_scale=scale)
    gains, sources, structure = immediate
    columns = structure.canonical()
    return Addend(
        mode=1,
        gains=batch_rows(gains.reshape(*gains.shape[:-2], -1), 1, batch),
        sources=batch_rows(sources, 1, batch),
        column_gain=columns.column_gain,
        column_source=columns.column_source,
        num_units=structure.num_units,
        row_scale=scale,
    )


def _dense_values(packing: Packing) -> Array:
    """Bool [padded nnz]: which values dense products write; those behind the last none does."""
    block = block_of(packing)
    value = jnp.arange(block.mask_values)
    group = jnp.asarray(block.run_group)[run_of(block, block.mask_values)].astype(int)
    return (jnp.asarray(block.is_dense)[group] != 0) & (value < packing.groups.mask.nnz)

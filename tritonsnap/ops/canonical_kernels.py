"""The ops on values in canonical order in JAX by Triton kernels: what a GPU lowering calls."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from tritonsnap.ops.canonical import Addend, block_of
from tritonsnap.ops.canonical_launches import (
    gradient_launch,
    outer_launch,
    outer_sum_launch,
    product_launches,
    step_launch,
)
from tritonsnap.ops.canonical_xla import run_of
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.ops.jax_launch import Launch, run
from tritonsnap.plan.compressed import Compressed
from tritonsnap.plan.factors import Factors
from tritonsnap.plan.packing import Packing

Array = jax.Array


class _BatchedDynamics:
    """One D as the kernels read it."""

    def __init__(self, dynamics: Dynamics, batch: tuple[int, ...]) -> None:
        self._dynamics = dynamics
        self._batch = batch

    @property
    def values(self) -> Array:
        return batch_rows(self._dynamics.values, 1, self._batch)

    @property
    def dense(self) -> Array:
        return batch_rows(self._dynamics.dense, 2, self._batch)


def product(
    launch: Launch,
    packing: Packing,
    dynamics: Dynamics,
    x: Array,
    precision: str,
    row_scale: Array | None = None,
    immediate: Factors | Compressed | None = None,
    over: bool = False,
) -> Array:
    """``M * (diag(row_scale) D X)`` and the immediate Jacobian, ``[..., padded nnz]``.

    In one launch, or in two for a plan of both regimes. It is laid over `x` if `over`.
    """
    batch = _common_batch(x, dynamics, row_scale, immediate)
    if not packing.groups.mask.nnz:
        return jnp.zeros((*batch, block_of(packing).mask_values), x.dtype)
    launches = product_launches(
        packing,
        _BatchedDynamics(dynamics, batch),
        full_batch(x, batch),
        _addend(immediate, row_scale, batch),
        precision,
    )
    out, *rest = (run(launch, one, x.dtype, over)["out"] for one in launches)
    block = block_of(packing)
    # what is laid over X keeps the zeros behind X's last value
    if (
        not over and not block.elementwise and len(block.dense_tiles)
    ):  # the last launch writes only its groups
        walked, dense = (out, *rest) if rest else (jnp.zeros_like(out), out)
        out = jnp.where(_dense_values(packing), dense, walked)
    return out.reshape(*batch, block.mask_values)


def step(
    launch: Launch,
    packing: Packing,
    dynamics: Dynamics,
    x: Array,
    delta: Array,
    row_scale: Array | None,
    immediate: Factors | Compressed,
    over: bool = False,
) -> tuple[Array, Array]:
    """A step of SnAp-1, ``[..., padded nnz]``, and its gradient ``[p]``, in one launch.

    The influence is laid over `x` if `over`.
    """
    batch = jnp.broadcast_shapes(_common_batch(x, dynamics, row_scale, immediate), delta.shape[:-1])
    one = step_launch(
        packing,
        _BatchedDynamics(dynamics, batch),
        full_batch(x, batch),
        _addend(immediate, row_scale, batch),
        full_batch(delta, batch),
    )
    found = run(launch, one, x.dtype, over)
    out, nnz = found["out"], packing.groups.mask.nnz
    return out.reshape(*batch, out.shape[-1]), found["gradient"][:nnz]


def outer(launch: Launch, packing: Packing, r: Array, x: Array) -> Array:
    """R X^T at the entries of D, ``[..., nnz(dynamics)]``."""
    batch = jnp.broadcast_shapes(r.shape[:-1], x.shape[:-1])
    one = outer_launch(packing, packing.pairs, full_batch(r, batch), full_batch(x, batch))
    values = run(launch, one, r.dtype)["partial"]
    if (last := outer_sum_launch(packing.pairs, values)) is not None:
        values = run(launch, last, r.dtype)["out"]
    return values.astype(r.dtype).reshape(*batch, values.shape[-1])


def gradient(launch: Launch, packing: Packing, delta: Array, j: Array, sum_batch: bool) -> Array:
    """delta^T J, ``[..., p]``, summed over the batch on request."""
    batch = jnp.broadcast_shapes(delta.shape[:-1], j.shape[:-1])
    one = gradient_launch(packing, batch_rows(delta, 1, batch), full_batch(j, batch), sum_batch)
    out = run(launch, one, j.dtype)["gradient"]
    return out[0] if sum_batch else out.reshape(*batch, out.shape[-1])


def _common_batch(
    x: Array,
    dynamics: Dynamics,
    row_scale: Array | None,
    immediate: Factors | Compressed | None,
) -> tuple[int, ...]:
    leads = [x.shape[:-1], dynamics.batch]
    if row_scale is not None:
        leads.append(row_scale.shape[:-1])
    if isinstance(immediate, Factors):
        leads += [immediate.gains.shape[:-2], immediate.sources.shape[:-1]]
    elif isinstance(immediate, Compressed):
        leads.append(immediate.values.shape[:-2])
    return jnp.broadcast_shapes(*leads)


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


def _addend(
    immediate: Factors | Compressed | None, row_scale: Array | None, batch: tuple[int, ...]
) -> Addend:
    scale = None if row_scale is None else batch_rows(row_scale, 1, batch)
    if isinstance(immediate, Factors):
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
    if isinstance(immediate, Compressed):
        values, colored = immediate
        return Addend(
            mode=3,
            added=batch_rows(values.reshape(*values.shape[:-2], -1), 1, batch),
            color=colored.canonical().color,
            num_colors=colored.num_colors,
            num_columns=values.shape[-1],
            row_scale=scale,
        )
    return Addend(row_scale=scale)


def _dense_values(packing: Packing) -> Array:
    """Bool [padded nnz]: which values dense products write; those behind the last none does."""
    block = block_of(packing)
    value = jnp.arange(block.mask_values)
    group = jnp.asarray(block.run_group)[run_of(block, block.mask_values)].astype(int)
    return (jnp.asarray(block.is_dense)[group] != 0) & (value < packing.groups.mask.nnz)

"""The ops on values in canonical order as array operations.

Programs that are traced for a GPU run them on any other platform. They are short rather than
fast: on the CPU alone, plans pack their values for XLA.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tritonsnap.ops.canonical import block_of
from tritonsnap.ops.dynamics import Dynamics
from tritonsnap.plan.canonical import CanonicalBlock
from tritonsnap.plan.compressed import CanonicalColors
from tritonsnap.plan.factors import CanonicalFactors
from tritonsnap.plan.flat_values import end_padded
from tritonsnap.plan.packing import Packing

Array = jax.Array


class Places(NamedTuple):
    """Where each value of M lies, ``[nnz]`` each.

    Attributes
    ----------
    row, column
        Of M.
    begin, size
        Where its group's rows of X begin in `x_row`, and how many they are.
    x_begin
        Where the values of its column begin in X.
    """

    row: Array
    column: Array
    begin: Array
    size: Array
    x_begin: Array


def places_of(packing: Packing) -> Places:
    """Read the places of all values off the runs of a block."""
    block, nnz = block_of(packing), packing.groups.mask.nnz
    run = run_of(block, nnz)
    run_value, run_x, run_column, row_begin, x_begin = (
        _integers(getattr(block, name))
        for name in ("run_value", "run_x", "run_column", "row_begin", "x_begin")
    )
    group = _integers(block.run_group)[run]
    local = jnp.arange(nnz) - run_value[run]
    rows = row_begin[group + 1] - row_begin[group]
    column = local // rows
    size = x_begin[group + 1] - x_begin[group]
    return Places(
        row=_integers(block.mask_row)[row_begin[group] + local % rows],
        column=column + run_column[run],
        begin=x_begin[group],
        size=size,
        x_begin=run_x[run] + column * size,
    )


def run_of(block: CanonicalBlock, nnz: int) -> Array:
    """[nnz]: the run that each value lies in."""
    value = jnp.arange(nnz)
    return jnp.searchsorted(_integers(block.run_value), value, side="right") - 1


def product(packing: Packing, dynamics: Dynamics, x: Array) -> Array:
    """M * (D X), ``[..., padded nnz]``."""
    d = dynamics.dense
    dtype, nnz = jnp.result_type(d, x), packing.groups.mask.nnz
    lead = jnp.broadcast_shapes(d.shape[:-2], x.shape[:-1])
    if not packing.dynamics.nnz:
        return jnp.zeros((*lead, block_of(packing).mask_values), dtype)
    at = places_of(packing)
    x_row = _integers(block_of(packing).x_row)

    def add(k: Array, total: Array) -> Array:
        inside = k < at.size
        inner = x_row[jnp.where(inside, at.begin + k, 0)]
        term = d[..., at.row, inner] * x[..., jnp.where(inside, at.x_begin + k, 0)]
        return total + jnp.where(inside, term, 0)

    total = lax.fori_loop(0, at.size.max(), add, jnp.zeros((*lead, nnz), dtype))
    return end_padded(jnp, total, block_of(packing).mask_values)


def outer(packing: Packing, r: Array, x: Array) -> Array:
    """R X^T at the entries of D, ``[..., nnz(dynamics)]``."""
    pattern, nnz = packing.dynamics, packing.groups.mask.nnz
    lead = jnp.broadcast_shapes(r.shape[:-1], x.shape[:-1])
    dense = jnp.zeros((*lead, *pattern.shape), jnp.result_type(r, x))
    if nnz and pattern.nnz:
        at = places_of(packing)
        x_row = _integers(block_of(packing).x_row)

        def add(k: Array, dense: Array) -> Array:
            inside = k < at.size
            inner = x_row[jnp.where(inside, at.begin + k, 0)]
            term = r[..., :nnz] * x[..., jnp.where(inside, at.x_begin + k, 0)]
            return dense.at[..., at.row, inner].add(jnp.where(inside, term, 0))

        dense = lax.fori_loop(0, at.size.max(), add, dense)
    rows, cols = entries_of(packing)
    return dense[..., rows, cols]


def gradient(packing: Packing, delta: Array, j: Array, sum_batch: bool) -> Array:
    """delta^T J, ``[..., p]``, summed over the batch on request."""
    mask = packing.groups.mask
    lead = jnp.broadcast_shapes(delta.shape[:-1], j.shape[:-1])
    result = jnp.zeros((*lead, mask.shape[1]), jnp.result_type(delta, j))
    if mask.nnz:
        at = places_of(packing)
        result = result.at[..., at.column].add(delta[..., at.row] * j[..., : mask.nnz])
    return result.sum(axis=tuple(range(len(lead)))) if sum_batch else result


def immediate(
    packing: Packing, factors: CanonicalFactors, num_units: int, gains: Array, sources: Array
) -> Array:
    """The factored immediate Jacobian multiplied out, ``[..., padded nnz]``.

    Parameters
    ----------
    gains : [..., targets, rows]
    sources : [..., sources]
    """
    mask, block = packing.groups.mask, block_of(packing)
    if not mask.nnz:
        lead = jnp.broadcast_shapes(gains.shape[:-2], sources.shape[:-1])
        return jnp.zeros((*lead, 0), jnp.result_type(gains, sources))
    at = places_of(packing)
    targets, rows = gains.shape[-2:]
    key = _integers(factors.column_gain)[at.column]
    if block.elementwise:
        own = key < targets
        key = key * rows + at.row
    else:
        part = at.row // num_units * num_units
        own = at.row - part == key % rows
        key = key + part
    gain = gains.reshape(*gains.shape[:-2], targets * rows)[..., jnp.where(own, key, 0)]
    values = gain * sources[..., _integers(factors.column_source)[at.column]]
    return end_padded(jnp, jnp.where(own, values, 0), block.mask_values)


def compressed(packing: Packing, colors: CanonicalColors, num_colors: int, values: Array) -> Array:
    """An immediate Jacobian read from its compressed form, ``[..., padded nnz]``.

    Parameters
    ----------
    values : [..., colors, p]
    """
    mask, block = packing.groups.mask, block_of(packing)
    if not mask.nnz:
        return jnp.zeros((*values.shape[:-2], 0), values.dtype)
    color = _integers(colors.color)
    inside = color < num_colors
    read = values[..., jnp.where(inside, color, 0), places_of(packing).column]
    return end_padded(jnp, jnp.where(inside, read, 0), block.mask_values)


def entries_of(packing: Packing) -> tuple[Array, Array]:
    """Row and column of each entry of D."""
    rows, cols = packing.dynamics_row, packing.dynamics_col
    if len(rows) != packing.dynamics.nnz:  # no kernel reads values: the packing left them out
        rows, cols = packing.dynamics.rows, packing.dynamics.cols
    return _integers(rows), _integers(cols)


def _integers(index: Any) -> Array:
    """As wide as JAX makes them, for arithmetic."""
    return jnp.asarray(index).astype(int)
